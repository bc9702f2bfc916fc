-- Reads the holders and waiters, for `inspect`. Changes nothing except that it removes expired members
-- of a group.
--
-- ARGV  1 the largest number of each, 2 that of waiters if it is another
-- Reply {server time in us,
--        {identity or foreign value, ms left (-1 without an end), token, ...} of holders,
--        {identity, arrival in us, ...} of waiters in order}
-- O(n) in the length of the reply.
--<writable.lua>
--<foreign.lua>
--<lock.lua>
read_lock()
local most = tonumber(ARGV[1])
local holders = {}
if held and held.text then
  holders = {held.text, redis.call('PTTL', L), string.match(redis.call('GET', F) or '0', '^%d+') or '0'}
elseif held then
  local members = redis.call('ZRANGEBYSCORE', L, 1, '(' .. BAND, 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #members, 2 do
    local member = parse(members[i])
    if not member then foreign(L, 'is a sorted set') end
    local n = #holders
    holders[n + 1], holders[n + 2] = members[i], members[i + 1] - now
    holders[n + 3] = redis.call('ZSCORE', L, '#' .. member.owner) or '0'
  end
end
most = tonumber(ARGV[2] or most)
local waiters = redis.call('ZRANGEBYSCORE', Q, BAND, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
return {string.format('%.0f', now_us), holders, waiters}
