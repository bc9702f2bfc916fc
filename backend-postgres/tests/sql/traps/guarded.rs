//! Transactions of users that check a token.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a release waits for no guarded transaction", release),
    ("a stale token is FL001", stale),
    ("a local successor's transaction waits for its predecessor's", turns),
    ("what the statement of a check reads may be from before it", own_statement),
    (
        "a check passes over no grant, though a guarded transaction ended within its step",
        overlapped,
    ),
    ("an older snapshot does not see what was granted since", old_snapshot),
    ("only a longer limit on silence is changed", idle_limits),
    ("a fence rises", fence),
];

fn release(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(1), Claim::permits(1, 1, 1)] {
        bench.reset();
        let token = bench.acquire(&claim)?;
        begins_with_check(bench, &claim, token)?;
        // A wait would be an error.
        equal("the release", &bench.release(&claim)?, &1)?;
        equal("the release, repeated", &bench.release(&claim)?, &0)?;
        ensure(!bench.renews(&claim)?, || "renewed after its release".into())?;
        fails("FL001", &bench.main.run(&check(&claim, token)))?;
        equal("a writer's try", &bench.try_once(&Claim::exclusive(2))?, &0)?;
        bench.other.run("COMMIT")?;
        bench.acquire(&Claim::exclusive(2))?;
        equal("the claims", &bench.state()?.lock(b"lock").claims.len(), &0)?;
    }
    Ok(())
}

fn stale(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(1)] {
        bench.reset();
        fails("FL001", &bench.main.run(&check(&claim, START)))?;
        let token = bench.acquire(&claim)?;
        bench.main.run(&check(&claim, token))?;
        bench.release(&claim)?;
        fails("FL001", &bench.main.run(&check(&claim, token)))?;
        let next = bench.acquire(&Claim::exclusive(2))?;
        fails("FL001", &bench.main.run(&check(&claim, token)))?;
        bench.main.run(&check(&claim, next))?;
        fails("FL001", &bench.main.run("SELECT check_token('lock', NULL, 1000)"))?;
    }
    Ok(())
}

fn turns(bench: &mut Bench) -> Verdict {
    let claim = Claim::exclusive(1).tokens(2);
    let token = bench.acquire(&claim)?;
    begins_with_check(bench, &claim, token)?;
    ensure(bench.renews(&claim)?, || "not renewed".into())?;
    fails("55P03", &bench.main.run(&check(&claim, token + 1)))?;
    bench.other.run("COMMIT")?;
    bench.main.run(&check(&claim, token + 1))?;
    // The one that came before, and does not know it.
    fails("FL001", &bench.main.run(&check(&claim, token)))?;
    bench.release(&claim)?;
    let next = bench.acquire(&claim)?;
    bench.main.run(&check(&claim, next))
}

/// The check waits for an earlier turn, whose end is not in the snapshot of its own statement.
fn own_statement(bench: &mut Bench) -> Verdict {
    for (is_own, expected) in [(true, "2"), (false, "1")] {
        bench.reset();
        let claim = Claim::exclusive(1).tokens(2);
        let token = bench.acquire(&claim)?;
        bench.main.run("INSERT INTO cells VALUES ('stock', gen_random_uuid(), '1', NULL)")?;
        begins_with_check(bench, &claim, token)?;
        bench.other.run("UPDATE cells SET content = '2'")?;
        let next = check(&claim, token + 1);
        let reads = "INSERT INTO cells SELECT 'seen', gen_random_uuid(), content, NULL FROM cells";
        let together = format!("{reads}, {}", next.replace("SELECT", ""));
        let statements = if is_own { format!("{next}; {reads}") } else { together };
        let (waiting, task) = (bench.main.pid(), bench.main.start(&statements));
        bench.until_it_waits(waiting)?;
        bench.other.run("COMMIT")?;
        bench.main.join(task)?;
        let seen = bench.third.query("SELECT content FROM cells WHERE key = 'seen'", &[])?;
        equal("what was read", &seen[0].get(0), &expected.as_bytes())?;
    }
    Ok(())
}

