-- Accept one save, or refuse it. Only this script writes heads and removes blobs.
--
-- KEYS[1]    perceptron:{model}, a hash: head, digest, v:<version>, b:<digest>; or identity, after a reset
-- ARGV[1]    parent: the digest that must be current ('' where there is no head yet)
-- ARGV[2]    digest of the new head
-- ARGV[3]    the new head, JSON
-- ARGV[4]    the version to keep it as, or ''
-- ARGV[5]    the kept version to evict, or ''
-- ARGV[6]    how many refs follow: the digest of every blob that the new head refers to
-- then the digest and the bytes of each blob to store
--
-- Returns OK, CONFLICT (another head is current) or MISSING (a blob is not there: upload again).
-- An error in a script rolls nothing back, so everything is checked first and one HSET is the only write of state:
-- blobs that no head refers to are garbage.

local key, parent, digest, head, keep, evict = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local current = redis.call('HGET', key, 'digest') or ''
if current == digest then return 'OK' end -- accepted before, but the reply was lost
if current ~= parent then return 'CONFLICT' end
if current == '' and redis.call('HEXISTS', key, 'head') == 1 then return 'CONFLICT' end -- one that lost its digest
local required = redis.call('HGET', key, 'identity') -- a reset left it for the first head
-- A head has other identities too, such as its candidates'. Only its own is followed by the state digest.
if required and not string.find(head, required .. ',"state_digest":', 1, true) then return 'CONFLICT' end

local last = 6 + tonumber(ARGV[6])
for i = last + 1, #ARGV, 2 do redis.call('HSET', key, 'b:' .. ARGV[i], ARGV[i + 1]) end

local live = {}
for i = 7, last do
  if redis.call('HEXISTS', key, 'b:' .. ARGV[i]) == 0 then return 'MISSING' end
  live['b:' .. ARGV[i]] = true
end

local function hold_array(array)
  for _, name in ipairs(array.base) do live['b:' .. name] = true end
  for _, name in ipairs(array.deltas) do live['b:' .. name] = true end
end

local function hold_all(text)
  local kept = cjson.decode(text)
  for _, name in ipairs(kept.names) do live['b:' .. name] = true end
  for _, name in ipairs(kept.run_blobs) do live['b:' .. name] = true end
  for _, array in pairs(kept.arrays) do hold_array(array) end
  if kept.reference ~= cjson.null then hold_array(kept.reference) end
end

-- Nobody can tell which blobs a damaged kept head needs: then nothing is swept.
local sweep = true
local function hold(text) sweep = pcall(hold_all, text) and sweep end

-- Readers that have just fetched the parent's head still need its blobs.
local before = redis.call('HGET', key, 'head')
if before then hold(before) end
local fields = redis.call('HKEYS', key)
for _, field in ipairs(fields) do
  if string.sub(field, 1, 2) == 'v:' and field ~= 'v:' .. evict then hold(redis.call('HGET', key, field)) end
end

if keep ~= '' then
  redis.call('HSET', key, 'head', head, 'digest', digest, 'v:' .. keep, head)
else
  redis.call('HSET', key, 'head', head, 'digest', digest)
end

-- The save is accepted. If the rest fails, what is not removed is garbage, not an error.
if required then redis.pcall('HDEL', key, 'identity') end
if evict ~= '' and evict ~= keep then redis.pcall('HDEL', key, 'v:' .. evict) end
for _, field in ipairs(fields) do
  if sweep and string.sub(field, 1, 2) == 'b:' and not live[field] then redis.pcall('HDEL', key, field) end
end
return 'OK'
