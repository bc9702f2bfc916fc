-- Ends the step on a server that takes no writes, such as a replica: it may be behind, and what is not there may be
-- held, or free, at the master. A write that changes nothing tells.
local refused = redis.pcall('ZREM', L, '')
if type(refused) == 'table' and not string.find(refused.err, 'WRONGTYPE', 1, true) then return refused end
