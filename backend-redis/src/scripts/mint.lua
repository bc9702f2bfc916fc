-- The beginning of every script: its keys, and the next fencing token.
--
-- KEYS  1 L, the lock's key: a string, the exclusive holder's identity, as any client's
--         `SET key value NX PX ttl` leaves it; or a sorted set, the group of readers or of permit
--         holders: identity -> expiry in ms, `#owner` -> token, `=s` or `=p` -> minus the sum of
--         what is out
--       2 {L}:q, a sorted set: identity -> arrival in us (waits) or minus that (granted, but not
--         confirmed yet); `@process` -> deadline in ms. The bands never meet.
--       3 {L}:f, a string: the last token, with `q` behind it while somebody may queue
-- Nobody looks whether there is a queue before taking a free lock, or after giving it back: there
-- are marks for that. A waiter marks the holder's identity at L by a line's end behind it, and the token
-- by a `q`.
-- A mark that is left behind costs one longer step; one that is missing, until the next look, a
-- waiter's place or a second, never exclusion.
-- An identity is `<mode> <ttl> <process> <owner> <label>`, mode `x`, `s` or `p<n>/<limit>`; the
-- process is the channel that its claims listen to.
local L, Q, F = KEYS[1], KEYS[2], KEYS[3]

-- Ends the script: `key` was not written by this library.
local function foreign(key, what)
  error('fencelock: ' .. key .. ' ' .. what .. ' of another program')
end

-- max(last + 1, server time in us): it rises also when the last one was lost. The key lives for a
-- day, prolonged when a token is not of the same three hours as the last one. Tokens are texts of
-- digits: numbers cost a microsecond to write or to read, and `..` rounds them.
--
-- Writes `mark` behind it. Second: the text that was there.
local function mint(mark)
  local time = redis.call('TIME')
  local us = time[2]
  local token = time[1] .. string.rep('0', 6 - #us) .. us
  local last = redis.call('SET', F, token .. mark, 'KEEPTTL', 'GET')
  if last and last < token and #last - #token < 2 and string.sub(last, 1, 6) == string.sub(token, 1, 6) then
    return token, last
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
  redis.call('PEXPIRE', F, 86400000)
  return token, last
end
