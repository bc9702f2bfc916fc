-- Makes an exclusive hold a shared one, with no moment in between, and extends it. A repeated call finds
-- the shared hold and extends that.
--
-- ARGV  1 the exclusive identity   2 the same in mode s   3 ttl in ms, 0 to keep the end
-- Reply 1 (held, shared now) | 0 (not held)
-- O(log n) in the holders and waiters, except for up to 256 dead ones and 64 grants.

local TTL = tonumber(ARGV[3])
--<token.lua>
--<queue.lua>
if not met_only_own(read_lock) then
--<writable.lua>
  return 0
end
local reader = parse(ARGV[2])
if held and held.text == ARGV[1] then
  local ttl = TTL > 0 and TTL or redis.call('PTTL', L)
  if ttl <= 0 then ttl = math.min(reader.ttl, DAY) end
  local last = redis.call('GET', F)
  local token = last and string.match(last, '^%d+')
  -- The token's key may have been deleted. Before the lock is changed: this may fail.
  if not token or token == '0' then token = next_tokens('q', ttl, 1) end
  redis.call('DEL', L)
  held = nil
  write_holder(reader, ttl, token)
elseif held and held.group == 's' and redis.call('ZSCORE', L, ARGV[2]) then
  -- First: a server that is out of memory lets a script continue that has already written.
  redis.call('PEXPIREAT', L, now + math.max(TTL, redis.call('PTTL', L)))
  if TTL > 0 then redis.call('ZADD', L, 'XX', now + TTL, ARGV[2]) end
  update_group(-held.out)
else
--<writable.lua>
  return 0
end
redis.call('PEXPIRE', F, DAY)
-- The downgrade stands even if the hand-off fails; waiters get that error from their own calls.
pcall(hand_off)
drop_empty_queue()
return 1
