-- Writes the largest token of a round's majority back to a node that gave a smaller one. Without it a
-- later majority could be told less than was granted; where the lock is not the claim's any more, its
-- owner may have been told less already, so that does not count.
--
-- KEYS  4 the node's marker
-- ARGV  1 the marker's text as the client knows it   2 the round's identity   3 token
-- Reply 1 (it has it) | 0 (not held here) | -1 (not the node that the client knows)

if redis.call('GET', KEYS[4]) ~= ARGV[1] then return -1 end
local value = redis.pcall('GET', L)
-- Of another type: not held. Any other error leaves it unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
if value ~= ARGV[2] and value ~= ARGV[2] .. '\n' then return 0 end
--<foreign.lua>
--<fencing_token.lua>
raise_token(ARGV[3], 0)
return 1
