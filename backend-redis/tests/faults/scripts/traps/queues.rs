//! Places in the queue, hand-offs and checks.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a holder without TTL is given one", holder_without_end),
    ("a group without TTL ends with its members", group_without_end),
    ("many dead waiters are removed in short steps, at once", many_dead),
    ("a removed waiter that resumes is notified that it is missing", passed_over),
    ("a queue of dead waiters is removed", queue_of_the_dead),
    ("the dead leave a queue in use", dead_among_living),
    ("a deleted token lets no waiter overtake", lost_mark),
    ("a check restores the mark, and shows who is next after its hand-off", marks_of_checks),
    ("arrivals in the same us, or after a clock that fell, queue last", arrivals),
    ("a holder and the waiters are shown in order", shown),
    ("a list at the lock's key keeps no waiter in the queue", list_at_lock),
];

fn granted_late(bench: &mut Bench) -> Result<(Claim, Claim), String> {
    let (holder, late, next) = (exclusive(1), exclusive(2), exclusive(3));
    acquire(bench, &holder)?;
    queue(bench, &late)?;
    queue(bench, &next)?;
    release(bench, &holder)?;
    bench.advance(&[keys()], 2001);
    holds(bench, &late, false)?;
    Ok((late, next))
}

fn holder_without_end(bench: &mut Bench) -> Verdict {
    acquire(bench, &exclusive(1))?;
    // With a mark, and without.
    for waiter in [exclusive(2), exclusive(7)] {
        bench.call(&["PERSIST", &keys().lock]);
        equal("the next check", &queue(bench, &exclusive(2))?, &1000)?;
        near("the TTL", ttl(bench, &keys().lock), LONG)?;
        queue(bench, &waiter)?;
    }
    for (ttl, expected) in [("0", 0), ("99999999999999999999", 86_400_000)] {
        let endless = exclusive(1).text.replace("30000", ttl);
        bench.call(&["SET", &keys().lock, &endless]);
        bench.send_check(&keys(), &exclusive(2).process, &[]);
        bench.client.receive();
        near("the TTL", super::ttl(bench, &keys().lock).max(0), expected)?;
    }
    Ok(())
}

fn group_without_end(bench: &mut Bench) -> Verdict {
    let waiter = exclusive(2);
    for holder in [shared(1), permits(1, 1, 1)] {
        acquire(bench, &holder)?;
        bench.call(&["PERSIST", &keys().lock]);
        equal("the next check", &queue(bench, &waiter)?, &1000)?;
        bench.advance(&[keys()], LONG);
        acquire(bench, &waiter)?;
        release(bench, &waiter)?;
    }
    // A group without members.
    bench.call(&["ZADD", &keys().lock, "-1", "=p"]);
    queue(bench, &waiter)?;
    acquire(bench, &waiter)?;
    release(bench, &waiter)
}

/// Dead waiters of several clients, in runs and one by one.
fn many_dead(bench: &mut Bench) -> Verdict {
    const DEAD: usize = 600;
    const AT_ONCE: usize = 256;
    let (holder, alive) = (exclusive(0), exclusive(2));
    acquire(bench, &holder)?;
    for n in 0..DEAD as u64 {
        // All but the one that will live.
        let of_some =
            exclusive(10 + if n < 100 { 5 * n } else { 5 * n + [0, 1, 3, 4][n as usize % 4] });
        queue(bench, &of_some)?;
    }
    bench.advance(&[keys()], 3001);
    let mut left = DEAD;
    equal("the next check", &queue(bench, &alive)?, &1)?;
    while left > 0 {
        left = left.saturating_sub(AT_ONCE);
        let state = bench.state(&keys())?;
        equal("the waiters left", &state.waiting.len(), &(left + 1))?;
        bench.send_check(&keys(), &alive.process, std::slice::from_ref(&alive.text));
        let answer = bench.client.receive();
        let check_after = if left >= AT_ONCE { 1 } else { 1000 };
        equal("the next check", &answer.list()[0], &Value::Int(check_after))?;
        equal("missing", &answer.list()[1], &Value::Int(0))?;
    }
    release(bench, &holder)?;
    holds(bench, &alive, true)
}

fn passed_over(bench: &mut Bench) -> Verdict {
    let (holder, late, next) = (exclusive(1), exclusive(2), exclusive(3));
    acquire(bench, &holder)?;
    queue(bench, &late)?;
    queue(bench, &next)?;
    bench.call(&["ZINCRBY", &keys().queue, "-3001", &format!("@{}", late.process)]);
    queue(bench, &exclusive(4))?;
    bench.send_check(&keys(), &late.process, &[]);
    equal("missing", &bench.client.receive().list()[1], &Value::Int(1))
}

