-- Notifies a claim that an operator evicts it. First: what a rule or the server's state denies is denied before anything is
-- told or changed, or the next would begin while the holder is at work.
-- `must`: nobody knows whether a client of another prefix may be notified, or is one.
local function notify(claim, must)
  redis.call('ZREM', Q, '')
  redis.call('ZRANGE', Q, 0, 0)
  redis[must and 'call' or 'pcall']('PUBLISH', claim.client, claim.owner .. ' 0')
end
