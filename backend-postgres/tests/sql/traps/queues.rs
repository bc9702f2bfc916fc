//! Places in the queue, hand-offs and looks.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("one that was late and whose process died is removed", late_and_dead),
    ("one that was late is removed from an empty queue if its process died", late_alone_and_dead),
    ("an attempt shows that its process lives", thawed),
    ("all waiters of a dead process are passed over at once", many_dead),
    ("the first waiter looks again when the holder ends", next_look),
    ("a look does not wait for another step", look_skips),
    ("a step with an old snapshot forgets no waiter", old_snapshot),
    ("a step with an old snapshot hands nothing off to a waiter that left", left_since),
    ("a hold changes nothing of its owner's place in another queue", elsewhere),
];

/// As in a pooler's session, whose role reads by one snapshot.
fn old_snapshot(bench: &mut Bench) -> Verdict {
    let [first, second, third] = &[1, 2, 3].map(Claim::exclusive);
    let release = format!("SELECT release_1('lock', '{}')", second.owner);
    for step in [attempt_in_sql(second), release] {
        bench.reset();
        bench.acquire(first)?;
        bench.queue(second)?;
        bench.release(first)?;
        bench.other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM claims")?;
        bench.queue(third)?;
        bench.other.run(&step)?;
        bench.other.run("COMMIT")?;
        bench.release(second)?;
        equal("the look", &bench.look(third, &[])?, &vec![(third.owner, 0)])?;
    }
    Ok(())
}

fn left_since(bench: &mut Bench) -> Verdict {
    let [first, second, third] = &[1, 2, 3].map(Claim::exclusive);
    bench.acquire(first)?;
    queued(bench, &[second, third])?;
    bench.other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM claims")?;
    bench.release(second)?;
    let release = format!("SELECT release_1('lock', '{}')", first.owner);
    fails("40001", &bench.other.run(&release))?;
    bench.other.run("ROLLBACK")?;
    bench.release(first)?;
    equal("the next holder", &holder(bench)?, &Some(third.owner))
}

fn elsewhere(bench: &mut Bench) -> Verdict {
    let (holder, waiter) = (Claim::exclusive(1), Claim::exclusive(2));
    let held = waiter.clone().key(b"elsewhere").ttl(SECOND);
    let next = Claim { process: held.process.clone(), ..Claim::exclusive(3).key(b"elsewhere") };
    bench.acquire(&holder)?;
    bench.queue(&waiter)?;
    bench.acquire(&held)?;
    bench.queue(&next)?;
    equal("the look", &bench.look(&held, &[])?, &vec![(next.owner, 1000)])?;
    bench.advance(SECOND);
    equal("the look after the end", &bench.look(&held, &[])?, &vec![(next.owner, 0)])?;
    ensure(bench.state()?.lock(b"lock").waits(waiter.owner), || "the place is gone".into())
}

fn queued(bench: &mut Bench, claims: &[&Claim]) -> Verdict {
    claims.iter().try_for_each(|claim| bench.queue(claim))
}

/// The second of five is late; the third holds.
fn granted_late(bench: &mut Bench) -> Result<[Claim; 5], String> {
    let all = [1, 2, 3, 4, 5].map(Claim::exclusive);
    bench.acquire(&all[0])?;
    queued(bench, &[&all[1], &all[2], &all[3], &all[4]])?;
    bench.release(&all[0])?;
    bench.advance(2 * SECOND);
    for claim in &all {
        bench.look(claim, &[])?;
    }
    equal("the holder", &holder(bench)?, &Some(all[2].owner))?;
    bench.acquire(&all[2])?;
    Ok(all)
}

/// The fourth of five is late too, while the process of the second is silent, or not.
fn late_again(bench: &mut Bench, is_silent: bool) -> Verdict {
    let [_, late, third, fourth, fifth] = granted_late(bench)?;
    for _ in 0..4 {
        bench.advance(SECOND);
        for claim in [&third, &fourth, &fifth] {
            bench.look(claim, &[])?;
        }
        if !is_silent {
            bench.look(&late, &[])?;
        }
    }
    bench.release(&third)?;
    bench.advance(2 * SECOND);
    for claim in [&fourth, &fifth] {
        bench.look(claim, &[])?;
    }
    equal("the holder", &holder(bench)?, &Some(fifth.owner))?;
    let lock = bench.state()?.lock(b"lock");
    equal("whether it is removed", &lock.claim(late.owner).is_none(), &is_silent)?;
    ensure(lock.claim(fourth.owner).is_some(), || "the one that was late now is gone".into())
}

