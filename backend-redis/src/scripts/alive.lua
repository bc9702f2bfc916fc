-- The beginning of a client's look: says that it is alive. Whether waiters of it may be missing from
-- the queue. A missing client is not entered here: an answer that says so may be lost, and must be
-- repeated.
local CLIENT = ARGV[1]
local missing = 1
-- First: a server out of memory lets a script go on that has written already.
redis.call('PEXPIRE', Q, QUEUE)
-- Not changed is also what has been told in this ms.
if redis.call('ZADD', Q, 'XX', 'CH', now + SILENCE, '@' .. CLIENT) == 1
  or redis.call('ZSCORE', Q, '@' .. CLIENT) then
  missing = 0
end
