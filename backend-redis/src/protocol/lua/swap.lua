-- Compare-and-swap of a cell: a string of the 16 bytes of the stamp of the write that made it, and its
-- content. A repeated call changes nothing and replies 1; a repeated removal finds no cell and replies 0.
--
-- KEYS  1 the cell's key, {L}:c
-- ARGV  1 the expected stamp, '' for no cell   2 the new stamp and content, '' to remove the cell
--       3 how long to keep it, in ms; 0 without an end
-- Reply 1 (swapped, by this call or an earlier one) | 0 (not the expected stamp)
-- O(n) in the length of the content.

local C, FROM, TO, KEEP = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local stamp = redis.call('GETRANGE', C, 0, 15)
if #stamp < 16 and (stamp ~= '' or redis.call('EXISTS', C) == 1) then
  error('fencelock: ' .. C .. ' is the text of another program')
end
-- Never by content: a content can come back after others, a stamp cannot.
if stamp ~= FROM then
  local L, Q = C, nil
--<writable.lua>
  return stamp ~= '' and stamp == string.sub(TO, 1, 16) and 1 or 0
end
if TO == '' then
  redis.call('DEL', C)
elseif KEEP == '0' then
  redis.call('SET', C, TO)
else
  redis.call('SET', C, TO, 'PX', KEEP)
end
return 1
