-- Hand-off of a lock on one server, in the order of its queue.
--<foreign.lua>
--<lock.lua>

-- How long a hand-off waits for its confirmation, in ms, if the claim's TTL is not shorter.
local CLAIM = 2000

-- Grants the lock to `claim`, for which it is free, until `ttl` ms from now; `marked` when there may be
-- waiters.
local function grant(claim, ttl, marked)
  local token = next_tokens(marked and 'q' or '', ttl, claim.tokens)
  write_holder(claim, ttl, token, marked)
  return token
end

-- Hands the lock to the first live waiters for which it is free, in order. They stay in the queue until
-- they confirm, so that a late one keeps its place. No grant outlasts the deadline of its client, so
-- that a dead one is granted at most once. `asking` reads its grant from this script's reply and is not
-- notified by a push. Returns true if `asking` was granted; and the first waiter for which the lock is
-- not free, if one was reached.
local function hand_off(asking)
  local granted = false
  while left > 0 do
    local claim, deadline = live_head()
    if not claim then break end
    if not is_free_for(claim) then return granted, claim end
    left = left - 1
    local token = grant(claim, math.min(CLAIM, claim.ttl, deadline - now + 1), true)
    redis.call('ZADD', Q, -claim.arrival, claim.text)
    if claim.text == asking then
      granted = true
    else
      redis.call('PUBLISH', claim.client, claim.owner .. ' ' .. token)
    end
    if claim.mode == 'x' then break end
  end
  return granted
end
