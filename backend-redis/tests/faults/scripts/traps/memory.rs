//! A server that is out of memory refuses new locks, but neither releases nor renewals.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("out of memory, new claims are refused", nobody_new),
    ("out of memory, holders renew", holders_renew),
    ("out of memory, a release hands off and is confirmed", hand_off),
    ("out of memory, a check grants", check_grants),
];

fn fill(bench: &mut Bench) {
    bench.call(&["CONFIG", "SET", "maxmemory", "1"]);
}

fn nobody_new(bench: &mut Bench) -> Verdict {
    fill(bench);
    for claim in [exclusive(1), shared(2), permits(3, 1, 2)] {
        for op in [Op::Queue, Op::Try] {
            let answer = bench.op(op, &keys(), &claim);
            let is_refused = answer.error().is_some_and(|error| error.contains("OOM"));
            ensure(is_refused, || format!("{op:?} {}: {answer:?}", claim.text))?;
            answers(bench, Op::Release, &claim, 0)?;
        }
    }
    Ok(())
}

fn holders_renew(bench: &mut Bench) -> Verdict {
    for claim in [exclusive(1), shared(2), permits(3, 1, 2)] {
        acquire(bench, &claim)?;
        bench.advance(&[keys()], 10_000);
        fill(bench);
        answers(bench, Op::Renew, &claim, 1)?;
        near("the TTL", ttl(bench, &keys().lock), LONG)?;
        release(bench, &claim)?;
        bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    Ok(())
}

fn hand_off(bench: &mut Bench) -> Verdict {
    for (first, second) in
        [(exclusive(1), exclusive(2)), (exclusive(1), shared(2)), (shared(1), permits(2, 1, 2))]
    {
        acquire(bench, &first)?;
        queue(bench, &second)?;
        fill(bench);
        release(bench, &first)?;
        equal("the pushes", &messages(bench).len(), &1)?;
        acquire(bench, &second)?;
        near("the TTL", ttl(bench, &keys().lock), LONG)?;
        release(bench, &second)?;
        let left = bench.call(&["EXISTS", &keys().lock, &keys().queue]);
        equal("the remaining keys", &left, &Value::Int(0))?;
        bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    Ok(())
}

fn check_grants(bench: &mut Bench) -> Verdict {
    for (first, second) in [(exclusive(1), exclusive(2)), (shared(1), exclusive(2))] {
        acquire(bench, &first)?;
        queue(bench, &second)?;
        bench.call(&["DEL", &keys().lock]);
        fill(bench);
        bench.send_check(&keys(), &second.process, &[]);
        let answer = bench.client.receive();
        equal("the error", &answer.error(), &None)?;
        holds(bench, &second, true)?;
        release(bench, &second)?;
        bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    Ok(())
}
