-- Runs several steps in one call, each independent of the others: a call costs the server as much as
-- the step in it. An error of one step is its own reply.
--
-- KEYS  those of the steps, one step after the other
-- ARGV  for each step: its name, the numbers of its keys and values as two digits, its values
-- Reply the steps' replies, in order

-- TIME is frozen while a script runs.
local TIME = redis.call('TIME')
local STEPS = {
--<steps>
}
local keys, values, answers = KEYS, ARGV, {}
local key, value = 0, 1
while values[value] do
  local step, count = STEPS[values[value]], values[value + 1]
  local n, m = string.byte(count, 1, 2)
  n, m = n - 48, m - 48
  local done, answer =
    pcall(step, {unpack(keys, key + 1, key + n)}, {unpack(values, value + 2, value + 1 + m)})
  -- A command's error begins with its code; one of Lua's, and before 7.0 every error, with its
  -- position. The client finds the code after that.
  if not done and type(answer) == 'string' then
    answer = {err = string.find(answer, '^%u[%u%d]* ') and answer or 'ERR ' .. answer}
  end
  answers[#answers + 1] = answer
  key, value = key + n, value + 2 + m
end
return answers
