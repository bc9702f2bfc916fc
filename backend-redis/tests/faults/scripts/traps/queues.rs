//! Places in the queue, hand-offs and checks.

use super::*;
use crate::scripts::rules::FOREIGN;

pub(super) const TRAPS: &[Trap] = &[
    ("a hand-off waits at most two seconds for its confirmation", claim_ttl),
    ("a late confirmation keeps its place", late_confirmation),
    ("a late confirmation after another program keeps its place", late_after_foreign),
    ("the first waiter checks often while another program holds", foreign_without_end),
    ("a holder without TTL is given one", holder_without_end),
    ("a group without TTL ends with its members", group_without_end),
    ("the head waits through the last ms of a holder", last_ms),
    ("many dead waiters are removed in short steps, at once", many_dead),
    ("a grant ends with its client's deadline", grant_of_the_dying),
    ("a removed waiter that resumes is notified that it is missing", passed_over),
    ("a queue of dead waiters is removed", queue_of_the_dead),
    ("the dead leave a queue in use", dead_among_living),
    ("a deleted token lets no waiter overtake", lost_mark),
    ("a lost queue is reported until it is restored", lost_queue),
    ("a lost place is reported by a sample", lost_place),
    ("a release does not free another's lock", foreign_release),
    ("an eviction notifies its victim", eviction),
    ("arrivals in the same us, or after a clock that fell, queue last", arrivals),
    ("leaving an unconfirmed grant hands the lock off", leaving_a_grant),
    ("a holder and the waiters are shown in order", shown),
    ("a list at the lock's key keeps no waiter in the queue", list_at_lock),
];

fn claim_ttl(bench: &mut Bench) -> Verdict {
    for (second, expected) in
        [(exclusive(2), 2000), (with_ttl(&exclusive(2), 900), 900), (shared(2), 2000)]
    {
        let first = exclusive(1);
        acquire(bench, &first)?;
        queue(bench, &second)?;
        release(bench, &first)?;
        near("the claim's TTL", ttl(bench, &keys().lock), expected)?;
        acquire(bench, &second)?;
        near("the TTL", ttl(bench, &keys().lock), second.ttl)?;
        release(bench, &second)?;
        let left = bench.call(&["EXISTS", &keys().lock, &keys().queue]);
        equal("the remaining keys", &left, &Value::Int(0))?;
    }
    Ok(())
}

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

fn late_confirmation(bench: &mut Bench) -> Verdict {
    let (late, next) = granted_late(bench)?;
    acquire(bench, &late)?;
    queue(bench, &next).map(drop)
}

fn late_after_foreign(bench: &mut Bench) -> Verdict {
    let (late, next) = granted_late(bench)?;
    bench.call(&["SET", &keys().lock, "other program", "PX", "60000"]);
    bench.send_check(&keys(), &late.process, &[]);
    let found = bench.client.receive();
    ensure(found.texts().contains(&late.text.as_str()), || format!("not reported: {found:?}"))?;
    equal("the next check", &queue(bench, &late)?, &FOREIGN)?;
    let state = bench.state(&keys())?;
    let order: Vec<_> = state.waiting.iter().map(|waiter| &waiter.claim.text).collect();
    equal("the order", &order, &vec![&late.text, &next.text])
}

