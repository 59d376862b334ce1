-- Reads the digests of many models, and all aliases. One command for all models, since it is often sent: a pipeline of
-- HGETs costs six times as much (measured).
--
-- KEYS[1]    perceptron:aliases
-- KEYS[2]…   perceptron:{model} of each model
--
-- Returns the names and values of the aliases in turn, and for each model its digest, '' if it has no head, or something
-- else if its key is damaged.

local digests = {}
for i = 2, #KEYS do
  digests[i - 1] = redis.pcall('HGET', KEYS[i], 'digest')
    or ((redis.call('EXISTS', KEYS[i]) == 0 or redis.call('HEXISTS', KEYS[i], 'identity') == 1) and '')
end
return {redis.call('HGETALL', KEYS[1]), digests}
