-- Who holds a lock and who is first in its queue: what the steps share once a lock is contended,
-- or not exclusive.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Above every expiry and deadline in ms, below every arrival and token in us.
local BAND = '1000000000000000'
-- A process that has not looked for this long has no live waiters, in ms; it looks each second.
local SILENCE = 3000
-- The queue's own end when nobody looks any more, in ms.
local QUEUE = 5000
-- Behind the identity of an exclusive holder whose release has to look into the queue.
local MARK = '\n'
-- Dead ones passed over, and grants made, in one step at most: a script stops the whole server.
local MOST = 64
local left = MOST

local function parse(identity)
  local mode, share, ttl, process, owner =
    string.match(identity, '^([xsp])(%S*) (%d+) (%S+) (%x+) ')
  if not mode then return nil end
  local n, limit = string.match(share, '^(%d+)/(%d+)$')
  return {text = identity, mode = mode, n = tonumber(n) or 1, limit = tonumber(limit) or 0,
    ttl = tonumber(ttl), process = process, owner = owner}
end

-- Who holds: nil for nobody, {text, marked} for a string, {group = 's' or 'p', out = the sum} for a group.
local held

-- The group's own expiry is its longest member's; it goes with the last one. Told an expiry that
-- has passed, as two that end in the same ms have it, the server would delete the key by itself.
local function settle(sum)
  local last = sum < 0
    and redis.call('ZREVRANGEBYSCORE', L, '(' .. BAND, 1, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local expiry = tonumber(last) or 0
  if expiry <= now then
    redis.call('DEL', L)
    held = nil
    return
  end
  held.out = -sum
  redis.call('PEXPIREAT', L, expiry)
end

local function take_out(member)
  if redis.call('ZREM', L, member.text) == 0 then return false end
  redis.call('ZREM', L, '#' .. member.owner)
  settle(tonumber(redis.call('ZINCRBY', L, member.n, '=' .. held.group)))
  return true
end

-- Reads who holds, without group members whose time is over.
local function look_at_lock()
  local kind = redis.call('TYPE', L).ok
  if kind == 'string' then
    local text = redis.call('GET', L)
    local plain = string.match(text, '^(.+)' .. MARK .. '$')
    held = plain and parse(plain) and {text = plain, marked = true} or {text = text}
  elseif kind == 'zset' then
    local readers, permits = redis.call('ZSCORE', L, '=s'), redis.call('ZSCORE', L, '=p')
    if not (readers or permits) then foreign(L, 'is a sorted set') end
    held = {group = readers and 's' or 'p', out = -tonumber(readers or permits)}
    for _, text in ipairs(redis.call('ZRANGEBYSCORE', L, 1, now, 'LIMIT', 0, MOST)) do
      local member = parse(text)
      if not member then foreign(L, 'is a sorted set') end
      take_out(member)
    end
  elseif kind == 'none' then
    held = nil
  else
    foreign(L, 'is a ' .. kind)
  end
end

local function is_free_for(claim)
  if not held then return true end
  if not held.group or claim.mode ~= held.group then return false end
  return claim.mode == 's' or held.out + claim.n <= claim.limit
end

-- Writes down that `claim`, for which the lock is free, has it until `ttl` ms from now.
local function put(claim, ttl, token, marked)
  if claim.mode == 'x' then
    redis.call('SET', L, marked and claim.text .. MARK or claim.text, 'PX', ttl)
    held = {text = claim.text, marked = marked}
    return
  end
  held = held or {group = claim.mode}
  redis.call('ZADD', L, now + ttl, claim.text, token, '#' .. claim.owner)
  settle(tonumber(redis.call('ZINCRBY', L, -claim.n, '=' .. claim.mode)))
end

-- The first in the queue, nil when nobody waits.
local function head()
  local first = redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then return nil end
  local claim = parse(first[1])
  if not claim then foreign(Q, 'is a sorted set') end
  claim.arrival = tonumber(first[2])
  return claim
end

-- Marks the holder and the token: somebody waits.
local function announce()
  if held and held.text and not held.marked and parse(held.text) then
    redis.call('SET', L, held.text .. MARK, 'KEEPTTL')
    held.marked = true
  end
  local last = redis.call('GET', F)
  if not last then
    redis.call('SET', F, '0q', 'PX', 86400000)
  elseif string.find(last, '^%d+$') then
    redis.call('SET', F, last .. 'q', 'KEEPTTL')
  end
end

-- The first in the queue whose process lives; the dead before it are removed, and their processes too,
-- so that a look of one, should it go on, says that places are missing.
local function live_head()
  while left > 0 do
    local claim = head()
    if not claim then return nil end
    local deadline = redis.call('ZSCORE', Q, '@' .. claim.process)
    if deadline and tonumber(deadline) >= now then return claim end
    redis.call('ZREM', Q, claim.text, '@' .. claim.process)
    left = left - 1
  end
end

-- Removes a queue of nobody but processes. True if there is one left.
local function tidy()
  local last = redis.call('ZRANGE', Q, -1, -1)[1]
  if not last then return false end
  if string.sub(last, 1, 1) ~= '@' then return true end
  local first = redis.call('ZRANGE', Q, 0, 0)[1]
  if string.sub(first, 1, 1) ~= '@' then return true end
  redis.call('DEL', Q)
  return false
end

-- When the first in the queue should look again, in ms: as soon as a holder can expire. 0 for a
-- foreign holder, whose release tells nobody, and for one without an end.
local function until_change()
  if not held then return 1 end
  if held.group then
    local next = redis.call('ZRANGEBYSCORE', L, 1, '(' .. BAND, 'WITHSCORES', 'LIMIT', 0, 1)
    -- None: the server looks at its clock again at each command, and found that all have ended.
    return next[2] and math.min(1000, math.max(1, next[2] - now + 1)) or 1
  end
  if not parse(held.text) then return 0 end
  return math.min(1000, redis.call('PTTL', L) + 1)
end
