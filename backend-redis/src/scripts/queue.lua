-- How one server hands a lock over, in the order of its queue.
--<lock.lua>

-- How long a hand-off waits for its confirmation, in ms, if the lock's own TTL is not shorter.
local CLAIM = 2000

-- Gives the lock to `claim`, for which it is free, until `ttl` ms from now; `marked` when somebody
-- may queue.
local function grant(claim, ttl, marked)
  local token = next_token(marked and 'q' or '', ttl)
  write_holder(claim, ttl, token, marked)
  return token
end

-- Hands the lock to the first live waiters whom it is free for, in order. They stay in the queue
-- until they confirm, so that one who is late keeps the place. No grant outlasts what is known of its
-- client, so that a dead one is granted once at most. `asking` reads its grant from this script's
-- answer and is not told by a push. True if `asking` was granted; and the first for whom it is not
-- free, if it came to one.
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
