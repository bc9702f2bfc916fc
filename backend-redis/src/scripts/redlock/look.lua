-- The safety look of one client at one lock of one node, once a second whatever the number of its
-- waiters: says that the client is alive, passes over the dead, and tells what its pushes may have
-- missed.
--
-- ARGV  1 client   2... identities of some of its waiters
-- Reply {ms until the first in the queue should ask again, 0: now; 1 for whoever looks when more of
--        the dead have to be passed over than one step may,
--        1 when waiters of this client may be missing from the queue, else 0,
--        identity of the first in the queue if it is of this client, else '',
--        identities of this client whose turn it is...}
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 readers.

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
    -- The end of a lock that nobody gave back has told nobody.
    redis.call('PUBLISH', claim.client, claim.owner)
  end
end
if first then mark_waiters() else drop_empty_queue() end
if not own then return {is_unfinished() and 1 or 1000, missing, '', unpack(mine)} end
-- A foreign holder's release tells nobody.
local check_after = is_free and 0 or until_change()
if check_after == 0 and not is_free then check_after = 50 end
return {check_after, missing, first.text, unpack(mine)}
