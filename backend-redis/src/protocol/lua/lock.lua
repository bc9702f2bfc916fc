-- The holders of a lock and its queue: shared by the steps, for locks that are contended or not
-- exclusive.

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Above every expiry and deadline in ms, below every arrival and token in us.
local BAND = '1000000000000000'
-- The waiters of a client that has not checked for this long are dead, in ms; it checks each second.
local SILENCE = 3000
-- The life of a queue after the last check, in ms: on a busy server, checks that are late by several
-- seconds still find the places of their waiters.
local QUEUE = 10000
-- Follows the identity of an exclusive holder whose release has to read the queue.
local MARK = '\n'
-- The longest TTL of a claim, in ms.
local DAY = 86400000
-- Limits of one step on grants and on removed dead waiters: a script blocks the whole server. A step
-- that reached one of them asks to be repeated at once, so that many dead waiters cost the live ones
-- many short steps, not a second each.
local MOST, DEAD = 64, 256
local left, dead_left = MOST, DEAD

local function is_unfinished()
  return left <= 0 or dead_left <= 0
end

-- Refuses a clock that was never set, before September 2001: arrivals would overlap with deadlines.
-- Besides, setting it will be a jump that ends all leases.
local function require_clock()
  if now_us < tonumber(BAND) then
    error('fencelock: the clock of the server shows ' .. time[1] .. ' s after 1970, and must be set', 0)
  end
end

local function parse(identity)
  local mode, share, ttl, client, owner =
    string.match(identity, '^([xsp])(%S*) (%d+) (%S+) (%x+) ')
  if not mode then return nil end
  local n, limit
  if mode == 'p' then n, limit = string.match(share, '^(%d+)/(%d+)$') end
  return {text = identity, mode = mode, n = tonumber(n) or 1, limit = tonumber(limit) or 0,
    ttl = tonumber(ttl), client = client, owner = owner,
    tokens = tonumber(string.match(share, '^%+(%d+)$')) or 1}
end

-- The holder: nil if the lock is free; {text, marked, claim} for a string, without a claim if it is
-- foreign; {group = 's' or 'p', out = the sum} for a group.
local held

-- Sets a group's expiry to that of its longest member; deletes it after the last one. An expiry in the
-- past, such as when two end in the same ms, would make the server delete the key by itself.
local function update_group(sum)
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

local function remove_member(member)
  if redis.call('ZREM', L, member.text) == 0 then return false end
  redis.call('ZREM', L, '#' .. member.owner)
  update_group(tonumber(redis.call('ZINCRBY', L, member.n, '=' .. held.group)))
  return true
end

-- Reads the holder, and removes expired members of a group.
local function read_lock()
  local kind = redis.call('TYPE', L).ok
  if kind == 'string' then
    local text = redis.call('GET', L)
    local plain = string.match(text, '^(.+)' .. MARK .. '$')
    local claim = plain and parse(plain)
    held = claim and {text = plain, marked = true, claim = claim} or {text = text, claim = parse(text)}
  elseif kind == 'zset' then
    local readers, permits = redis.call('ZSCORE', L, '=s'), redis.call('ZSCORE', L, '=p')
    if not (readers or permits) then foreign(L, 'is a sorted set') end
    held = {group = readers and 's' or 'p', out = -tonumber(readers or permits)}
    for _, text in ipairs(redis.call('ZRANGEBYSCORE', L, 1, now, 'LIMIT', 0, MOST)) do
      local member = parse(text)
      if not member then foreign(L, 'is a sorted set') end
      remove_member(member)
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

-- Writes `claim`, for which the lock is free, as a holder until `ttl` ms from now.
local function write_holder(claim, ttl, token, marked)
  if claim.mode == 'x' then
    redis.call('SET', L, marked and claim.text .. MARK or claim.text, 'PX', ttl)
    held = {text = claim.text, marked = marked, claim = claim}
    return
  end
  held = held or {group = claim.mode}
  redis.call('ZADD', L, now + ttl, claim.text, token, '#' .. claim.owner)
  update_group(tonumber(redis.call('ZINCRBY', L, -claim.n, '=' .. claim.mode)))
