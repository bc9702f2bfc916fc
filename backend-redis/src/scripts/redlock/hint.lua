-- Who comes next at one node. A grant needs a majority, so nobody is given a lock that they have not
-- asked for: the next ones are told, and ask. All nodes have the same order, by arrival on clocks that
-- agree, so that a majority of them tells the same ones.
--<lock.lua>

-- Whether a waiter may be granted: the first may, and readers behind nobody but readers.
local function is_turn(text, mode)
  local first = live_head()
  if not first or first.text == text then return true end
  if mode ~= 's' or first.mode ~= 's' or text == '' then return false end
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'LIMIT', 0, MOST)) do
    if other == text then return true end
    if string.byte(other) ~= 115 then return false end
  end
  return false
end

-- Tells those whose turn it is, if the lock is free for them: no more than can be granted together.
local function hint()
  local first = live_head()
  if not first or not is_free_for(first) then return end
  redis.call('PUBLISH', first.process, first.owner)
  if first.mode ~= 's' then return end
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'LIMIT', 1, MOST)) do
    local claim = parse(text)
    if not claim or claim.mode ~= 's' then return end
    redis.call('PUBLISH', claim.process, claim.owner)
  end
end

local function enqueue(text, arrival)
  -- First: a server out of memory lets a script go on that has written already.
  redis.call('PEXPIRE', Q, QUEUE)
  redis.call('ZADD', Q, arrival, text)
  redis.call('ZADD', Q, now + SILENCE, '@' .. parse(text).process)
  redis.call('PEXPIRE', Q, QUEUE)
  announce()
end
