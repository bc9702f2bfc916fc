-- Releases one node's part of a lock, or a queue entry, and notifies the next waiters. Regardless of the
-- incarnation record: it removes only what is the claim's. A repeat changes nothing and replies 0.
--
-- ARGV  1 the round's identity   2 the waiter's identity, or ''
--       3 '' to leave the queue, or the waiter's arrival in us to stay in it
--       4 'evict' when an operator removes it, which notifies the claim; 'take' for the value of another program
-- Reply 1 (it was there) | 0
-- O(log n) in the holders and waiters, plus up to 256 dead ones and 64 readers.

local ME, WAITER, ARRIVAL = ARGV[1], ARGV[2], ARGV[3]
local value = redis.pcall('GET', L)
if value == ME and ARRIVAL == '' and not ARGV[4] then
  -- Not marked: there are no waiters.
  redis.call('DEL', L)
  return 1
end
-- A group is a sorted set, for which GET is an error. After any other error the state is unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local is_held = value == ME or value == ME .. '\n'
if not is_held and ARRIVAL == '' and not ARGV[4] and string.byte(ME) == 120 and redis.call('EXISTS', Q) == 0 then
--<writable.lua>
  return 0
end
--<foreign.lua>
--<hint.lua>
--<eviction.lua>
--<notify.lua>
local me = parse(ME)
if me and ARGV[4] == 'evict' then
  notify(me)
  remember_eviction(me)
end
if is_held then redis.call('DEL', L) end
local was_there = is_held and 1 or 0
-- A value that another program wrote to the lock's key is not released.
local is_ours = met_only_own(read_lock)
-- The waiters whose turn it was already; none while it was held exclusively.
local before = {}
if is_ours and was_there == 0 then
  local done, texts = pcall(turns)
  if done then before = texts end
end
if redis.call('ZREM', Q, ME, ARRIVAL == '' and WAITER or ME) > 0 then was_there = 1 end
if is_ours and me and held and held.group == me.mode and remove_member(me) then was_there = 1 end
if is_ours then
  if ARRIVAL ~= '' then pcall(enqueue, WAITER, ARRIVAL) end
  if was_there == 1 then pcall(hint, before) end
end
drop_empty_queue()
return was_there
