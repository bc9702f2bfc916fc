-- One node's part of an extension: prolongs what is held here, and plants it anew where it was lost
-- with the node's data.
--
-- KEYS  4 the node's marker
-- ARGV  1 the marker's text as the client knows it   2 the round's identity   3 ttl in ms, 0 to ask only
--       whether it is still there   4 the grant's token
--       5 'plant' on a node that never had it in this life: else what a person took away would come back
-- Reply 1 (it is held here) | 0 (not) | -1 (not the node that the client knows)
-- O(log n) in the holders.

if redis.call('GET', KEYS[4]) ~= ARGV[1] then return -1 end
local ME, TTL, TOKEN = ARGV[2], tonumber(ARGV[3]), ARGV[4]
--<foreign.lua>
--<fencing_token.lua>

-- What an exclusive holder has is a text: no more than this.
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
if not met_only_own(read_lock) then return 0 end
local is_mine = held and held.group == me.mode and redis.call('ZSCORE', L, ME)
if TTL == 0 then return is_mine and 1 or 0 end
if is_mine then
  -- First: a server out of memory lets a script go on that has written already.
  redis.call('PEXPIRE', L, TTL)
  redis.call('ZADD', L, 'XX', now + TTL, ME)
  update_group(-held.out)
elseif ARGV[5] == 'plant' and is_free_for(me) then
  -- Marked when somebody may queue: the claim itself may, from when this node did not vote for it.
  write_holder(me, TTL, TOKEN, redis.call('EXISTS', Q) == 1)
else
  return 0
end
raise_token(TOKEN, TTL)
return 1
