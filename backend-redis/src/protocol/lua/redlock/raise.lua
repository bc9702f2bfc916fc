-- Writes the largest fencing token of a round's majority back to a node that gave a smaller one. Without
-- it a later majority could give less than was granted. Where the claim no longer has the lock, its new
-- owner may have been given less already, so that does not count.
--
-- KEYS  4 the node's incarnation record
-- ARGV  1 the record's text as the client knows it   2 the round's identity   3 fencing token
-- Reply 1 (it has it) | 0 (not held here) | -1 (not the node that the client knows)

if redis.call('GET', KEYS[4]) ~= ARGV[1] then return -1 end
local value = redis.pcall('GET', L)
-- Another type is not held. After any other error the state is unknown.
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
if value ~= ARGV[2] and value ~= ARGV[2] .. '\n' then return 0 end
--<foreign.lua>
--<fencing_token.lua>
raise_token(ARGV[3], 0)
return 1
