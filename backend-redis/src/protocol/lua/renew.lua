-- Renews a held lock, never one that is not held.
--
-- ARGV  1 identity   2 ttl in ms, 0 only to check whether it is held
--       3 'old' when the token's key may be close to its expiry; else '', and KEYS may end after L
-- Reply 1 (extended) | 0 (not held)
-- O(log n) in the holders.

local ME, TTL = ARGV[1], tonumber(ARGV[2])
local is_exclusive = string.byte(ME) == 120
local value
if is_exclusive then value = redis.pcall('GET', L) else value = redis.pcall('ZSCORE', L, ME) end
-- Another type: not held. After any other error it is unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
if is_exclusive then
  if value ~= ME and value ~= ME .. '\n' then
--<writable.lua>
    return 0
  end
  if TTL > 0 then redis.call('PEXPIRE', L, TTL) end
else
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if type(value) ~= 'string' or tonumber(value) <= now then
--<writable.lua>
    return 0
  end
  if TTL > 0 then
    local last = redis.call('ZREVRANGEBYSCORE', L, '(1000000000000000', 1, 'WITHSCORES', 'LIMIT', 0, 1)
    -- First: a server that is out of memory lets a script continue that has already written.
    redis.call('PEXPIREAT', L, math.max(now + TTL, tonumber(last[2])))
    redis.call('ZADD', L, 'XX', now + TTL, ME)
  end
end
if ARGV[3] == 'old' then redis.call('PEXPIRE', F, 86400000) end
return 1
