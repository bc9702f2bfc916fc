-- The next fencing token.

-- The next token, written to F with `mark`, and what was there before:
-- max(last + 1, server time in us), which rises also when the last one was lost. The key first lives
-- for an hour and the claim's `ttl`, so that names that are used once do not fill the memory, and for
-- a day once a token is not of the same quarter of an hour as the last one.
-- Tokens are texts of digits: numbers cost a microsecond to format or to parse, and `..` rounds them.
local function next_token(mark, ttl)
  local time = redis.call('TIME')
  local us = time[2]
  if #us < 6 then us = string.rep('0', 6 - #us) .. us end
  local token = time[1] .. us
  local last = redis.call('SET', F, token .. mark, 'KEEPTTL', 'GET')
  -- A mark makes it longer; the last quarter of an hour begins with the same digits.
  if last and last < token and #last - #token < 2 and last > string.sub(token, 1, 7) then
    return token, last
  end
  if last then
    local number = tonumber(string.match(last, '^(%d+)q?$'))
    -- From 2^53 on, a token would be its own successor.
    if not number or number >= 9007199254740991 then
      redis.call('SET', F, last, 'KEEPTTL')
      error('fencelock: ' .. F .. ' is the text of another program')
    end
    if number >= tonumber(token) then
      token = string.format('%.0f', number + 1)
      redis.call('SET', F, token .. mark, 'KEEPTTL')
    end
  end
  redis.call('PEXPIRE', F, last and 86400000 or 3600000 + ttl)
  return token, last
end

-- The last of the next `tokens`, which are one after the other. F has the last one, so that every
-- later token is above all of them.
local function next_tokens(mark, ttl, tokens)
  local token, last = next_token(mark, ttl)
  if tokens == 1 then return token, last end
  local top = string.format('%.0f', tonumber(token) + tokens - 1)
  redis.call('SET', F, top .. mark, 'KEEPTTL')
  return top, last
end
