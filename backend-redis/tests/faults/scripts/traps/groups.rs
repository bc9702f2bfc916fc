//! Readers and permit holders, which hold together and expire one by one.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a thousand readers are granted 64 at a time, until the last", thousand_readers),
    ("an expired member makes room", member_ended),
    ("the key expires with its last member", key_ends),
    ("members that expired in the same ms leave the lock free", all_ended),
    ("more members than one step removes can expire", many_ended),
    ("a waiting writer stops new readers", writer_first),
    ("a large request is not overtaken by small ones", large_request),
    ("readers after a writer are granted together", readers_together),
    ("an expired member is not renewed", no_late_renewal),
];

fn thousand_readers(bench: &mut Bench) -> Verdict {
    const READERS: u64 = 1000;
    let writer = exclusive(0);
    acquire(bench, &writer)?;
    for n in 1..=READERS {
        queue(bench, &shared(n))?;
    }
    release(bench, &writer)?;
    let mut pushed = messages(bench);
    equal("the first run", &pushed.len(), &64)?;
    let mut confirmed = 0;
    while let Some(message) = pushed.pop() {
        let owner = message.split(' ').next().unwrap_or_default();
        let n = u64::from_str_radix(owner, 16).map_err(|e| format!("{message}: {e}"))?;
        acquire(bench, &shared(n))?;
        confirmed += 1;
        ensure(confirmed <= READERS, || "granted again".into())?;
        let more = messages(bench);
        ensure(more.len() <= 64, || format!("{} in one run", more.len()))?;
        pushed.extend(more);
    }
    equal("the readers", &confirmed, &READERS)?;
    for n in 1..=READERS {
        release(bench, &shared(n))?;
    }
    let left = bench.call(&["EXISTS", &keys().lock, &keys().queue]);
    equal("the remaining keys", &left, &Value::Int(0))
}

fn member_ended(bench: &mut Bench) -> Verdict {
    let (short, long, next) =
        (with_ttl(&permits(1, 2, 3), 900), permits(2, 1, 3), permits(3, 2, 3));
    acquire(bench, &short)?;
    acquire(bench, &long)?;
    near("the first one's check", queue(bench, &next)?, 900)?;
    bench.advance(&[keys()], 901);
    bench.send_check(&keys(), &next.process, &[]);
    bench.client.receive();
    holds(bench, &next, true)?;
    holds(bench, &short, false)?;
    answers(bench, Op::Release, &short, 0)?;
    holds(bench, &long, true)
}

fn key_ends(bench: &mut Bench) -> Verdict {
    let (short, long) = (with_ttl(&shared(1), 5000), shared(2));
    acquire(bench, &short)?;
    acquire(bench, &long)?;
    near("the TTL", ttl(bench, &keys().lock), LONG)?;
    release(bench, &long)?;
    near("the TTL", ttl(bench, &keys().lock), 5000)?;
    acquire(bench, &long)?;
    answers(bench, Op::Renew, &short, 1)?;
    near("the TTL", ttl(bench, &keys().lock), LONG)?;
    bench.advance(&[keys()], 1000);
    acquire(bench, &short)?;
    near("the TTL", ttl(bench, &keys().lock), LONG - 1000)
}

/// Expires all members, but not the key, like in the last ms of both.
fn end_all(bench: &mut Bench) {
    const END: &str = "
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], 1, 1e15)) do
      redis.call('ZADD', KEYS[1], 1000000000000, member)
    end";
    bench.call(&["EVAL", END, "1", &keys().lock]);
}

fn all_ended(bench: &mut Bench) -> Verdict {
    for next in [exclusive(3), permits(3, 1, 5), shared(3)] {
        acquire(bench, &shared(1))?;
        acquire(bench, &shared(2))?;
        end_all(bench);
        answers(bench, Op::Release, &shared(4), 0)?;
        acquire(bench, &shared(1))?;
        acquire(bench, &shared(2))?;
        end_all(bench);
        acquire(bench, &next)?;
        let holders = bench.state(&keys())?.holders.len();
        equal("the holders", &holders, &1)?;
        release(bench, &next)?;
    }
    Ok(())
}

fn many_ended(bench: &mut Bench) -> Verdict {
    for n in 1..=150 {
        acquire(bench, &shared(n))?;
    }
    end_all(bench);
    let long = shared(200);
    acquire(bench, &long)?;
    let writer = exclusive(201);
    queue(bench, &writer)?;
    answers(bench, Op::Try, &shared(202), 0)?;
    bench.state(&keys())?;
    holds(bench, &long, true)?;
    release(bench, &long)?;
    bench.send_check(&keys(), &writer.process, &[]);
    bench.client.receive();
    holds(bench, &writer, true)
}

fn writer_first(bench: &mut Bench) -> Verdict {
    let (reader, writer, late) = (shared(1), exclusive(2), shared(3));
    acquire(bench, &reader)?;
    queue(bench, &writer)?;
    queue(bench, &late)?;
    answers(bench, Op::Try, &shared(4), 0)?;
    release(bench, &reader)?;
    holds(bench, &writer, true)?;
    acquire(bench, &writer)?;
    release(bench, &writer)?;
    acquire(bench, &late).map(drop)
}

fn large_request(bench: &mut Bench) -> Verdict {
    let (first, large, small) = (permits(1, 1, 3), permits(2, 3, 3), permits(3, 1, 3));
    acquire(bench, &first)?;
    queue(bench, &large)?;
    queue(bench, &small)?;
    answers(bench, Op::Try, &permits(4, 1, 3), 0)?;
    release(bench, &first)?;
    holds(bench, &large, true)?;
    holds(bench, &small, false)?;
    release(bench, &large)?;
    // Each is granted by its own limit.
    acquire(bench, &small)?;
    answers(bench, Op::Try, &permits(5, 1, 1), 0)
}

fn readers_together(bench: &mut Bench) -> Verdict {
    let writer = exclusive(1);
    acquire(bench, &writer)?;
    for n in 2..6 {
        queue(bench, &shared(n))?;
    }
    queue(bench, &exclusive(6))?;
    queue(bench, &shared(7))?;
    release(bench, &writer)?;
    equal("the pushes", &messages(bench).len(), &4)
}

fn no_late_renewal(bench: &mut Bench) -> Verdict {
    acquire(bench, &with_ttl(&shared(1), 1000))?;
    acquire(bench, &shared(2))?;
    bench.advance(&[keys()], 1001);
    answers(bench, Op::Renew, &with_ttl(&shared(1), 1000), 0)?;
    answers(bench, Op::Renew, &shared(2), 1)
}
