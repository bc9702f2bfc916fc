//! Readers and permit holders, which hold together and expire one by one.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a thousand readers are granted 64 at a time, until the last", thousand_readers),
    ("the key expires with its last member", key_ends),
    ("members that expired in the same ms leave the lock free", all_ended),
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

fn no_late_renewal(bench: &mut Bench) -> Verdict {
    acquire(bench, &with_ttl(&shared(1), 1000))?;
    acquire(bench, &shared(2))?;
    bench.advance(&[keys()], 1001);
    answers(bench, Op::Renew, &with_ttl(&shared(1), 1000), 0)?;
    answers(bench, Op::Renew, &shared(2), 1)
}
