//! Tokens, and the ends of leases.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a token is the time, and one more than the last when the clock fell", token_of_a_clock),
    ("a token rises though the row was lost", token_without_its_row),
    ("tokens are reserved at the grant, and found again", reserved),
    ("the time does not stand in a transaction", time_in_a_transaction),
    ("the time is read after a wait for the row", time_after_a_wait),
    ("a renewal does not revive what ended while it waited", renewal_after_a_wait),
    ("a repeated attempt extends, with its token", repeated),
    ("a renewal never revives", revival),
    ("a fixed lease is only asked for", fixed),
    ("a lease of months does not overflow", months),
    ("a release frees no other claim", foreign_release),
    ("a repeated release finds nothing", repeated_release),
    ("a busy attempt writes nothing", busy_writes_nothing),
    ("a try finds its own hold, and no ended one", try_at_readers),
];

fn token_of_a_clock(bench: &mut Bench) -> Verdict {
    let (first, second) = (Claim::exclusive(1), Claim::exclusive(2));
    equal("the first token", &bench.acquire(&first)?, &START)?;
    bench.release(&first)?;
    bench.advance(-3600 * SECOND);
    equal("the second token", &bench.acquire(&second)?, &(START + 1))?;
    bench.release(&second)?;
    let reader = Claim::shared(3);
    equal("a reader's token", &bench.acquire(&reader)?, &(START + 2))?;
    bench.queue(&Claim::exclusive(4))?;
    bench.release(&reader)?;
    equal("a token handed off", &bench.acquire(&Claim::exclusive(4))?, &(START + 3))
}

fn token_without_its_row(bench: &mut Bench) -> Verdict {
    let all = [Claim::exclusive(1), Claim::shared(2), Claim::exclusive(3)];
    let mut last = 0;
    for claim in all {
        let token = bench.acquire(&claim)?;
        ensure(token > last, || format!("{token} after {last}"))?;
        last = token;
        bench.main.run("TRUNCATE locks, claims")?;
        bench.advance(1);
    }
    Ok(())
}

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

fn repeated(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(2), Claim::permits(3, 1, 2)] {
        bench.reset();
        let token = bench.acquire(&claim)?;
        bench.advance(SECOND);
        equal("the token", &bench.acquire(&claim)?, &token)?;
        equal("the token of a try", &bench.try_once(&claim)?, &token)?;
        let grant = bench.state()?.lock(b"lock").grant(claim.owner);
        let until = grant.map(|grant| grant.until);
        equal("the end", &until, &Some(START + SECOND + LONG))?;
    }
    Ok(())
}

fn revival(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(2), Claim::permits(3, 1, 2)] {
        bench.reset();
        let claim = claim.ttl(SECOND);
        bench.acquire(&claim)?;
        bench.advance(SECOND - 1);
        ensure(bench.renews(&claim)?, || "not renewed in time".into())?;
        bench.advance(LONG);
        ensure(!bench.renews(&claim)?, || "revived".into())?;
        let until = bench.state()?.lock(b"lock").grant(claim.owner).map(|grant| grant.until);
        equal("the end", &until, &Some(bench.now()))?;
        bench.acquire(&Claim::exclusive(4))?;
        ensure(!bench.renews(&claim)?, || "renewed, though another holds".into())?;
    }
    Ok(())
}

fn fixed(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(2)] {
        bench.reset();
        bench.acquire(&claim)?;
        let before = bench.state()?;
        bench.advance(SECOND);
        let ask = Call::Renew(vec![claim.clone()], 0);
        let (reply, _, after) = bench.call(&ask)?;
        equal("those that hold", &reply.owners.len(), &1)?;
        equal("the rows", &after.locks, &before.locks)?;
        bench.advance(LONG);
        equal("those that hold after the end", &bench.call(&ask)?.0.owners.len(), &0)?;
    }
    Ok(())
}

fn months(bench: &mut Bench) -> Verdict {
    let ttl = 100 * 86_400 * SECOND;
    for claim in [Claim::exclusive(1).ttl(ttl), Claim::shared(2).ttl(ttl)] {
        bench.reset();
        bench.acquire(&claim)?;
        bench.advance(ttl - 1);
        equal("the reply to another", &bench.try_once(&Claim::exclusive(3))?, &0)?;
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

fn repeated_release(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(2), Claim::permits(3, 1, 2)] {
        bench.acquire(&claim)?;
        equal("the first release", &bench.release(&claim)?, &1)?;
        equal("the second release", &bench.release(&claim)?, &0)?;
    }
    bench.acquire(&Claim::exclusive(4))?;
    let waiter = Claim::exclusive(5);
    bench.queue(&waiter)?;
    equal("the first release of a waiter", &bench.release(&waiter)?, &1)?;
    equal("the second release of a waiter", &bench.release(&waiter)?, &0)
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
