-- The safety look of one process at one lock of one node, once a second whatever the number of its
-- waiters: says that the process is alive, passes over the dead, and tells what its pushes may have
-- missed.
--
-- ARGV  1 process   2... identities of some of its waiters
-- Reply {ms until the first in the queue should ask again, 0: now; 1 for whoever looks when more of
--        the dead have to be passed over than one step may,
--        1 when waiters of this process may be missing from the queue, else 0,
--        identity of the first in the queue if it is of this process, else '',
--        identities of this process whose turn it is...}
-- O(log n) in the holders and waiters, but for up to 256 dead ones and 64 readers.

--<foreign.lua>
--<hint.lua>
look_at_lock()
--<alive.lua>
for i = 2, #ARGV do
  if not redis.call('ZSCORE', Q, ARGV[i]) then missing = 1 end
end
local texts, first = next_turns()
local own = first and first.process == PROCESS
local is_free = first and is_free_for(first)
local mine = {}
for i, text in ipairs(is_free and texts or {}) do
  local claim = parse(text)
  if claim and claim.process == PROCESS then
    mine[#mine + 1] = text
  elseif claim and (i == 1 or (own and not held)) then
    -- The end of a lock that nobody gave back has told nobody.
    redis.call('PUBLISH', claim.process, claim.owner)
  end
end
if first then announce() else tidy() end
if not own then return {is_unfinished() and 1 or 1000, missing, '', unpack(mine)} end
-- A foreign holder's release tells nobody.
local look_in = is_free and 0 or until_change()
if look_in == 0 and not is_free then look_in = 50 end
return {look_in, missing, first.text, unpack(mine)}
