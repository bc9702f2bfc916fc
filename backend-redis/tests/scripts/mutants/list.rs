//! The changes, in the order of the scripts.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    // mint.lua
    ("no TTL is kept", "token, 'KEEPTTL', 'GET'", "token, 'GET'"),
    ("a new fence has no TTL", "86400000)\n    return token", "3600000)\n    return token"),
    ("a token that does not rise", "token = number + 1", "token = number"),
    (
        "a token that is forgotten",
        "number + 1\n    redis.call('SET', F, token, 'KEEPTTL')",
        "number + 1",
    ),
    ("no look at the last token", "if number >= token then", "if false then"),
    ("no end of exact numbers", "number < 9007199254740991", "true"),
    ("a text that is overwritten", "redis.call('SET', F, last, 'KEEPTTL')\n    foreign", "foreign"),
    (
        "a fence that is never prolonged",
        "if token - number > token % 43200000000 then",
        "if false then",
    ),
    (
        "a fence prolonged at each token",
        "if token - number > token % 43200000000 then",
        "if true then",
    ),
    // queue.lua
    ("the dead are served", "tonumber(deadline) < now then", "false then"),
    ("unbounded runs", "local MOST = 64", "local MOST = 1000"),
    ("a waiter is dead after 2 s", "local SILENCE = 3000", "local SILENCE = 2000"),
    (
        "the last one in is the first",
        "redis.call('ZRANGEBYSCORE', Q, BAND, '+inf'",
        "redis.call('ZREVRANGEBYSCORE', Q, '+inf', BAND",
    ),
    ("an unconfirmed grant lasts", "math.min(CLAIM, claim.ttl)", "claim.ttl"),
    ("a grant lasts longer than its TTL", "math.min(CLAIM, claim.ttl)", "CLAIM"),
    (
        "a grant loses its place",
        "redis.call('ZADD', Q, -claim.arrival, claim.text)",
        "redis.call('ZREM', Q, claim.text)",
    ),
    ("a rounded token is pushed", "string.format(' %.0f', token)", "' ' .. token"),
    ("nobody is told", "redis.call('PUBLISH', claim.process, claim.owner", "tostring(claim.owner"),
    ("a grant of its own is told by a push", "if claim.text == asking then", "if false then"),
    ("a group's key never ends", "redis.call('PEXPIREAT', L, expiry)", ""),
    ("an end that has passed is set", "if expiry <= now then", "if sum >= 0 then"),
    ("a token stays in a group", "redis.call('ZREM', L, '#' .. member.owner)", ""),
    (
        "a sum stays in a group",
        "redis.call('ZINCRBY', L, member.n, '=' .. held.group)",
        "redis.call('ZINCRBY', L, 0, '=' .. held.group)",
    ),
    ("each permit counts once", "redis.call('ZINCRBY', L, -claim.n", "redis.call('ZINCRBY', L, -1"),
    ("no limit", "held.out + claim.n <= claim.limit", "true"),
    (
        "a limit of one less",
        "held.out + claim.n <= claim.limit",
        "held.out + claim.n < claim.limit",
    ),
    ("readers beside permits", "claim.mode ~= held.group", "claim.mode == 'x'"),
    (
        "members never end",
        "redis.call('ZRANGEBYSCORE', L, 1, now, ",
        "redis.call('ZRANGEBYSCORE', L, 1, 0, ",
    ),
    (
        "a lock without TTL",
        "redis.call('SET', L, claim.text, 'PX', ttl)",
        "redis.call('SET', L, claim.text)",
    ),
    (
        "an unconfirmed place is tidied away",
        "if string.sub(first, 1, 1) == '@' then",
        "if true then",
    ),
    ("a holder without TTL is asked for each ms", "left < 0 or ", ""),
    (
        "another program is waited for",
        "or not parse(held.text) then return 50 end",
        "then return 50 end",
    ),
    // attempt.lua
    (
        "the fast path overtakes the queue",
        "redis.call('EXISTS', Q) == 0\n  and redis.call('SET'",
        "redis.call('SET'",
    ),
    ("the fast path steals", "ME, 'NX', 'PX', TTL", "ME, 'PX', TTL"),
    ("a confirmation extends nothing", "redis.call('PEXPIRE', L, TTL)\n    token", "token"),
    (
        "a member's confirmation extends nothing",
        "redis.call('ZADD', L, 'XX', now + TTL, ME)\n    settle",
        "settle",
    ),
    (
        "a confirmation that memory refuses",
        "local was_queued =",
        "if held.group then redis.call('ZADD', L, 'XX', now + TTL, ME) end\n  local was_queued =",
    ),
    ("a run of readers that ends", "if held.group then serve() end", ""),
    ("a confirmation leaves an empty queue", "serve() end\n    tidy()", "serve() end"),
    (
        "a deleted token stays away",
        "return tonumber(token) or mint()",
        "return tonumber(token) or now_us",
    ),
    ("a newcomer overtakes", "if not head() and is_free_for(me) then", "if is_free_for(me) then"),
    ("a newcomer serves nobody", "if not score then\n  serve()", "if not score then"),
    ("a try leaves an empty queue", "tidy()\n    return 0", "return 0"),
    ("a try that waits", "if ARGV[3] == 'try' then", "if false then"),
    (
        "a grant beside an empty queue",
        "local token = give(me, TTL)\n    tidy()",
        "local token = give(me, TTL)",
    ),
    ("arrivals before the last", "(tonumber(last) or 0) + 1", "0"),
    (
        "a late one goes to the end",
        "redis.call('ZADD', Q, -tonumber(score), ME)",
        "redis.call('ZADD', Q, now_us, ME)",
    ),
    ("a waiter is dead at once", "redis.call('ZADD', Q, now + SILENCE, '@' .. me.process)", ""),
    ("a queue without TTL", "redis.call('PEXPIRE', Q, QUEUE)\nif score", "if score"),
    ("a waiter does not see that it is free", "if score and serve(ME) then", "if false then"),
    ("the head looks late", "first.process == me.process and until_change() or 1000", "1000"),
    // look.lua
    ("a look does not count", "redis.call('ZADD', Q, 'XX', now + SILENCE, '@' .. PROCESS)", ""),
    (
        "a look that memory refuses",
        "redis.call('PEXPIRE', Q, QUEUE)\n  redis.call('ZADD'",
        "redis.call('ZADD'",
    ),
    (
        "a look enters the process",
        "'XX', now + SILENCE, '@' .. PROCESS)\nend",
        "'XX', now + SILENCE, '@' .. PROCESS)\nelse redis.call('ZADD', Q, now + SILENCE, '@' .. PROCESS) end",
    ),
    ("a lost process is not told", "local missing = 1", "local missing = 0"),
    ("a lost waiter is not told", "    missing = 1\n", ""),
    ("the dead stay", "if dead[1] then redis.call('ZREM', Q, unpack(dead)) end", ""),
    (
        "unconfirmed grants of the dead stay",
        "    redis.call('ZREM', Q, text)\n  end\nend",
        "  end\nend",
    ),
    ("a lapsed grant is not told", "    found[#found + 1] = text\n", ""),
    ("a held lock is not told", "if holder and holder.process == PROCESS then", "if false then"),
    ("a member's grant is not told", "    found[#found + 1] = ARGV[i]\n", ""),
    ("a look serves nobody", "\nserve()\ntidy()\n\nfor i", "\ntidy()\n\nfor i"),
    ("a look leaves an empty queue", "\nserve()\ntidy()\n\nfor i", "\nserve()\n\nfor i"),
    // release.lua
    (
        "a release frees another's lock",
        "redis.pcall('GET', L) == ME then",
        "redis.pcall('GET', L) then",
    ),
    (
        "a release hands over to nobody",
        "and redis.call('EXISTS', Q) == 0 then\n  return was_there",
        "then\n  return was_there",
    ),
    ("a fast release of a member", "(was_there == 1 or string.byte(ME) == 120)", "true"),
    (
        "leaving the queue goes unsaid",
        "if redis.call('ZREM', Q, ME) == 1 then was_there = 1 end",
        "redis.call('ZREM', Q, ME)",
    ),
    (
        "leaving the queue lets nobody pass",
        "if redis.call('ZREM', Q, ME) == 1 then was_there = 1 end",
        "if redis.call('ZREM', Q, ME) == 1 then return 1 end",
    ),
    (
        "a list keeps waiters",
        "if not pcall(look_at_lock) then\n  tidy()",
        "if not pcall(look_at_lock) then",
    ),
    ("a member stays", "and take_out(me) then", "and false then"),
    ("an eviction is silent", "if me and ARGV[2] then", "if false then"),
    (
        "a release leaves an empty queue",
        "  serve()\n  tidy()\nend\nreturn",
        "  serve()\nend\nreturn",
    ),
    // renew.lua
    ("anybody renews", "if redis.pcall('GET', L) ~= ME then return 0 end", ""),
    ("nothing is renewed", "if TTL > 0 then redis.call('PEXPIRE', L, TTL) end", ""),
    (
        "a renewal that asks ends the lock",
        "if TTL > 0 then redis.call('PEXPIRE', L, TTL) end",
        "redis.call('PEXPIRE', L, TTL)",
    ),
    ("an ended member is renewed", "or tonumber(ends) <= now then", "then"),
    (
        "a member is renewed, the key is not",
        "redis.call('PEXPIREAT', L, math.max(now + TTL, tonumber(last[2])))",
        "",
    ),
    ("a renewal cuts the others short", "math.max(now + TTL, tonumber(last[2]))", "now + TTL"),
    ("an old fence is forgotten", "if ARGV[3] == 'old' then", "if false then"),
    // inspect.lua
    ("all are shown", "'WITHSCORES', 'LIMIT', 0, most)\nreturn", "'WITHSCORES')\nreturn"),
];
