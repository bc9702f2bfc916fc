-- Releases the lock, or leaves the queue, and hands off to the next waiter. A repeated call changes
-- nothing and replies 0.
--
-- ARGV  1 identity   2 'evict' when an operator removes it, which notifies the claim; 'take' for the value of another
--       program; 'or' with 3 the identity that it has as a reader, when it is unknown whether its downgrade was carried out
-- Reply 1 (removed) | 0 (absent)
-- O(log n) in the holders and waiters, except for up to 256 dead ones and 64 grants.

local ME = ARGV[1]
local value = redis.pcall('GET', L)
if value == ME and not ARGV[2] then
  -- Not marked: there are no waiters.
  redis.call('DEL', L)
  return 1
end
-- A group is a sorted set, for which GET is an error. After any other error the holder is unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local is_held = value == ME or value == ME .. '\n'
if not is_held and not ARGV[2] and string.byte(ME) == 120 and redis.call('EXISTS', Q) == 0 then
--<writable.lua>
  return 0
end
--<token.lua>
--<queue.lua>
--<notify.lua>
local me = parse(ME)
if me and ARGV[2] == 'evict' then notify(me) end
if is_held then redis.call('DEL', L) end
local was_there = is_held and 1 or 0
if redis.call('ZREM', Q, ME) == 1 then was_there = 1 end
-- A value of another program at the lock's key is neither released nor handed off.
if not met_only_own(read_lock) then
  drop_empty_queue()
  return was_there
end
if me and held and held.group == me.mode and remove_member(me) then was_there = 1 end
local reader = ARGV[3] and parse(ARGV[3])
if reader and held and held.group == 's' and remove_member(reader) then was_there = 1 end
if was_there == 1 then
  -- The release stands even if the hand-off fails; waiters get that error from their own calls.
  pcall(hand_off)
  drop_empty_queue()
end
return was_there
