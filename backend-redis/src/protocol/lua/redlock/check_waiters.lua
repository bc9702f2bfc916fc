-- The periodic check of one client's waiters for one lock at one node, once a second regardless of their
-- number: records that the client is alive, passes over dead waiters, and reports what lost pushes
-- announced.
--
-- ARGV  1 the client   2... identities of some of its waiters
-- Reply {ms until the first in the queue should ask again, 0: now; 1 for any client when there are more
--        dead waiters than one step may pass over,
--        1 when waiters of this client may be missing from the queue, else 0,
--        identity of the first in the queue if it is this client's, else '',
--        identities of this client's waiters whose turn it is...}
-- O(log n) in the holders and waiters, plus up to 256 dead ones and 64 readers.

--<foreign.lua>
--<hint.lua>
read_lock()
--<heartbeat.lua>
for i = 2, #ARGV do
  if not redis.call('ZSCORE', Q, ARGV[i]) then missing = 1 end
end
local texts, first = next_turns()
local own = first and first.client == CLIENT
local is_free = first and is_free_for(first)
local mine = {}
for i, text in ipairs(is_free and texts or {}) do
  local claim = parse(text)
  if claim and claim.client == CLIENT then
    mine[#mine + 1] = text
  elseif claim and (i == 1 or (own and not held)) then
    -- A lock that expired has notified no waiter.
    redis.call('PUBLISH', claim.client, claim.owner)
  end
end
if first then mark_waiters() else drop_empty_queue() end
if not own then return {is_unfinished() and 1 or 1000, missing, '', unpack(mine)} end
-- A foreign holder's release notifies no waiter.
local check_after = is_free and 0 or until_change()
if check_after == 0 and not is_free then check_after = 50 end
return {check_after, missing, first.text, unpack(mine)}