fn late_and_dead(bench: &mut Bench) -> Verdict {
    late_again(bench, true)
}

/// As above, when the queue is empty.
fn late_alone_and_dead(bench: &mut Bench) -> Verdict {
    for is_silent in [true, false] {
        bench.reset();
        let [_, late, third, fourth, fifth] = granted_late(bench)?;
        bench.release(&fourth)?;
        bench.release(&fifth)?;
        for _ in 0..4 {
            bench.advance(SECOND);
            if !is_silent {
                bench.look(&late, &[])?;
            }
        }
        bench.release(&third)?;
        let lock = bench.state()?.lock(b"lock");
        equal("whether it is removed", &lock.claim(late.owner).is_none(), &is_silent)?;
    }
    Ok(())
}

fn thawed(bench: &mut Bench) -> Verdict {
    let [first, second, third] = [1, 2, 3].map(Claim::exclusive);
    bench.acquire(&first)?;
    queued(bench, &[&second])?;
    bench.advance(5 * SECOND);
    queued(bench, &[&second, &third])?;
    bench.release(&first)?;
    equal("the next holder", &holder(bench)?, &Some(second.owner))
}

fn many_dead(bench: &mut Bench) -> Verdict {
    passed_over_at_once(bench, (0..200).map(|n| Claim::exclusive(1000 + 5 * n)))
}

fn passed_over_at_once(bench: &mut Bench, dead: impl Iterator<Item = Claim>) -> Verdict {
    let (first, last) = (Claim::exclusive(1), Claim::exclusive(2));
    bench.acquire(&first)?;
    for claim in dead {
        bench.queue(&claim)?;
    }
    bench.queue(&last)?;
    bench.advance(4 * SECOND);
    bench.look(&last, &[])?;
    bench.release(&first)?;
    equal("the next holder", &holder(bench)?, &Some(last.owner))?;
    equal("the claims", &bench.state()?.lock(b"lock").claims.len(), &1)
}

fn next_look(bench: &mut Bench) -> Verdict {
    let of = |bench: &mut Bench, claim: &Claim| -> Result<i32, String> {
        let reply = bench.attempt(claim)?;
        ensure_queued("the attempt", reply)?;
        Ok(i32::try_from(-reply).unwrap())
    };
    for holder in [Claim::exclusive(1), Claim::shared(1)] {
        for (ttl, expected) in [(300_000, 301), (1000, 20), (LONG, 1000)] {
            bench.reset();
            bench.acquire(&holder.clone().ttl(ttl))?;
            let (first, second) = (Claim::exclusive(2), Claim::exclusive(3));
            equal("the first one's", &of(bench, &first)?, &expected)?;
            equal("the second one's", &of(bench, &second)?, &1000)?;
            let found = bench.look(&first, &[first.owner])?;
            equal("the first one's look", &found, &vec![(first.owner, expected)])?;
            equal("the second one's look", &bench.look(&second, &[])?, &vec![])?;
        }
    }
    bench.reset();
    let (holder, handed) = (Claim::exclusive(1), Claim::exclusive(2).ttl(300_000));
    bench.acquire(&holder)?;
    bench.queue(&handed)?;
    bench.release(&holder)?;
    equal("behind one that was handed the lock", &of(bench, &Claim::exclusive(3))?, &301)
}

fn look_skips(bench: &mut Bench) -> Verdict {
    let (first, second) = (Claim::exclusive(1).ttl(SECOND), Claim::exclusive(2));
    bench.acquire(&first)?;
    bench.queue(&second)?;
    bench.advance(SECOND);
    bench.other.run("BEGIN; SELECT FROM locks FOR NO KEY UPDATE")?;
    equal("the look", &bench.look(&second, &[])?, &vec![(second.owner, 20)])?;
    bench.other.run("COMMIT")?;
    equal("the look afterwards", &bench.look(&second, &[])?, &vec![(second.owner, 0)])
}
