-- What an operator evicts must not come back, by a holder that reinstalls it on a node that never had it, or by a
-- late vote. A node remembers an eviction for longer than its holder may renew, also one of what it does not have,
-- and extends it no more: once a majority remembers it, no extension succeeds.
--
-- The key of a round has an empty string. Its name is covered by the access rule of the queues, and is no lock's
-- queue, since the names of locks have no braces. It does not tell the owner: who may list names may not read values.
local function eviction_of(identity)
  local round, owner = string.match(identity, '^(%a%d%S*) %d+ %S+ (%x+) ')
  -- A waiter's identity has no round, and nothing to come back.
  return round and '{' .. L .. '}:e:' .. redis.sha1hex(round .. owner) .. '}:q'
end

local function remember_eviction(claim)
  local key = eviction_of(claim.text)
  if not key then return end
  -- Never there: where a rule denies to remove, nothing is remembered either.
  redis.call('DEL', '{' .. L .. '}:e:}:q')
  redis.call('SET', key, '', 'PX', 2 * math.max(1, math.min(claim.ttl, DAY)))
end

-- Not where an access rule or a server denies the question: the holder would lose its lock in a rolling restart.
local function is_evicted(identity)
  local key = eviction_of(identity)
  return key and redis.pcall('EXISTS', key) == 1
end
