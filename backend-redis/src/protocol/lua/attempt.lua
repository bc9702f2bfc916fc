-- Acquires, queues, or confirms a grant, whichever is next for one claim. A repeated call has the same
-- reply, including the token.
--
-- ARGV  1 identity   2 ttl in ms   3 'try' to leave nothing behind; without it, to queue
-- Reply the last token of the grant, a text (granted) | 0 (busy, only after 'try') | {ms until the next check, 0: a foreign
--       holder} (waits)
-- O(log n) in the holders and waiters, except for up to 256 dead ones and 64 grants.

local ME, TTL = ARGV[1], ARGV[2]

-- Without holders and waiters this is all, so that parts which it does not need come after it: to
-- define a function costs as much as a command.
-- A server that is out of memory refuses this, but not the confirmation of a grant.
-- One that reserves tokens goes the long way.
local set = string.byte(ME) == 120 and string.byte(ME, 2) == 32
  and redis.pcall('SET', L, ME, 'NX', 'PX', TTL)
--<token.lua>
if set and set.ok then
  local done, token, last = pcall(next_token, '', TTL)
  if not done then
    -- Another program wrote the token's key, and this is the error.
    redis.call('DEL', L)
    error(token, 0)
  end
  if last then
    if string.byte(last, -1) ~= 113 then return token end
  elseif redis.call('EXISTS', Q) == 0 then
    return token
  end
  -- There may be waiters, which come first.
  redis.call('DEL', L)
  redis.call('SET', F, last or token .. 'q', 'KEEPTTL')
end
--<queue.lua>
require_clock()
local me = parse(ME)
TTL = tonumber(TTL)
read_lock()

-- Confirms the grant, which lasts the whole TTL from now, and leaves the queue.
local function confirm()
  -- First: a server that is out of memory lets a script continue that has already written.
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
    -- Continues a run of readers that one hand-off could not finish.
    if held.group then hand_off() end
    drop_empty_queue()
  end
  -- The token's key may have been deleted.
  if token and token ~= '0' then return token end
  return (next_tokens('q', TTL, me.tokens))
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
    -- Waiters that have not confirmed yet may return to their places.
    return grant(me, TTL, drop_empty_queue())
  end
  if ARGV[3] == 'try' then
--<writable.lua>
    drop_empty_queue()
    return 0
  end
  local last = redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', Q, math.max(now_us, (tonumber(last) or 0) + 1), ME)
elseif tonumber(score) < 0 then
  -- Granted, but confirmed too late: back to the old place.
  redis.call('ZADD', Q, -tonumber(score), ME)
end
redis.call('ZADD', Q, now + SILENCE, '@' .. me.client)
redis.call('PEXPIRE', Q, QUEUE)
if score and hand_off(ME) then return confirm() end

mark_waiters()
if is_unfinished() then return {1} end
local first = head()
return {first and first.client == me.client and until_change() or 1000}