fn foreign_without_end(bench: &mut Bench) -> Verdict {
    let (first, second) = (exclusive(1), exclusive(2));
    bench.call(&["SET", &keys().lock, "other program"]);
    equal("the first one's check", &queue(bench, &first)?, &FOREIGN)?;
    equal("the second one's check", &queue(bench, &second)?, &1000)?;
    answers(bench, Op::Try, &exclusive(3), 0)?;
    bench.call(&["DEL", &keys().lock]);
    bench.send_check(&keys(), &second.process, &[]);
    bench.client.receive();
    holds(bench, &first, true)?;
    equal("the pushes", &messages(bench).len(), &1)
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

fn last_ms(bench: &mut Bench) -> Verdict {
    let (holder, waiter) = (with_ttl(&exclusive(1), 3), exclusive(2));
    for _ in 0..5 {
        acquire(bench, &holder)?;
        for _ in 0..100_000 {
            let answer = bench.op(Op::Queue, &keys(), &waiter);
            match (answer.int(), answer.list()) {
                (Some(_), _) => break,
                (None, [Value::Int(1..=4)]) => {}
                _ => return Err(format!("{answer:?}")),
            }
        }
        release(bench, &waiter)?;
    }
    Ok(())
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

/// How long a client may live, as known when its waiter is granted.
fn grant_of_the_dying(bench: &mut Bench) -> Verdict {
    let (holder, dying) = (exclusive(1), exclusive(2));
    acquire(bench, &holder)?;
    queue(bench, &dying)?;
    bench.advance(&[keys()], 2500);
    release(bench, &holder)?;
    holds(bench, &dying, true)?;
    near("the claim's TTL", ttl(bench, &keys().lock), 500)
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

fn lost_queue(bench: &mut Bench) -> Verdict {
    let (holder, waiter) = (exclusive(1), exclusive(2));
    acquire(bench, &holder)?;
    queue(bench, &waiter)?;
    bench.call(&["DEL", &keys().queue]);
    for _ in 0..2 {
        bench.send_check(&keys(), &waiter.process, &[]);
        let answer = bench.client.receive();
        equal("missing", &answer.list()[1], &Value::Int(1))?;
        equal("the queue", &bench.call(&["EXISTS", &keys().queue]), &Value::Int(0))?;
    }
    queue(bench, &waiter)?;
    bench.send_check(&keys(), &waiter.process, &[]);
    let answer = bench.client.receive();
    equal("missing", &answer.list()[1], &Value::Int(0))
}

fn lost_place(bench: &mut Bench) -> Verdict {
    let (holder, first, second) = (exclusive(1), exclusive(2), exclusive(7));
    acquire(bench, &holder)?;
    queue(bench, &first)?;
    queue(bench, &second)?;
    bench.call(&["ZREM", &keys().queue, &first.text]);
    for (sample, expected) in [(&first, 1), (&second, 0)] {
        bench.send_check(&keys(), &first.process, std::slice::from_ref(&sample.text));
        let answer = bench.client.receive();
        equal("missing", &answer.list()[1], &Value::Int(expected))?;
    }
    Ok(())
}

fn foreign_release(bench: &mut Bench) -> Verdict {
    let (holder, other) = (exclusive(1), exclusive(2));
    acquire(bench, &holder)?;
    answers(bench, Op::Release, &other, 0)?;
    answers(bench, Op::Release, &shared(1), 0)?;
    answers(bench, Op::Renew, &other, 0)?;
    queue(bench, &other)?;
    release(bench, &other)?;
    holds(bench, &holder, true)?;
    equal("the queue", &bench.call(&["EXISTS", &keys().queue]), &Value::Int(0))
}

fn eviction(bench: &mut Bench) -> Verdict {
    for holder in [exclusive(1), shared(1), permits(1, 2, 2)] {
        let waiter = exclusive(2);
        acquire(bench, &holder)?;
        queue(bench, &waiter)?;
        answers(bench, Op::Evict, &holder, 1)?;
        let pushed = messages(bench);
        ensure(pushed.len() == 2 && pushed[0] == holder.granted(0), || format!("{pushed:?}"))?;
        answers(bench, Op::Evict, &holder, 0)?;
        equal("the pushes", &messages(bench), &Vec::new())?;
        acquire(bench, &waiter)?;
        release(bench, &waiter)?;
    }
    bench.call(&["SET", &keys().lock, "other program"]);
    let waiter = exclusive(2);
    queue(bench, &waiter)?;
    bench.send("release", &keys(), &["other program", "tell"]);
    equal("the eviction", &bench.client.receive(), &Value::Int(1))?;
    holds(bench, &waiter, true)
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

fn leaving_a_grant(bench: &mut Bench) -> Verdict {
    for (second, third) in [(exclusive(2), exclusive(3)), (permits(2, 2, 2), permits(3, 1, 2))] {
        let first = exclusive(1);
        acquire(bench, &first)?;
        queue(bench, &second)?;
        queue(bench, &third)?;
        release(bench, &first)?;
        release(bench, &second)?;
        let pushed = messages(bench).len();
        equal("the pushes", &pushed, &2)?;
        acquire(bench, &third)?;
        release(bench, &third)?;
    }
    Ok(())
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
