-- Writes a cell as it is: a `WAIT` that follows on the same connection covers every write before, also
-- those whose own `WAIT` was not answered in time.
--
-- KEYS  1 the cell's key, {L}:c
-- Reply the stamp and content, or nil
-- O(n) in the length of the content.

local C = KEYS[1]
local there, ttl = redis.call('GET', C), redis.call('PTTL', C)
-- First: a server that is out of memory lets a script continue that has already written.
redis.call('DEL', C)
if not there then
  redis.call('SET', C, '', 'PX', 1)
  redis.call('DEL', C)
elseif ttl < 0 then
  redis.call('SET', C, there)
else
  redis.call('SET', C, there, 'PX', math.max(ttl, 1))
end
return there