fn queue_of_the_dead(bench: &mut Bench) -> Verdict {
    let (holder, dead, alive) = (exclusive(1), exclusive(2), shared(3));
    for n in 0..3 {
        acquire(bench, &holder)?;
        queue(bench, &dead)?;
        bench.advance(&[keys()], 3001);
        // A client without waiters is not a queue either.
        bench.call(&["ZADD", &keys().queue, "999999999999999", "@elsewhere"]);
        match n {
            0 => answers(bench, Op::Try, &alive, 0)?,
            1 => {
                bench.call(&["DEL", &keys().lock]);
                acquire(bench, &alive)?;
            }
            _ => {
                bench.send_check(&keys(), &alive.process, &[]);
                bench.client.receive();
            }
        }
        equal("the queue", &bench.call(&["EXISTS", &keys().queue]), &Value::Int(0))?;
        bench.call(&["DEL", &keys().lock]);
    }
    Ok(())
}

fn dead_among_living(bench: &mut Bench) -> Verdict {
    let (late, next) = granted_late(bench)?;
    acquire(bench, &next)?;
    queue(bench, &exclusive(4))?;
    bench.advance(&[keys()], 1000);
    bench.send_check(&keys(), &next.process, &[]);
    bench.client.receive();
    let state = bench.state(&keys())?;
    ensure(!state.deadlines.contains_key(&late.process), || format!("{:?}", state.deadlines))?;
    equal("the granted", &state.granted.len(), &0)?;
    equal("the waiters", &state.waiting.len(), &1)
}

fn lost_mark(bench: &mut Bench) -> Verdict {
    let (holder, waiter, newcomer) = (exclusive(1), exclusive(2), exclusive(3));
    let token = acquire(bench, &holder)?;
    queue(bench, &waiter)?;
    bench.call(&["DEL", &keys().lock, &keys().token]);
    queue(bench, &newcomer)?;
    holds(bench, &waiter, true)?;
    let next = acquire(bench, &waiter)?;
    ensure(next > token, || format!("{next} after {token}"))?;
    release(bench, &waiter)?;
    acquire(bench, &newcomer).map(drop)
}

fn arrivals(bench: &mut Bench) -> Verdict {
    acquire(bench, &exclusive(0))?;
    queue(bench, &exclusive(1))?;
    let later = (bench.state(&keys())?.now_us + 1_000_000_000).to_string();
    bench.call(&["ZADD", &keys().queue, &later, &exclusive(1).text]);
    for n in 2..4 {
        queue(bench, &exclusive(n))?;
    }
    let state = bench.state(&keys())?;
    let order: Vec<_> = state.waiting.iter().map(|waiter| waiter.claim.text.clone()).collect();
    equal("the order", &order, &(1..4).map(|n| exclusive(n).text).collect())
}

fn shown(bench: &mut Bench) -> Verdict {
    let holders = [permits(1, 1, 3), permits(2, 2, 3)];
    let waiters = [exclusive(3), shared(4), exclusive(5)];
    for claim in &holders {
        acquire(bench, claim)?;
    }
    for claim in &waiters {
        queue(bench, claim)?;
    }
    bench.send("inspect", &keys(), &["2"]);
    let answer = bench.client.receive();
    let [Value::Text(now), held, waiting] = answer.list() else {
        return Err(format!("{answer:?}"));
    };
    ensure(now.parse::<u64>().is_ok(), || format!("the time is {now}"))?;
    let names = |value: &Value, step| -> Vec<String> {
        value.list().iter().step_by(step).filter_map(Value::text).map(Into::into).collect()
    };
    let texts = |claims: &[Claim]| claims.iter().map(|claim| claim.text.clone()).collect();
    let mut held = names(held, 3);
    held.sort();
    equal("the holders", &held, &texts(&holders))?;
    equal("the waiters", &names(waiting, 2), &texts(&waiters[..2]))
}

fn list_at_lock(bench: &mut Bench) -> Verdict {
    let (holder, waiter) = (exclusive(1), exclusive(2));
    acquire(bench, &holder)?;
    queue(bench, &waiter)?;
    bench.call(&["DEL", &keys().lock]);
    bench.call(&["RPUSH", &keys().lock, "a"]);
    release(bench, &waiter)?;
    answers(bench, Op::Release, &holder, 0)?;
    equal("the queue", &bench.call(&["EXISTS", &keys().queue]), &Value::Int(0))?;
    equal("the list", &bench.call(&["LLEN", &keys().lock]), &Value::Int(1))
}

fn marks_of_checks(bench: &mut Bench) -> Verdict {
    let (holder, next, last) = (exclusive(1), exclusive(2), exclusive(3));
    acquire(bench, &holder)?;
    bench.advance(&[keys()], 10_000);
    queue(bench, &next)?;
    near("the marked holder's TTL", ttl(bench, &keys().lock), LONG - 10_000)?;
    queue(bench, &last)?;
    let check = |bench: &mut Bench| {
        bench.send_check(&keys(), &last.process, &[]);
        bench.client.receive()
    };
    bench.call(&["DEL", &keys().token]);
    check(bench);
    let is_marked =
        |bench: &mut Bench| Ok::<_, String>(bench.state(&keys())?.marks == (true, true));
    ensure(is_marked(bench)?, || "a mark is missing".into())?;
    bench.call(&["DEL", &keys().lock]);
    equal("the next one", &check(bench).list()[2], &Value::Text(last.text.clone()))?;
    holds(bench, &next, true)
}
