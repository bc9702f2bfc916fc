//! Numbers that Lua, the server and its keys must not round, repeat or lose.

use super::*;
use crate::scripts::state::{DAY, HOUR};

pub(super) const TRAPS: &[Trap] = &[
    ("a token is the same in push, reply, check and key", same_everywhere),
    ("a clock that went back repeats no token", fallen_clock),
    ("a token past 2^53 is refused, not repeated", too_large),
    ("a new token's key lives for an hour and its claim's TTL", new_token),
    ("a token of another quarter of an hour extends the life of its key", quarters),
    ("an old renewal extends the life of the token's key", old_renewal),
    ("a renewal that only checks extends nothing", renewal_that_asks),
    ("a token deleted while held is followed by a larger one", lost_while_held),
    ("a range of tokens is above all before it and below all after it", ranges),
];

fn ranges(bench: &mut Bench) -> Verdict {
    let reserving = |n: u64, tokens: i64| {
        let plain = exclusive(n);
        let text = plain.text.replacen("x ", &format!("x+{tokens} "), 1);
        Claim { text, ..plain }
    };
    let mut last = acquire(bench, &exclusive(1))?;
    release(bench, &exclusive(1))?;
    // Free, and handed over by a release; the clock ahead of the last token, and behind it.
    for ahead in [0, 60_000_000] {
        if ahead > 0 {
            last = bench.state(&keys())?.now_us + ahead;
            bench.call(&["SET", &keys().token, &last.to_string(), "EX", "80000"]);
        }
        for (n, tokens) in [(2, 64), (3, 1_024)] {
            let (claim, next) = (reserving(n, tokens), reserving(n + 10, tokens));
            let top = acquire(bench, &claim)?;
            ensure(top - tokens >= last, || format!("{top} - {tokens} after {last}"))?;
            equal("the repeated answer", &acquire(bench, &claim)?, &top)?;
            equal("the key", &bench.state(&keys())?.last_token, &Some(top))?;
            queue(bench, &next)?;
            release(bench, &claim)?;
            let handed = acquire(bench, &next)?;
            ensure(handed - tokens >= top, || format!("{handed} - {tokens} after {top}"))?;
            release(bench, &next)?;
            last = acquire(bench, &exclusive(1))?;
            ensure(last > handed, || format!("a plain {last} after {handed}"))?;
            release(bench, &exclusive(1))?;
        }
    }
    Ok(())
}

fn same_everywhere(bench: &mut Bench) -> Verdict {
    for preset in [(1_i64 << 51) - 2, (1 << 51) + 1, 1 << 52, (1 << 53) - 9] {
        for kind in [exclusive, shared] {
            bench.call(&["FLUSHALL"]);
            bench.call(&["SET", &keys().token, &preset.to_string(), "EX", "80000"]);
            let (first, second) = (exclusive(1), kind(2));
            equal("the first token", &acquire(bench, &first)?, &(preset + 1))?;
            queue(bench, &second)?;
            release(bench, &first)?;
            let pushed = messages(bench);
            equal("the push", &pushed, &vec![second.granted(preset + 2)])?;
            bench.send_check(&keys(), &second.process, &[]);
            let found = bench.client.receive();
            ensure(found.texts().contains(&second.text.as_str()), || format!("{found:?}"))?;
            equal("the confirmed token", &acquire(bench, &second)?, &(preset + 2))?;
            equal("the repeated token", &acquire(bench, &second)?, &(preset + 2))?;
            equal("the key", &bench.state(&keys())?.last_token, &Some(preset + 2))?;
            bench.send("inspect", &keys(), &["9"]);
            let shown = bench.client.receive();
            let token = shown.list()[1].texts().last().map(ToString::to_string);
            equal("the token shown", &token, &Some((preset + 2).to_string()))?;
        }
    }
    Ok(())
}

fn fallen_clock(bench: &mut Bench) -> Verdict {
    for mark in ["", "q"] {
        for ahead in [5_000_000, 20_000_000_000] {
            for claim in [exclusive(1), shared(2)] {
                let last = bench.state(&keys())?.now_us + ahead;
                bench.call(&["SET", &keys().token, &format!("{last}{mark}"), "EX", "80000"]);
                equal("the token", &acquire(bench, &claim)?, &(last + 1))?;
                release(bench, &claim)?;
                equal("the next token", &acquire(bench, &claim)?, &(last + 2))?;
                release(bench, &claim)?;
            }
        }
    }
    Ok(())
}

