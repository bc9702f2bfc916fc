-- The safety look of one process at one lock, once a second whatever the number of its waiters:
-- says that the process is alive, passes over the dead, grants what is free, and tells what its
-- pushes may have missed.
--
-- ARGV  1 process   2... identities of some of its waiters, the first one the oldest
-- Reply {ms until the next look of the first in the queue, 0: a foreign holder,
--        1 when waiters of this process may be missing from the queue, else 0,
--        identity of the first in the queue if it is of this process, else '',
--        identities of this process that hold or are granted...}
-- O(log n) in the holders and waiters, but for up to 64 dead ones or grants.

--<mint.lua>
--<queue.lua>
look_at_lock()
--<alive.lua>
local dead = redis.call('ZRANGEBYSCORE', Q, 1, now - 1, 'LIMIT', 0, MOST)
if dead[1] then redis.call('ZREM', Q, unpack(dead)) end

local found = {}
for _, text in ipairs(redis.call('ZRANGEBYSCORE', Q, '-inf', '(0', 'LIMIT', 0, MOST)) do
  local claim = parse(text)
  if not claim then foreign(Q, 'is a sorted set') end
  if claim.process == PROCESS then
    found[#found + 1] = text
  elseif not redis.call('ZSCORE', Q, '@' .. claim.process) then
    redis.call('ZREM', Q, text)
  end
end
serve()
tidy()

for i = 2, #ARGV do
  if held and held.group and redis.call('ZSCORE', L, ARGV[i]) then
    found[#found + 1] = ARGV[i]
  elseif not redis.call('ZSCORE', Q, ARGV[i]) and not (held and held.text == ARGV[i]) then
    missing = 1
  end
end
if held and held.text then
  local holder = parse(held.text)
  if holder and holder.process == PROCESS then found[#found + 1] = held.text end
end
local first = head()
if first then announce() end
local own = first and first.process == PROCESS
return {own and until_change() or 1000, missing, own and first.text or '', unpack(found)}
