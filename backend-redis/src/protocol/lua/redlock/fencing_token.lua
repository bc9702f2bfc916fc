-- The next fencing token of one node: the next multiple of 64 above the last one, or the round's proposal
-- if that is larger; for a shared grant plus the node's own number, so that no two nodes ever give the
-- same. `proposal` is a string, since `..` rounds numbers. Also returns the previous value, which has a
-- mark when the queue may have waiters. The key lives for an hour and `ttl` at first, so that names used
-- once do not fill the memory, and for a day once they are used again.
local function next_token(proposal, more, ttl)
  local token = more == '' and proposal or string.format('%.0f', proposal + more)
  local last = redis.call('SET', F, token, 'KEEPTTL', 'GET')
  -- Tokens of the same quarter of an hour share their first digits; then the key need not be prolonged.
  if last and #last == #proposal and last < proposal and last > string.sub(proposal, 1, 7) then
    return token, last
  end
  if last then
    local number = tonumber(string.match(last, '^(%d+)q?$'))
    -- From 2^53 on, adding to a number may not change it.
    if not number or number >= 9007199254740000 then
      redis.call('SET', F, last, 'KEEPTTL')
      foreign(F, 'is the text')
    end
    local above = number - number % 64 + 64
    if above > tonumber(proposal) then
      token = string.format('%.0f', above + (tonumber(more) or 0))
      redis.call('SET', F, token, 'KEEPTTL')
    end
  end
  redis.call('PEXPIRE', F, last and 86400000 or 3600000 + ttl)
  return token, last
end

-- Ensures that this node never again gives `token` or a smaller one.
local function raise_token(token, ttl)
  local value = redis.call('GET', F)
  local last, mark = string.match(value or '0', '^(%d+)(q?)$')
  last = tonumber(last)
  if not last then foreign(F, 'is the text') end
  if last < tonumber(token) then redis.call('SET', F, token .. mark, 'KEEPTTL') end
  if not value then redis.call('PEXPIRE', F, 3600000 + ttl) end
end
