-- Gives the lock back, or leaves the queue, and hands off to whoever is next. Asked again, it
-- changes nothing and answers 0.
--
-- ARGV  1 identity, or the value of a foreign holder   2 'tell' when it is not the claim's own will
-- Reply 1 (it was there) | 0
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 grants.

local ME = ARGV[1]
local value = redis.pcall('GET', L)
if value == ME and not ARGV[2] then
  -- Not marked: nobody waits.
  redis.call('DEL', L)
  return 1
end
-- A group lies in a sorted set, where GET is an error. Any other error leaves it unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local was_there = 0
if value == ME or value == ME .. '\n' then
  redis.call('DEL', L)
  was_there = 1
elseif not ARGV[2] and string.byte(ME) == 120 and redis.call('EXISTS', Q) == 0 then
  return 0
end
--<token.lua>
--<queue.lua>
local me = parse(ME)
if redis.call('ZREM', Q, ME) == 1 then was_there = 1 end
-- What another program put at the lock's key is not ours to release or to hand off.
if not met_only_own(read_lock) then
  drop_empty_queue()
  return was_there
end
if me and held and held.group == me.mode and remove_member(me) then was_there = 1 end
if was_there == 1 then
  if me and ARGV[2] then redis.call('PUBLISH', me.client, me.owner .. ' 0') end
  -- Given back is given back; why nobody can have it is told to those who ask.
  pcall(hand_off)
  drop_empty_queue()
end
return was_there
