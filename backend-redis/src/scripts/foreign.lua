-- Ends the script: `key` was not written by this library.
local function foreign(key, what)
  error('fencelock: ' .. key .. ' ' .. what .. ' of another program')
end

-- Whether `step` met nothing of another program. Any other error is the script's: what the server did
-- not let it read may well be the claim's.
local function met_only_own(step)
  local done, why = pcall(step)
  if not done and not string.find(why, 'fencelock: ', 1, true) then error(why, 0) end
  return done
end
