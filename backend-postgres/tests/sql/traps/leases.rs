//! Tokens, and the ends of leases.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("tokens are reserved at the grant, and found again", reserved),
    ("the time does not stand in a transaction", time_in_a_transaction),
    ("the time is read after a wait for the row", time_after_a_wait),
    ("a renewal does not revive what ended while it waited", renewal_after_a_wait),
    ("a release frees no other claim", foreign_release),
    ("a busy attempt writes nothing", busy_writes_nothing),
    ("a try finds its own hold, and no ended one", try_at_readers),
];

fn reserved(bench: &mut Bench) -> Verdict {
    let first = Claim::exclusive(1).tokens(64);
    for token in [START, START] {
        equal("the first of 64", &bench.acquire(&first)?, &token)?;
    }
    equal("whatever a repetition asks for", &bench.acquire(&first.clone().tokens(8))?, &START)?;
    let (second, third) = (Claim::exclusive(2).tokens(8), Claim::shared(3).tokens(5));
    bench.queue(&second)?;
    bench.queue(&third)?;
    bench.release(&first)?;
    for token in [START + 64, START + 64] {
        equal("the first of 8, handed off", &bench.acquire(&second)?, &token)?;
    }
    bench.release(&second)?;
    for token in [START + 72, START + 72] {
        equal("the first of 5 of a reader", &bench.acquire(&third)?, &token)?;
    }
    let (fourth, fifth) = (Claim::shared(4).tokens(3), Claim::shared(5));
    equal("a reader's that joins", &bench.acquire(&fourth)?, &(START + 77))?;
    equal("the one after it", &bench.acquire(&fifth)?, &(START + 80))
}

fn time_in_a_transaction(bench: &mut Bench) -> Verdict {
    let attempt = |key: &str, owner| {
        let owner = Uuid::from_u128(owner);
        format!(
            "SELECT real.attempt_1('{key}', '{owner}', 'x', 1, 1, 30000000, 'p', '', true, 1, true)"
        )
    };
    bench.main.run("BEGIN")?;
    let first: i64 = bench.main.query(&attempt("a", 1), &[])?[0].get(0);
    bench.main.run("SELECT pg_sleep(0.02)")?;
    let second: i64 = bench.main.query(&attempt("b", 2), &[])?[0].get(0);
    bench.main.run("ROLLBACK")?;
    ensure(second >= first + 20_000, || format!("{second} is 20 ms after {first}"))
}

fn time_after_a_wait(bench: &mut Bench) -> Verdict {
    for (next, ends) in
        [(Claim::exclusive(2), true), (Claim::shared(3), true), (Claim::exclusive(4), false)]
    {
        bench.reset();
        bench.acquire(&Claim::exclusive(1).ttl(SECOND))?;
        bench.other.run("BEGIN; SELECT FROM locks FOR UPDATE")?;
        let waits = bench.main.start(&attempt_in_sql(&next));
        bench.until_it_waits(bench.main_pid)?;
        bench.advance(if ends { SECOND } else { SECOND - 1 });
        bench.other.run("COMMIT")?;
        bench.main.join(waits)?;
        let is_granted = holder(bench)? == Some(next.owner);
        equal("whether it is granted", &is_granted, &ends)?;
    }
    Ok(())
}

fn renewal_after_a_wait(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1).ttl(SECOND), Claim::shared(2).ttl(SECOND)] {
        bench.reset();
        bench.acquire(&claim)?;
        bench.other.run("BEGIN; SELECT FROM locks FOR UPDATE; SELECT FROM claims FOR UPDATE")?;
        let owner = claim.owner;
        let sql = format!(
            "SELECT renew_1(ARRAY['lock'::bytea], ARRAY['{owner}'::uuid], ARRAY[9000000], true)"
        );
        let waits = bench.main.start(&sql);
        bench.until_it_waits(bench.main_pid)?;
        bench.advance(SECOND);
        // A new version of the row, as that of a step.
        bench.other.run("UPDATE locks SET label = 'x'; UPDATE claims SET label = 'x'; COMMIT")?;
        bench.main.join(waits)?;
        let until = bench.state()?.lock(b"lock").grant(owner).map(|grant| grant.until);
        equal("the end", &until, &Some(START + SECOND))?;
    }
    Ok(())
}

fn foreign_release(bench: &mut Bench) -> Verdict {
    let (holder, stranger, waiter) =
        (Claim::exclusive(1), Claim::exclusive(2), Claim::exclusive(3));
    bench.acquire(&holder)?;
    equal("a stranger's release", &bench.release(&stranger)?, &0)?;
    equal("a stranger's try", &bench.try_once(&stranger)?, &0)?;
    bench.queue(&waiter)?;
    equal("a stranger's release with waiters", &bench.release(&stranger)?, &0)?;
    equal("the holder", &super::holder(bench)?, &Some(holder.owner))?;
    // Nor by its owner, of another lock.
    let elsewhere = holder.clone().key(b"elsewhere");
    bench.acquire(&Claim::shared(4).key(b"elsewhere"))?;
    equal("a release at another lock", &bench.release(&elsewhere)?, &0)?;
    equal(
        "a waiter's release at another lock",
        &bench.release(&waiter.clone().key(b"elsewhere"))?,
        &0,
    )?;
    ensure(bench.state()?.lock(b"lock").waits(waiter.owner), || "the waiter is gone".into())
}

fn busy_writes_nothing(bench: &mut Bench) -> Verdict {
    let all = [Claim::exclusive(2), Claim::shared(3), Claim::permits(4, 1, 1)];
    for holder in [Claim::exclusive(1), Claim::shared(1), Claim::permits(1, 1, 1)] {
        bench.reset();
        bench.acquire(&holder)?;
        // Of the holder's own mode, how many they are is counted under the lock.
        for claim in all.iter().filter(|claim| claim.mode != holder.mode || claim.mode == 'x') {
            bench.main.run("BEGIN")?;
            equal("the reply", &bench.try_once(claim)?, &0)?;
            let rows = bench.main.query("SELECT pg_current_xact_id_if_assigned()::text", &[])?;
            bench.main.run("ROLLBACK")?;
            equal("the transaction's id", &rows[0].get::<_, Option<String>>(0), &None)?;
        }
    }
    Ok(())
}

/// Of a writer that became a reader, and repeats itself; and of one whose readers have ended.
fn try_at_readers(bench: &mut Bench) -> Verdict {
    let holder = Claim::exclusive(1);
    let token = bench.acquire(&holder)?;
    bench.number(&Call::Downgrade(holder.clone(), LONG))?;
    equal("the repetition", &bench.try_once(&holder)?, &token)?;
    bench.advance(LONG);
    ensure(bench.try_once(&Claim::exclusive(2))? > 0, || "not granted".into())
}
