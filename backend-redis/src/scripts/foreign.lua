-- Ends the script: `key` was not written by this library.
local function foreign(key, what)
  error('fencelock: ' .. key .. ' ' .. what .. ' of another program')
end
