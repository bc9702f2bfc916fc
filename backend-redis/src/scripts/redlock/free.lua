-- Gives one node's part of a lock back, or a place in its queue, and tells who is next. Whatever the
-- marker says: it removes only what is the claim's. Asked again, it changes nothing and answers 0.
--
-- ARGV  1 the round's identity, or a foreign holder's value   2 the waiter's identity, or ''
--       3 '' to leave the queue, or the waiter's arrival in us to stay in it
--       4 'tell' when it is not the claim's own will
-- Reply 1 (it was there) | 0
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 readers.

local ME, WAITER, ARRIVAL = ARGV[1], ARGV[2], ARGV[3]
local value = redis.pcall('GET', L)
if value == ME and ARRIVAL == '' and not ARGV[4] then
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
end
if ARRIVAL == '' and not ARGV[4] and string.byte(ME) == 120 and redis.call('EXISTS', Q) == 0 then
  return was_there
end
--<foreign.lua>
--<hint.lua>
local me = parse(ME)
-- What another program put at the lock's key is not ours to release.
local is_ours = met_only_own(read_lock)
-- Whose turn it has been; nobody's while it was held alone.
local before = {}
if is_ours and was_there == 0 then
  local done, texts = pcall(turns)
  if done then before = texts end
end
if redis.call('ZREM', Q, ME, ARRIVAL == '' and WAITER or ME) > 0 then was_there = 1 end
if is_ours then
  if me and held and held.group == me.mode and remove_member(me) then was_there = 1 end
  if me and ARGV[4] then redis.call('PUBLISH', me.client, me.owner .. ' 0') end
  if ARRIVAL ~= '' then pcall(enqueue, WAITER, ARRIVAL) end
  if was_there == 1 then pcall(hint, before) end
end
drop_empty_queue()
return was_there