end

-- The first in the queue; nil when it is empty.
local function head()
  local first = redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then return nil end
  local claim = parse(first[1])
  if not claim then foreign(Q, 'is a sorted set') end
  claim.arrival = tonumber(first[2])
  return claim
end

-- Marks the holder and the token: there are waiters.
local function mark_waiters()
  if held and held.claim and not held.marked then
    redis.call('SET', L, held.text .. MARK, 'KEEPTTL')
    held.marked = true
  end
  local last = redis.call('GET', F)
  if not last then
    redis.call('SET', F, '0q', 'PX', 3600000)
  elseif string.find(last, '^%d+$') then
    redis.call('SET', F, last .. 'q', 'KEEPTTL')
  end
end

-- The deadline of `client`, in ms; nil for a dead one.
local function alive_until(client)
  local deadline = tonumber(redis.call('ZSCORE', Q, '@' .. client) or 0)
  return deadline >= now and deadline or nil
end

-- Removes dead waiters at the head of the queue, in runs that become longer, and their clients, so
-- that a client that resumes learns from its next check that places are missing.
local function remove_dead_waiters()
  local is_dead, length = {}, 4
  while dead_left > 0 do
    length = math.min(2 * length, dead_left)
    local gone, living = {}, nil
    for _, text in ipairs(redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'LIMIT', 0, length)) do
      local client = string.match(text, '^[xsp]%S* %d+ (%S+) ')
      if not client then foreign(Q, 'is a sorted set') end
      if not is_dead[client] then
        living = alive_until(client)
        if living then break end
        is_dead[client] = true
        gone[#gone + 1] = '@' .. client
      end
      gone[#gone + 1] = text
      dead_left = dead_left - 1
    end
    if gone[1] then redis.call('ZREM', Q, unpack(gone)) end
    if living or not gone[1] then return end
  end
end

-- The first in the queue whose client is live, and that client's deadline. nil when the queue is empty,
-- and when there were too many dead waiters for one step.
local function live_head()
  local claim = head()
  local deadline = claim and alive_until(claim.client)
  if claim and not deadline then
    remove_dead_waiters()
    if dead_left <= 0 then return nil end
    claim = head()
    deadline = claim and alive_until(claim.client)
  end
  return claim, deadline
end

-- Removes a queue without waiters. True if there are waiters.
local function drop_empty_queue()
  local last = redis.call('ZRANGE', Q, -1, -1)[1]
  if not last then return false end
  if string.sub(last, 1, 1) ~= '@' then return true end
  local first = redis.call('ZRANGE', Q, 0, 0)[1]
  if string.sub(first, 1, 1) ~= '@' then return true end
  redis.call('DEL', Q)
  return false
end

-- When the first in the queue should check again, in ms: as soon as a holder can expire. 0 for a
-- foreign holder, whose release notifies no waiter.
-- A holder of ours without an expiry, such as after a restore or PERSIST, is given the one that it
-- should have: a live holder renews it, and a dead one would hold for ever.
local function until_change()
  if not held then return 1 end
  if held.group then
    local next = redis.call('ZRANGEBYSCORE', L, 1, '(' .. BAND, 'WITHSCORES', 'LIMIT', 0, 1)
    if next[2] then return math.min(1000, math.max(1, next[2] - now + 1)) end
    update_group(-held.out)
    return 1
  end
  if not held.claim then return 0 end
  local ends = redis.call('PTTL', L)
  if ends == -1 then
    ends = math.max(1, math.min(held.claim.ttl, DAY))
    redis.call('PEXPIRE', L, ends)
  end
  return math.min(1000, math.max(0, ends) + 1)
end
