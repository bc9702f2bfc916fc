-- The safety look of one client at one lock, once a second whatever the number of its waiters:
-- says that the client is alive, passes over the dead, grants what is free, and tells what its
-- pushes may have missed.
--
-- ARGV  1 client   2... identities of some of its waiters, the first one the oldest
-- Reply {ms until the next look of the first in the queue, 0: a foreign holder; 1 for whoever looks
--        when more of the dead have to be passed over than one step may,
--        1 when waiters of this client may be missing from the queue, else 0,
--        identity of the first in the queue if it is of this client, else '',
--        identities of this client that hold or are granted...}
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 grants.

--<token.lua>
--<queue.lua>
read_lock()
--<heartbeat.lua>
local found = {}
-- Below the deadlines of those who live there are only the dead, and whom it was granted to.
local lowest = redis.call('ZRANGE', Q, 0, 0, 'WITHSCORES')[2]
if lowest and tonumber(lowest) < now then
  local dead = redis.call('ZRANGEBYSCORE', Q, 1, now - 1, 'LIMIT', 0, MOST)
  if dead[1] then redis.call('ZREM', Q, unpack(dead)) end
  for _, text in ipairs(redis.call('ZRANGEBYSCORE', Q, '-inf', '(0', 'LIMIT', 0, MOST)) do
    local claim = parse(text)
    if not claim then foreign(Q, 'is a sorted set') end
    if claim.client == CLIENT then
      found[#found + 1] = text
    elseif not redis.call('ZSCORE', Q, '@' .. claim.client) then
      redis.call('ZREM', Q, text)
    end
  end
end
local _, first = hand_off()
if not first and drop_empty_queue() then first = head() end

for i = 2, #ARGV do
  if held and held.group and redis.call('ZSCORE', L, ARGV[i]) then
    found[#found + 1] = ARGV[i]
  elseif not redis.call('ZSCORE', Q, ARGV[i]) and not (held and held.text == ARGV[i]) then
    missing = 1
  end
end
if held and held.claim and held.claim.client == CLIENT then found[#found + 1] = held.text end
if first then mark_waiters() end
local own = first and first.client == CLIENT
local check_after = is_unfinished() and 1 or own and until_change() or 1000
return {check_after, missing, own and first.text or '', unpack(found)}
