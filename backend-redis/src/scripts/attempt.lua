-- Acquires, queues, or confirms a grant: whatever comes next for one claim. Asked again, it answers
-- the same, token included.
--
-- ARGV  1 identity   2 ttl in ms   3 'try' to leave nothing behind; without it, to queue
-- Reply token, a text (granted) | 0 (busy, only after 'try') | {ms until the next look, 0: a foreign
--       holder} (waits)
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 grants.

local ME, TTL = ARGV[1], ARGV[2]

-- Nobody holds and nobody queues: no more than this, in place, since a function costs as much as a
-- command. Tokens are texts of digits: numbers cost a microsecond to write or to read, and `..`
-- rounds them. A server out of memory refuses it, but not the confirmation of a grant.
local set = string.byte(ME) == 120 and redis.pcall('SET', L, ME, 'NX', 'PX', TTL)
local token, last
if set and set.ok then
  local time = redis.call('TIME')
  local us = time[2]
  if #us < 6 then us = string.rep('0', 6 - #us) .. us end
  token = time[1] .. us
  last = redis.pcall('SET', F, token, 'KEEPTTL', 'GET')
  -- A mark makes it longer; the last quarter of an hour begins with the same digits.
  if last and #last == #token and last < token and last > string.sub(token, 1, 7) then
    return token
  end
end
--<token.lua>
if token then
  local done, answer = pcall(rising_token, token, '', last, TTL)
  if not done then
    -- The token's key is of another program.
    redis.call('DEL', L)
    error(answer, 0)
  end
  if last then
    if string.byte(last, -1) ~= 113 then return answer end
  elseif redis.call('EXISTS', Q) == 0 then
    return answer
  end
  -- Somebody may queue, and comes first.
  redis.call('DEL', L)
  redis.call('SET', F, last or answer .. 'q', 'KEEPTTL')
end
--<queue.lua>
require_clock()
local me = parse(ME)
TTL = tonumber(TTL)
read_lock()

-- Leaves the queue with the grant, which lasts the whole TTL from now.
local function confirm()
  -- First: a server out of memory lets a script go on that has written already.
  local was_queued = redis.call('ZREM', Q, ME) == 1
  local token
  if held.group then
    redis.call('ZADD', L, 'XX', now + TTL, ME)
    update_group(-held.out)
    token = string.format('%.0f', redis.call('ZSCORE', L, '#' .. me.owner) or 0)
  else
    redis.call('PEXPIRE', L, TTL)
    token = string.match(redis.call('GET', F) or '0', '^%d+')
  end
  if was_queued then
    -- A run of readers that one hand-off could not finish goes on.
    if held.group then hand_off() end
    drop_empty_queue()
  end
  -- Somebody may have deleted the token.
  if token and token ~= '0' then return token end
  return (next_token('q', TTL))
end

if held then
  if held.text == ME or (held.group == me.mode and redis.call('ZSCORE', L, ME)) then
    return confirm()
  end
end

local score = redis.call('ZSCORE', Q, ME)
if not score then
  hand_off()
  if not head() and is_free_for(me) then
    -- Those who have not confirmed yet may come back to their places.
    return grant(me, TTL, drop_empty_queue())
  end
  if ARGV[3] == 'try' then
    drop_empty_queue()
    return 0
  end
  local last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', Q, math.max(now_us, (tonumber(last) or 0) + 1), ME)
elseif tonumber(score) < 0 then
  -- Granted, and too late to confirm it: the old place.
  redis.call('ZADD', Q, -tonumber(score), ME)
end
redis.call('ZADD', Q, now + SILENCE, '@' .. me.client)
redis.call('PEXPIRE', Q, QUEUE)
if score and hand_off(ME) then return confirm() end

mark_waiters()
if is_unfinished() then return {1} end
local first = head()
return {first and first.client == me.client and until_change() or 1000}
