-- Notifies a claim that an operator evicts it. First: what a rule or the server's state denies is denied before anything is
-- told or changed, or the next would begin while the holder is at work.
local function notify(claim)
  redis.call('ZREM', Q, '')
  redis.call('ZRANGE', Q, 0, 0)
  redis.call('PUBLISH', claim.client, claim.owner .. ' 0')
end
