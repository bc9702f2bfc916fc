-- The beginning of a client's check: extends its deadline, and finds out whether waiters of it may be
-- missing from the queue. A missing client is not added here: a reply that reports it may be lost, and
-- the next one must report it again.
local CLIENT = ARGV[1]
local missing = 1
-- First: a server that is out of memory lets a script continue that has already written.
redis.call('PEXPIRE', Q, QUEUE)
-- CH does not count a deadline that was set in the same ms.
if redis.call('ZADD', Q, 'XX', 'CH', now + SILENCE, '@' .. CLIENT) == 1
  or redis.call('ZSCORE', Q, '@' .. CLIENT) then
  missing = 0
end
