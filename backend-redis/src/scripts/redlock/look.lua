-- The safety look of one process at one lock of one node, once a second whatever the number of its
-- waiters: says that the process is alive, passes over the dead, and tells what its pushes may have
-- missed.
--
-- ARGV  1 process   2... identities of some of its waiters
-- Reply {ms until the first in the queue should ask again, 0: now,
--        1 when waiters of this process may be missing from the queue, else 0,
--        identity of the first in the queue if it is of this process, else ''}
-- O(log n) in the holders and waiters, but for up to 64 dead ones.

--<foreign.lua>
--<hint.lua>
look_at_lock()
--<alive.lua>
for i = 2, #ARGV do
  if not redis.call('ZSCORE', Q, ARGV[i]) then missing = 1 end
end
local first = live_head()
if first then announce() end
local own = first and first.process == PROCESS
if first and not own then hint() end
tidy()
if not own then return {1000, missing, ''} end
-- A foreign holder's release tells nobody.
local look_in = is_free_for(first) and 0 or until_change()
if look_in == 0 and not is_free_for(first) then look_in = 50 end
return {look_in, missing, first.text}
