-- What an operator evicts must not come back: by a holder that reinstalls it on a node that never had it, or by
-- a vote that arrives late. A node remembers an eviction for longer than its holder may renew, also one of
-- what it does not have: once a majority remembers it, no extension succeeds.
--
-- The key is a string: the round's identity. Its name is covered by the access rule of the queues, and is no
-- lock's queue, since the names of locks have no braces.
local function eviction_of(owner)
  return '{' .. L .. '}:e:' .. owner .. '}:q'
end

local function remember_eviction(claim)
  -- A waiter's identity has no round, and nothing to come back.
  if not string.find(claim.text, '^%a%d') then return end
  redis.call('SET', eviction_of(claim.owner), claim.text, 'PX', 2 * claim.ttl)
end

local function is_evicted(identity)
  return redis.call('GET', eviction_of(string.match(identity, '^%S+ %d+ %S+ (%x+) '))) == identity
end
