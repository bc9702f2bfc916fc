-- One node's part of an extension: prolongs what is held here, and reinstalls it where it was lost with
-- the node's data.
--
-- KEYS  4 the node's incarnation record
-- ARGV  1 the record's text as the client knows it   2 the round's identity   3 ttl in ms, 0 to ask only
--       whether it is still there   4 the grant's fencing token
--       5 'plant' to reinstall it, on a node that never had it in this incarnation: elsewhere an operator
--       may have removed it
-- Reply 1 (held here) | 0 (not held here) | -1 (not the node that the client knows)
-- O(log n) in the holders.

if redis.call('GET', KEYS[4]) ~= ARGV[1] then return -1 end
local ME, TTL, TOKEN = ARGV[2], tonumber(ARGV[3]), ARGV[4]
--<foreign.lua>
--<eviction.lua>
--<fencing_token.lua>

if is_evicted(ME) then return 0 end
-- An exclusive holder has a string: the fast path.
local value = redis.pcall('GET', L)
if value == ME or value == ME .. '\n' then
  if TTL > 0 then
    redis.call('PEXPIRE', L, TTL)
    raise_token(TOKEN, TTL)
  end
  return 1
elseif type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
--<lock.lua>
local me = parse(ME)
local is_own = met_only_own(read_lock)
local is_mine = is_own and held and held.group == me.mode and redis.call('ZSCORE', L, ME)
if is_mine and TTL == 0 then return 1 end
if is_mine then
  -- First: a server out of memory lets a script continue that has written already.
  redis.call('PEXPIRE', L, TTL)
  redis.call('ZADD', L, 'XX', now + TTL, ME)
  update_group(-held.out)
elseif is_own and TTL > 0 and ARGV[5] == 'plant' and is_free_for(me)
  -- An earlier round of a reader's is released first, and removes the owner.
  and not (held and redis.call('ZSCORE', L, '#' .. me.owner)) then
  -- Marked when the queue may have waiters: the claim itself may be one, since this node did not vote for
  -- it.
  write_holder(me, TTL, TOKEN, redis.call('EXISTS', Q) == 1)
else
  --<writable.lua>
  return 0
end
raise_token(TOKEN, TTL)
return 1
