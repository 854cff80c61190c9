-- Requests of tests/bench/templates.py for wrk: `wrk -s wrk.lua URL -- FOLDER ACCOUNTS WRAP`.
-- FOLDER holds whole requests as text (0.http, 1.http, …), taken in turn, with a place for the number and one for the account.

local templates, accounts, wrap, number = {}, 1, 0, -1

-- A request as a list: text, 1 for the number or 2 for the account, text, …
local function split(text)
  local parts, from = {}, 1
  while true do
    local number_at = text:find("<number>", from, true)
    local account_at = text:find("<account>", from, true)
    if not number_at and not account_at then break end
    if number_at and (not account_at or number_at < account_at) then
      parts[#parts + 1] = text:sub(from, number_at - 1)
      parts[#parts + 1] = 1
      from = number_at + #"<number>"
    else
      parts[#parts + 1] = text:sub(from, account_at - 1)
      parts[#parts + 1] = 2
      from = account_at + #"<account>"
    end
  end
  parts[#parts + 1] = text:sub(from)
  return parts
end

function init(args)
  accounts, wrap = tonumber(args[2]), tonumber(args[3])
  for place = 0, 1000 do
    local file = io.open(args[1] .. "/" .. place .. ".http", "rb")
    if not file then break end
    templates[#templates + 1] = split(file:read("*a"))
    file:close()
  end
end

function request()
  number = number + 1
  if wrap > 0 then number = number % wrap end
  local parts = templates[number % #templates + 1]
  local filled = {string.format("%010d", number), string.format("%06d", number * 48271 % accounts)}
  local text = {}
  for place, part in ipairs(parts) do text[place] = filled[part] or part end
  return table.concat(text)
end

function done(summary, latency, _)
  local errors = summary.errors
  local wrong = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("measured %d %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), wrong))
end
