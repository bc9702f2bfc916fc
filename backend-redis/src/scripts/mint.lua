-- The beginning of every script: its keys, and the next fencing token.
--
-- KEYS  1 L, the lock's key: a string, the exclusive holder's identity, as any client's
--         `SET key value NX PX ttl` leaves it; or a sorted set, the group of readers or of permit
--         holders: identity -> expiry in ms, `#owner` -> token, `=s` or `=p` -> minus the sum of
--         what is out
--       2 {L}:q, a sorted set: identity -> arrival in us (waits) or minus that (granted, but not
--         confirmed yet); `@process` -> deadline in ms. The bands never meet.
--       3 {L}:f, a string: the last token
-- An identity is `<mode> <ttl> <process> <owner> <label>`, mode `x`, `s` or `p<n>/<limit>`; the
-- process is the channel that its claims listen to.
local L, Q, F = KEYS[1], KEYS[2], KEYS[3]

-- Ends the script: `key` was not written by this library.
local function foreign(key, what)
  error('fencelock: ' .. key .. ' ' .. what .. ' of another program')
end

-- max(last + 1, server time in us): it rises also when the last one was lost. The key lives for a
-- day, prolonged when a token crosses a half day. Numbers, not texts, go to redis.call: `..` would
-- round them.
local function mint()
  local time = redis.call('TIME')
  local token = time[1] * 1000000 + time[2]
  local last = redis.call('SET', F, token, 'KEEPTTL', 'GET')
  if not last then
    redis.call('PEXPIRE', F, 86400000)
    return token
  end
  local number = tonumber(last)
  -- From 2^53 on, a token would be its own successor.
  if not (number and number < 9007199254740991) then
    redis.call('SET', F, last, 'KEEPTTL')
    foreign(F, 'is the text')
  end
  if number >= token then
    token = number + 1
    redis.call('SET', F, token, 'KEEPTTL')
  end
  if token - number > token % 43200000000 then
    redis.call('PEXPIRE', F, 86400000)
  end
  return token
end
