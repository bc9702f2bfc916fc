-- The next fencing token.
--<foreign.lua>

-- What the token becomes, `last` having been at F before `token` and `mark` were put there:
-- max(last + 1, server time in us), which rises also when the last one was lost. The key lives for an
-- hour and the claim's `ttl` at first, so that names that are used once do not fill the memory, and for
-- a day from the first token on that is not of the same quarter of an hour as the last one.
local function rising_token(token, mark, last, ttl)
  if type(last) == 'table' then error(last.err, 0) end
  if last and last < token and #last - #token < 2 and last > string.sub(token, 1, 7) then
    return token
  end
  if last then
    local number = tonumber(string.match(last, '^(%d+)q?$'))
    -- From 2^53 on, a token would be its own successor.
    if not number or number >= 9007199254740991 then
      redis.call('SET', F, last, 'KEEPTTL')
      foreign(F, 'is the text')
    end
    if number >= tonumber(token) then
      token = string.format('%.0f', number + 1)
      redis.call('SET', F, token .. mark, 'KEEPTTL')
    end
  end
  redis.call('PEXPIRE', F, last and 86400000 or 3600000 + ttl)
  return token
end

local function next_token(mark, ttl)
  local time = redis.call('TIME')
  local us = time[2]
  local token = time[1] .. string.rep('0', 6 - #us) .. us
  return rising_token(token, mark, redis.call('SET', F, token .. mark, 'KEEPTTL', 'GET'), ttl)
end