fn too_large(bench: &mut Bench) -> Verdict {
    let now = bench.state(&keys())?.now_us.to_string();
    // As a text it is between the tokens of this quarter of an hour.
    let longer = format!("{}0000000000", &now[..8]);
    for text in ["9007199254740991", "9007199254740992", "1e300", "nan", &longer] {
        bench.call(&["FLUSHALL"]);
        refuses_text(bench, text)?;
    }
    Ok(())
}

fn refuses_text(bench: &mut Bench, text: &str) -> Verdict {
    bench.call(&["SET", &keys().token, text, "EX", "80000"]);
    for claim in [exclusive(1), shared(2)] {
        let answer = bench.op(Op::Queue, &keys(), &claim);
        let is_foreign = answer.error().is_some_and(|error| error.contains("fencelock: "));
        ensure(is_foreign, || format!("{text}: {answer:?}"))?;
        let left = bench.call(&["EXISTS", &keys().lock]);
        equal("the refused lock", &left, &Value::Int(0))?;
        bench.op(Op::Release, &keys(), &claim);
        let left = bench.call(&["EXISTS", &keys().lock]);
        equal("the lock", &left, &Value::Int(0))?;
    }
    near("the TTL", ttl(bench, &keys().token), 80_000_000)?;
    equal("the text", &bench.call(&["GET", &keys().token]), &Value::Text(text.into()))
}

fn new_token(bench: &mut Bench) -> Verdict {
    for claim in [exclusive(1), shared(2)] {
        bench.call(&["DEL", &keys().token]);
        acquire(bench, &claim)?;
        near("the TTL", ttl(bench, &keys().token), HOUR + LONG)?;
        // The next one, of the same time or, once in a thousand runs, the next.
        release(bench, &claim)?;
        acquire(bench, &claim)?;
        let left = ttl(bench, &keys().token);
        ensure(left > HOUR, || format!("the TTL is {left}"))?;
        release(bench, &claim)?;
    }
    Ok(())
}

fn quarters(bench: &mut Bench) -> Verdict {
    /// Within a thousand seconds.
    const QUARTER_US: i64 = 1_000_000_000;
    let now = bench.state(&keys())?.now_us;
    let boundary = now - now % QUARTER_US;
    for (last, expected) in [(boundary - 1, DAY), (boundary, 50_000_000), (5, DAY)] {
        for claim in [exclusive(1), shared(2)] {
            bench.call(&["SET", &keys().token, &last.to_string(), "PX", "50000000"]);
            let token = acquire(bench, &claim)?;
            ensure(token >= now, || format!("{token} at {now}"))?;
            near(&format!("the TTL after {last}"), ttl(bench, &keys().token), expected)?;
            release(bench, &claim)?;
        }
    }
    Ok(())
}

fn old_renewal(bench: &mut Bench) -> Verdict {
    for claim in [exclusive(1), shared(2)] {
        acquire(bench, &claim)?;
        bench.call(&["PEXPIRE", &keys().token, "5000"]);
        answers(bench, Op::Renew, &claim, 1)?;
        near("the TTL", ttl(bench, &keys().token), 5000)?;
        bench.send("renew", &keys(), &[&claim.text, "1000", "old"]);
        equal("the renewal", &bench.client.receive(), &Value::Int(1))?;
        near("the TTL", ttl(bench, &keys().token), DAY)?;
        near("the lock's TTL", ttl(bench, &keys().lock), 1000.max(ttl(bench, &keys().lock)))?;
        release(bench, &claim)?;
    }
    Ok(())
}

fn renewal_that_asks(bench: &mut Bench) -> Verdict {
    for claim in [exclusive(1), shared(2)] {
        acquire(bench, &claim)?;
        bench.advance(&[keys()], 10_000);
        bench.send("renew", &keys(), &[&claim.text, "0", ""]);
        equal("the answer", &bench.client.receive(), &Value::Int(1))?;
        near("the lock's TTL", ttl(bench, &keys().lock), LONG - 10_000)?;
        answers(bench, Op::Renew, &claim, 1)?;
        near("the lock's TTL", ttl(bench, &keys().lock), LONG)?;
        release(bench, &claim)?;
        bench.send("renew", &keys(), &[&claim.text, "0", ""]);
        equal("the answer", &bench.client.receive(), &Value::Int(0))?;
    }
    Ok(())
}

fn lost_while_held(bench: &mut Bench) -> Verdict {
    let claim = exclusive(1);
    let token = acquire(bench, &claim)?;
    bench.call(&["DEL", &keys().token]);
    let second = acquire(bench, &claim)?;
    ensure(second > token, || format!("{second} after {token}"))?;
    equal("the repeated token", &acquire(bench, &claim)?, &second)
}
