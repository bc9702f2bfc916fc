-- One node's vote in one round of one claim: acquires the lock here if it is free. A repeat gives the same
-- reply, fencing token included.
--
-- KEYS  4 the node's incarnation record
-- ARGV  1 the record's text as the client knows it   2 the round's identity   3 ttl in ms
--       4 the proposed fencing token   5 '' or, for a shared grant, the node's number
--       6 the waiter's identity, '' to leave nothing behind   7 its arrival in us
-- Reply fencing token, a string (yes) | {its owner, ms until that may change, 1 if the waiter is first, or
--       more dead waiters come before it than one step may pass over} (no): an owner, 'group',
--       'foreign', or '' when it is free but others come first | -1 (not the node that the client
--       knows: it does not vote)
-- O(log n) in the holders and waiters, plus up to 256 dead ones and 64 readers.

-- A node that lost its data, or whose set of nodes was changed, has another record or none.
if redis.call('GET', KEYS[4]) ~= ARGV[1] then return -1 end
local ME, TTL, PROPOSAL, MORE, WAITER = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
--<foreign.lua>
--<fencing_token.lua>

-- No holder and no waiter: the fast path.
local set = MORE == '' and redis.pcall('SET', L, ME, 'NX', 'PX', TTL)
if set and set.ok then
  local done, answer, last = pcall(next_token, PROPOSAL, '', TTL)
  if not done then
    -- Another program wrote to the token's key.
    redis.call('DEL', L)
    error(answer, 0)
  end
  local marked = not last or string.byte(last, -1) == 113
  if not marked or redis.call('EXISTS', Q) == 0 then return answer end
  -- The queue may have waiters, which come first.
  redis.call('DEL', L)
  if last then redis.call('SET', F, last, 'KEEPTTL') else redis.call('DEL', F) end
elseif set and set.err and not string.find(set.err, 'WRONGTYPE', 1, true) then
  return set
end
--<hint.lua>
require_clock()
local me = parse(ME)
read_lock()
if held and held.text == ME then
  return string.match(redis.call('GET', F) or '', '^%d+') or next_token(PROPOSAL, MORE, TTL)
end
if held and held.group == me.mode then
  local mine = redis.call('ZSCORE', L, '#' .. me.owner)
  if mine and redis.call('ZSCORE', L, ME) then return string.format('%.0f', mine) end
  -- Of an earlier round, whose release has yet to arrive, and removes the owner.
  if mine then return {me.owner, 1, 0} end
end

if is_free_for(me) then
  local before, first = next_turns()
  local is_turn = not first and not head()
  for _, text in ipairs(before) do is_turn = is_turn or text == WAITER end
  if is_turn then
    local token = next_token(PROPOSAL, MORE, TTL)
    write_holder(me, tonumber(TTL), token)
    if WAITER ~= '' then redis.call('ZREM', Q, WAITER) end
    -- A run of readers that is longer than one step notifies is continued.
    if #before == MOST then hint(before) end
    if drop_empty_queue() then mark_waiters() end
    return token
  end
end

if WAITER ~= '' then
  enqueue(WAITER, ARGV[7])
else
  --<writable.lua>
  drop_empty_queue()
end
local whose = ''
if held and held.group then
  whose = 'group'
elseif held then
  local holder = parse(held.text)
  whose = holder and holder.owner or 'foreign'
end
if is_unfinished() then return {whose, 1, 1} end
local first = head()
return {whose, until_change(), first and first.text == WAITER and 1 or 0}