/// A step locks the row before and after the end of a guarded transaction, and PostgreSQL notes both: a check that
/// begins with an older version of the row could follow it to the holder's end without a conflict.
fn overlapped(bench: &mut Bench) -> Verdict {
    let attempt = |mode| {
        format!(
            "SELECT FROM attempt_1('lock', '$owner', '{mode}', 1, 1, 9000000, 'p', '', true, 1, true)"
        )
    };
    let batch = "SELECT FROM batch_1('{a}', '{lock}', ARRAY['$owner']::uuid[], '{x}', '{1}', '{1}', '{9000000}',
      '{\"\"}', '{true}', '{1}', 'p')";
    for step in [attempt('x'), attempt('s'), batch.to_owned()] {
        for (queue, level) in
            [(true, "READ COMMITTED"), (true, "REPEATABLE READ"), (false, "REPEATABLE READ")]
        {
            bench.reset();
            let holder = Claim::exclusive(1).ttl(SECOND);
            let token = bench.acquire(&holder)?;
            bench.other.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM cells"))?;
            ensure(bench.renews(&holder)?, || "not renewed".into())?;
            bench.third.run("BEGIN")?;
            bench.third.run(&check(&holder, token))?;
            bench.advance(2 * LONG);
            bench.main.run("BEGIN")?;
            let first = Claim::exclusive(2);
            bench.number(&Call::Attempt { claim: first.clone(), queue })?;
            bench.third.run("COMMIT")?;
            let next = if step.contains("'s'") { Claim::shared(3) } else { first };
            bench.main.query(&step.replace("$owner", &next.owner.to_string()), &[])?;
            let held = "SELECT FROM locks WHERE owner = $1";
            let granted = bench.main.query(held, &[&holder.owner])?.is_empty();
            let (checking, checks) = (bench.other.pid(), bench.other.start(&check(&holder, token)));
            if granted {
                bench.until_it_waits(checking)?;
            }
            bench.main.run("COMMIT")?;
            let checked = bench.other.join(checks);
            let sound = !granted || checked.is_err();
            ensure(sound, || format!("{level}, {queue}: granted beside a check: {step}"))?;
        }
    }
    Ok(())
}

fn old_snapshot(bench: &mut Bench) -> Verdict {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for (first, next) in
            [(Claim::exclusive(1), Claim::exclusive(2)), (Claim::shared(1), Claim::exclusive(2))]
        {
            bench.reset();
            let token = bench.acquire(&first)?;
            bench.other.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM cells"))?;
            bench.release(&first)?;
            bench.acquire(&next)?;
            fails("40001", &bench.other.run(&check(&first, token)))?;
            bench.other.run("ROLLBACK")?;
            // A renewal is not a grant.
            let token = bench.acquire(&next)?;
            bench.other.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM cells"))?;
            ensure(bench.renews(&next)?, || "not renewed".into())?;
            bench.other.run(&check(&next, token))?;
            equal("a try", &bench.try_once(&Claim::exclusive(3))?, &0)?;
            bench.other.run("COMMIT")?;
        }
        // The lease is over in the snapshot; whether it still is, the transaction does not see.
        for holder in [Claim::exclusive(1).ttl(SECOND), Claim::shared(1).ttl(SECOND)] {
            bench.reset();
            let token = bench.acquire(&holder)?;
            bench.queue(&Claim::exclusive(2))?;
            bench.other.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM cells"))?;
            ensure(bench.renews(&holder)?, || "not renewed".into())?;
            bench.advance(2 * SECOND);
            fails("40001", &bench.other.run(&check(&holder, token)))?;
            bench.other.run(&format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"))?;
            bench.other.run(&check(&holder, token))?;
            bench.other.run("COMMIT")?;
            bench.advance(LONG);
            bench.other.run(&format!("BEGIN ISOLATION LEVEL {level}"))?;
            fails("40001", &bench.other.run(&check(&holder, token)))?;
            bench.advance(10 * SECOND);
            bench.other.run(&format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"))?;
            fails("FL001", &bench.other.run(&check(&holder, token)))?;
            bench.other.run("ROLLBACK")?;
        }
    }
    Ok(())
}

fn idle_limits(bench: &mut Bench) -> Verdict {
    let claim = Claim::exclusive(1);
    let token = bench.acquire(&claim)?;
    let limits = [
        ("0", 5000, "5s"),
        ("2min", 5000, "5s"),
        ("3s", 5000, "3s"),
        ("100ms", 5000, "100ms"),
        ("1h", 0, "1ms"),
    ];
    for (before, idle, expected) in limits {
        // In one message, which leaves no time for silence.
        bench.other.run(&format!(
            "SET idle_in_transaction_session_timeout = '{before}'; BEGIN;
             SELECT check_token('lock', {token}, {idle});
             INSERT INTO cells VALUES ('seen', gen_random_uuid(),
               convert_to(current_setting('idle_in_transaction_session_timeout'), 'UTF8'), NULL);
             COMMIT; SET idle_in_transaction_session_timeout = 0"
        ))?;
        let seen = bench.main.query("DELETE FROM cells RETURNING content", &[])?;
        let seen = String::from_utf8(seen[0].get(0)).unwrap();
        equal("the limit", &seen.as_str(), &expected)?;
    }
    Ok(())
}

fn fence(bench: &mut Bench) -> Verdict {
    for (token, passes) in [(5, true), (5, true), (4, false), (9, true), (8, false), (9, true)] {
        let done = bench.main.run(&format!("SELECT fence('stock', {token})"));
        if passes { done? } else { fails("FL001", &done)? }
    }
    bench.main.run("SELECT fence('other', 1)")?;
    // A transaction that is rolled back leaves no trace.
    bench.main.run("BEGIN; SELECT fence('stock', 100); ROLLBACK; SELECT fence('stock', 10)")
}
