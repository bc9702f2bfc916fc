//! A server that is out of memory refuses new locks, but neither releases nor renewals.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("out of memory, a release hands off and is confirmed", hand_off),
    ("beside a dead reader", beside),
];

fn fill(bench: &mut Bench) {
    bench.call(&["CONFIG", "SET", "maxmemory", "1"]);
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

/// One that did not confirm its grant is removed first.
fn beside(bench: &mut Bench) -> Verdict {
    acquire(bench, &exclusive(1))?;
    queue(bench, &shared(2))?;
    queue(bench, &with_ttl(&shared(3), 50))?;
    fill(bench);
    release(bench, &exclusive(1))?;
    std::thread::sleep(std::time::Duration::from_millis(60));
    acquire(bench, &shared(2)).map(drop)
}
