//! The changes, in the order of the scripts.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    // token.lua
    ("a new token lasts a day", "last and 86400000 or 3600000 + ttl", "86400000"),
    (
        "a token that is used again lasts an hour",
        "last and 86400000 or 3600000 + ttl",
        "3600000 + ttl",
    ),
    ("no end of exact numbers", "not number or number >= 9007199254740991", "not number"),
    ("a text that is overwritten", "redis.call('SET', F, last, 'KEEPTTL')\n      error", "error"),
    ("a token whose life is never extended", " and last > string.sub(token, 1, 7)", ""),
    (
        "the life of the key is extended at each token",
        "if last and last < token and",
        "if false and",
    ),
    (
        "a text of digits and more is a token",
        "string.match(last, '^(%d+)q?$')",
        "string.match(last, '^(%d+)')",
    ),
    ("no token is reserved", "tonumber(token) + tokens - 1)", "tonumber(token))"),
    (
        "a reservation that is forgotten",
        "  redis.call('SET', F, top .. mark, 'KEEPTTL')\n  return top",
        "  return top",
    ),
    // downgrade.lua, and the release of one that is unsure
    ("a downgrade lets the lock go", "  write_holder(reader, ttl, token)\n", ""),
    (
        "a downgrade gets a new token",
        "if not token or token == '0' then token",
        "if true then token",
    ),
    (
        "a downgrade without the token that was deleted",
        "if not token or token == '0' then token",
        "if not token then token",
    ),
    ("a downgrade serves nobody", "pcall(hand_off)\ndrop_empty_queue()\nreturn 1", "return 1"),
    (
        "a repeated downgrade is a loss",
        "elseif held and held.group == 's' and redis.call('ZSCORE', L, ARGV[2]) then",
        "elseif false then",
    ),
    (
        "a repeated downgrade extends nobody",
        "if TTL > 0 then redis.call('ZADD', L, 'XX', now + TTL, ARGV[2]) end",
        "",
    ),
    (
        "a downgrade of a fixed lease extends it",
        "local ttl = TTL > 0 and TTL or redis.call('PTTL', L)",
        "local ttl = math.min(reader.ttl, DAY)",
    ),
    (
        "a late downgrade acquires",
        "if held and held.text == ARGV[1] then",
        "if not held or held.text == ARGV[1] then",
    ),
    (
        "a repeated downgrade is refused out of memory",
        "redis.call('PEXPIREAT', L, now + math.max(TTL, redis.call('PTTL', L)))",
        "",
    ),
    (
        "an unsure release leaves the reader",
        "if reader and held and held.group == 's' and remove_member(reader) then was_there = 1 end",
        "",
    ),
    ("an unsure release tells the claim", "ARGV[2] == 'evict' then", "ARGV[2] then"),
    // lock.lua, queue.lua
    ("unbounded runs", "local MOST, DEAD = 64, 256", "local MOST, DEAD = 1000, 256"),
    ("unbounded runs of the dead", "local MOST, DEAD = 64, 256", "local MOST, DEAD = 64, 1000"),
    ("dead clients are not removed", "gone[#gone + 1] = '@' .. client", ""),
    (
        "the remaining dead cost a second",
        "local check_after = is_unfinished() and 1 or own",
        "local check_after = own",
    ),
    ("a new waiter waits a second for the dead", "if is_unfinished() then return {1} end", ""),
    ("an expiry in the past is set", "if expiry <= now then", "if sum >= 0 then"),
    (
        "members never expire",
        "redis.call('ZRANGEBYSCORE', L, 1, now, ",
        "redis.call('ZRANGEBYSCORE', L, 1, 0, ",
    ),
    ("a holder without TTL stays", "redis.call('PEXPIRE', L, ends)\n", ""),
    (
        "a holder without TTL ends at once",
        "redis.call('PEXPIRE', L, ends)\n",
        "redis.call('DEL', L)",
    ),
    ("a TTL without a limit", "math.max(1, math.min(held.claim.ttl, DAY))", "held.claim.ttl"),
    ("an empty group stays", "    update_group(-held.out)\n    return 1", "    return 1"),
    ("the mark ends the TTL", "held.text .. MARK, 'KEEPTTL'", "held.text .. MARK"),
    // attempt.lua
    (
        "a lock stays whose token is refused",
        "redis.call('DEL', L)\n    error(token, 0)",
        "error(token, 0)",
    ),
    (
        "the fast path grants without a token",
        "if not done then\n    -- Another",
        "if false then\n    -- Another",
    ),
    ("a longer last token is not compared", " and #last - #token < 2", ""),
    (
        "a lost mark hides the queue",
        "elseif redis.call('EXISTS', Q) == 0 then\n    return token",
        "else\n    return token",
    ),
    (
        "the fast path unmarks the token",
        "  redis.call('SET', F, last or token .. 'q', 'KEEPTTL')\n",
        "",
    ),
    (
        "the fast path refuses a grant out of memory",
        "redis.pcall('SET', L, ME",
        "redis.call('SET', L, ME",
    ),
    (
        "a deleted token is not replaced",
        "if token and token ~= '0' then return token end",
        "if token then return token end",
    ),
    (
        "a grant with an empty queue is marked",
        "grant(me, TTL, drop_empty_queue())",
        "grant(me, TTL, true)",
    ),
    (
        "a confirmation that memory refuses",
        "local was_queued =",
        "if held.group then redis.call('ZADD', L, 'XX', now + TTL, ME) end\n  local was_queued =",
    ),
    ("a run of readers that ends", "if held.group then hand_off() end", ""),
    ("a try leaves an empty queue", "drop_empty_queue()\n    return 0", "return 0"),
    ("arrivals before the last", "(tonumber(last) or 0) + 1", "0"),
    // check_waiters.lua, heartbeat.lua
    ("the dead stay", "if dead[1] then redis.call('ZREM', Q, unpack(dead)) end", ""),
    (
        "unconfirmed grants of the dead stay",
        "      redis.call('ZREM', Q, text)\n    end\n  end\nend",
        "    end\n  end\nend",
    ),
    (
        "a check after a hand-off reports no first waiter",
        "if not first and drop_empty_queue() then first = head() end",
        "drop_empty_queue()",
    ),
    // release.lua
    (
        "a value of another program keeps an empty queue",
        "if not met_only_own(read_lock) then\n  drop_empty_queue()",
        "if not met_only_own(read_lock) then",
    ),
    // renew.lua
    ("nothing is renewed", "if TTL > 0 then redis.call('PEXPIRE', L, TTL) end", ""),
    (
        "a renewal that only checks ends the lock",
        "if TTL > 0 then redis.call('PEXPIRE', L, TTL) end",
        "redis.call('PEXPIRE', L, TTL)",
    ),
    ("an expired member is renewed", "or tonumber(value) <= now then", "then"),
    ("a renewal cuts the others short", "math.max(now + TTL, tonumber(last[2]))", "now + TTL"),
    ("an old token expires", "if ARGV[3] == 'old' then", "if false then"),
    // inspect.lua
    (
        "a mark is shown",
        "string.match(redis.call('GET', F) or '0', '^%d+') or '0'}",
        "redis.call('GET', F)}",
    ),
    ("all are shown", "'WITHSCORES', 'LIMIT', 0, most)\nreturn", "'WITHSCORES')\nreturn"),
];
