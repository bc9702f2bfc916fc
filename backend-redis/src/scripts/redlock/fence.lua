-- The next token of one node: the next multiple of 16 above the last one, or what the round proposes
-- if that is larger, and for a shared grant its node's own number more, so that no two nodes ever
-- give the same. `proposal` is a text, since `..` rounds numbers. With what was there before, which has
-- a mark when somebody may queue. The key lives for an hour and `ttl` at first, so that names that are
-- used once do not fill the memory, and for a day once they are used again.
local function next_token(proposal, more, ttl)
  local token = more == '' and proposal or string.format('%.0f', proposal + more)
  local last = redis.call('SET', F, token, 'KEEPTTL', 'GET')
  -- The last quarter of an hour begins with the same digits; then the key need not be prolonged.
  if last and #last == #proposal and last < proposal and last > string.sub(proposal, 1, 7) then
    return token, last
  end
  if last then
    local number = tonumber(string.match(last, '^(%d+)q?$'))
    -- From 2^53 on, a number could be its own successor.
    if not number or number >= 9007199254740000 then
      redis.call('SET', F, last, 'KEEPTTL')
      foreign(F, 'is the text')
    end
    local above = number - number % 16 + 16
    if above > tonumber(proposal) then
      token = string.format('%.0f', above + (tonumber(more) or 0))
      redis.call('SET', F, token, 'KEEPTTL')
    end
  end
  redis.call('PEXPIRE', F, last and 86400000 or 3600000 + ttl)
  return token, last
end

-- Nobody will be given `token` again by this node, or less.
local function raise_token(token, ttl)
  local value = redis.call('GET', F)
  local last, mark = string.match(value or '0', '^(%d+)(q?)$')
  last = tonumber(last)
  if not last then foreign(F, 'is the text') end
  if last < tonumber(token) then redis.call('SET', F, token .. mark, 'KEEPTTL') end
  if not value then redis.call('PEXPIRE', F, 3600000 + ttl) end
end
