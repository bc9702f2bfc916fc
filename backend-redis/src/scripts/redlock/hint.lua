-- Who comes next at one node. A grant needs a majority, so nobody is given a lock that they have not
-- asked for: the next ones are told, and ask. All nodes have the same order, by arrival on clocks that
-- agree, so that a majority of them tells the same ones.
--<lock.lua>

-- The waiters whose turn it is as soon as the lock is free for them, in order: the first, or a run of
-- readers. And the first; nil also when there were too many dead for one step.
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

-- The same, nobody while the lock is not free for them.
local function turns()
  local texts, first = next_turns()
  return first and is_free_for(first) and texts or {}
end

-- Tells those whose turn has come since it was the turn of `before`, who were told then: each waiter is
-- told once, however many others come before it.
local function hint(before)
  local is_told = {}
  for _, text in ipairs(before) do is_told[text] = true end
  for _, text in ipairs(turns()) do
    local claim = not is_told[text] and parse(text)
    if claim then redis.call('PUBLISH', claim.client, claim.owner) end
  end
end

local function enqueue(text, arrival)
  -- First: a server out of memory lets a script go on that has written already.
  redis.call('PEXPIRE', Q, QUEUE)
  redis.call('ZADD', Q, arrival, text)
  redis.call('ZADD', Q, now + SILENCE, '@' .. parse(text).client)
  redis.call('PEXPIRE', Q, QUEUE)
  mark_waiters()
end
