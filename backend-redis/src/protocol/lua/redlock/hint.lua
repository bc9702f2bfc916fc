-- The next waiters at one node. A grant needs a majority, so a node hands nothing over: it notifies the
-- next waiters, which then ask. All nodes have the same order, by arrival on clocks that agree, so that a
-- majority of them notifies the same waiters.
--<lock.lua>

-- The waiters whose turn it is once the lock is free for them, in order: the first, or a run of readers.
-- Also the first itself; nil also when there were too many dead waiters for one step.
local function next_turns()
  local first = live_head()
  if not first then return {} end
  if first.mode ~= 's' then return {first.text}, first end
  local texts = redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'LIMIT', 0, MOST)
  local readers = {}
  for _, text in ipairs(texts) do
    if string.byte(text) ~= 115 then break end
    readers[#readers + 1] = text
  end
  return readers, first
end

-- The same, but none while the lock is not free for them.
local function turns()
  local texts, first = next_turns()
  return first and is_free_for(first) and texts or {}
end

-- Notifies the waiters whose turn it is now and was not in `before`, which have been notified: each waiter
-- is notified once, regardless of how many others come before it.
local function hint(before)
  local is_notified = {}
  for _, text in ipairs(before) do is_notified[text] = true end
  for _, text in ipairs(turns()) do
    local claim = not is_notified[text] and parse(text)
    if claim then redis.call('PUBLISH', claim.client, claim.owner) end
  end
end

local function enqueue(text, arrival)
  -- First: a server out of memory lets a script continue that has written already.
  redis.call('PEXPIRE', Q, QUEUE)
  redis.call('ZADD', Q, arrival, text)
  redis.call('ZADD', Q, now + SILENCE, '@' .. parse(text).client)
  redis.call('PEXPIRE', Q, QUEUE)
  mark_waiters()
end
