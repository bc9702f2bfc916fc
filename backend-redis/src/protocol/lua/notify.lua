-- Notifies a claim that an operator evicts it. First: what a rule or the server's state denies is denied before anything is
-- told or changed, or the next would begin while the holder is at work.
local function notify(claim)
  redis.call('ZREM', Q, '')
  redis.call('ZRANGE', Q, 0, 0)
  -- What removes a member of a group; never there.
  local never = '{' .. L .. '}:e:}:q'
  redis.call('ZINCRBY', never, 0, '')
  redis.call('DEL', never)
  redis.call('PUBLISH', claim.client, claim.owner .. ' 0')
end
