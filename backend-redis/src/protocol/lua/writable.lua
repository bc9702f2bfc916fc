-- Ends the step on a replica: it may be behind, and what is not there may be held, or free, at the master. A write that
-- changes nothing tells. A master that refuses writes for another reason is not behind.
local refused = redis.pcall('ZREM', Q or L, '')
if type(refused) == 'table' and string.find(refused.err, 'READONLY', 1, true) then return refused end
