//! What operators do, and what cleans up.

use super::*;
use crate::session::Session;

pub(super) const TRAPS: &[Trap] = &[
    ("holders and waiters are shown in order, without their owners", shown),
    ("an eviction hands off, and notifies its victim", eviction),
    ("tidying leaves what is in use", tidy_leaves),
    ("tidying waits for no step", tidy_skips),
    ("tidying reads a thousand rows at once", tidy_reads),
    ("clearing removes one prefix and all of it", clear),
];

const DAY: i64 = 86_400 * SECOND;

fn ids(bench: &Bench) -> Result<Vec<String>, String> {
    let rows = bench.main.query("SELECT id FROM inspect_1('lock')", &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn shown(bench: &mut Bench) -> Verdict {
    equal("of no lock", &ids(bench)?, &vec![])?;
    let holder = Claim::permits(1, 2, 3).tokens(4);
    bench.acquire(&holder)?;
    bench.advance(SECOND);
    bench.acquire(&Claim::permits(2, 2, 5).ttl(SECOND))?;
    bench.queue(&Claim::exclusive(3))?;
    bench.queue(&Claim::shared(4))?;
    let sql = "SELECT id, holds, mode::text, n, lim, label, token, since FROM inspect_1('lock')";
    let rows = bench.main.query(sql, &[])?;
    type Shown = (String, bool, String, i64, i64, Vec<u8>, i64, i64);
    let rows: Vec<Shown> = rows
        .iter()
        .map(|r| (r.get(0), r.get(1), r.get(2), r.get(3), r.get(4), r.get(5), r.get(6), r.get(7)))
        .collect();
    let label = |n| Uuid::from_u128(n).as_bytes().to_vec();
    let later = START + SECOND;
    let expected = vec![
        (format!("h{START}"), true, "p".into(), 2, 3, label(1), START, SECOND),
        (format!("h{later}"), true, "p".into(), 2, 5, label(2), later, 0),
        (format!("w{later}"), false, "x".into(), 1, 1, label(3), 0, 0),
        (format!("w{}", later + 1), false, "s".into(), 1, 1, label(4), 0, 0),
    ];
    equal("what is shown", &rows, &expected)?;
    bench.advance(SECOND);
    equal("after an end", &ids(bench)?.len(), &3)?;
    bench.reset();
    bench.acquire(&Claim::exclusive(1).ttl(SECOND))?;
    bench.advance(SECOND);
    equal("after a writer's end", &ids(bench)?, &vec![])?;
    bench.reset();
    bench.acquire(&Claim::exclusive(1))?;
    bench.queue(&Claim::exclusive(2))?;
    bench.release(&Claim::exclusive(1))?;
    equal("of one that was handed the lock", &ids(bench)?, &vec![format!("h{}", START + 1)])?;
    bench.advance(2 * SECOND + 1);
    equal("of one that did not take it", &ids(bench)?, &vec![format!("w{START}")])?;
    equal("its eviction", &evict(bench, &format!("w{START}"))?.0, &1)?;
    equal("after its eviction", &bench.state()?.lock(b"lock").claims.len(), &0)
}

fn evict(bench: &mut Bench, id: &str) -> Result<(i64, Vec<String>), String> {
    let (reply, notes, _) = bench.call(&Call::Evict { key: key(), id: id.into() })?;
    Ok((reply.number, notes.into_iter().map(|(_, owner)| owner).collect()))
}

fn eviction(bench: &mut Bench) -> Verdict {
    for victim in [Claim::exclusive(1).tokens(3), Claim::shared(1).tokens(3)] {
        bench.reset();
        bench.acquire(&victim)?;
        for n in 2..5 {
            bench.queue(&Claim::exclusive(n))?;
        }
        let text = |n| Uuid::from_u128(n).to_string();
        let all = ids(bench)?;
        equal("of a waiter", &evict(bench, &all[2])?, &(1, vec![text(3)]))?;
        let (removed, mut notified) = evict(bench, &all[0])?;
        notified.sort();
        equal("of a holder", &(removed, notified), &(1, vec![text(1), text(2)]))?;
        ensure(!bench.renews(&victim)?, || "the victim is renewed".into())?;
        // Not confirmed yet.
        equal("of the place that it had", &evict(bench, &all[1])?, &(0, vec![]))?;
        let all = ids(bench)?;
        let (removed, mut notified) = evict(bench, &all[0])?;
        notified.sort();
        equal("of an unconfirmed one", &(removed, notified), &(1, vec![text(2), text(4)]))?;
        bench.acquire(&Claim::exclusive(4))?;
        equal("the claims", &bench.state()?.lock(b"lock").claims.len(), &0)?;
    }
    Ok(())
}

fn tidied(bench: &Bench) -> Result<i32, String> {
    Ok(bench.main.query("SELECT removed FROM tidy_1('', '')", &[])?[0].get(0))
}

fn tidy_leaves(bench: &mut Bench) -> Verdict {
    let month = 30 * DAY;
    let holder = |n| Claim::exclusive(n).key(&[u8::try_from(n).unwrap()]).ttl(month);
    let reader = Claim::shared(2).key(&[2]).ttl(month);
    bench.acquire(&holder(1))?;
    bench.acquire(&reader)?;
    // A reader's lease has ended, and its transaction goes on.
    let guarded = Claim::shared(3).key(&[3]);
    let token = bench.acquire(&guarded)?;
    bench.acquire(&holder(4))?;
    bench.release(&holder(4))?;
    bench.acquire(&holder(5))?;
    bench.main.run(
        "SELECT fence('stock', 1); SELECT swap_cell_1('cell', NULL, gen_random_uuid(), '', 0)",
    )?;
    begins_with_check(bench, &guarded, token)?;
    bench.advance(2 * DAY);
    let waiter = Claim::exclusive(6).key(&[1]);
    bench.queue(&waiter)?;
    equal("the idle one", &tidied(bench)?, &1)?;
    bench.other.run("COMMIT")?;
    equal("the reader whose transaction ended", &tidied(bench)?, &1)?;
    let state = bench.state()?;
    ensure(state.lock(&[1]).waits(waiter.owner), || "the waiter is gone".into())?;
    let ask = Call::Renew(vec![holder(1), reader, holder(5)], 0);
    equal("those that hold", &bench.call(&ask)?.0.owners.len(), &3)?;
    // Granted within the last day.
    bench.acquire(&holder(7))?;
    bench.release(&holder(7))?;
    bench.advance(DAY - 1);
    equal("a young one", &tidied(bench)?, &0)?;
    let rows = bench
        .main
        .query("SELECT (SELECT count(*) FROM fences), (SELECT count(*) FROM cells)", &[])?;
    equal("fences and cells", &(rows[0].get(0), rows[0].get(1)), &(1_i64, 1_i64))
}

fn tidy_skips(bench: &mut Bench) -> Verdict {
    bench.acquire(&Claim::exclusive(1))?;
    bench.release(&Claim::exclusive(1))?;
    bench.look(&Claim::exclusive(1), &[])?;
    bench.main.run("SELECT swap_cell_1('cell', NULL, gen_random_uuid(), '', 1000000)")?;
    bench.advance(2 * DAY);
    bench.other.run(
        "BEGIN; SELECT FROM locks FOR NO KEY UPDATE; SELECT FROM cells FOR UPDATE;
         SELECT FROM processes FOR UPDATE",
    )?;
    equal("during a step", &tidied(bench)?, &0)?;
    bench.other.run("COMMIT")?;
    equal("afterwards", &tidied(bench)?, &3)
}

/// Whatever the server knows of the tables: a plan that joins them reads all.
fn tidy_reads(bench: &mut Bench) -> Verdict {
    bench.main.run(
        "INSERT INTO locks (key, token, crowd)
           SELECT convert_to('lock ' || n, 'UTF8'), CASE n % 100 WHEN 0 THEN 1 ELSE 9e18 END, n % 3 = 0
           FROM generate_series(1, 20000) n;
         INSERT INTO claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, until)
           SELECT gen_random_uuid(), convert_to('lock ' || n, 'UTF8'), 'w', 1, 'x', 1, 1, 1, 'process ' || n, '', 1, 1
           FROM generate_series(1, 20000, 3) n;
         INSERT INTO cells (key, stamp, content)
           SELECT convert_to('cell ' || n, 'UTF8'), gen_random_uuid(), '' FROM generate_series(1, 20000) n;
         INSERT INTO processes SELECT 'process ' || n, 9e18 FROM generate_series(1, 20000) n",
    )?;
    for analyze in ["", "ANALYZE locks, claims, cells, processes"] {
        bench.main.run(analyze)?;
        let session = Session::new(bench.runtime.handle(), &bench.config);
        session.run("SET search_path = fencelock; BEGIN")?;
        for (key, proc) in [("", ""), ("lock 5", "process 5")] {
            let read = "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables
              WHERE schemaname = 'fencelock' AND relname IN ('locks', 'claims', 'cells', 'processes')";
            let before: i64 = session.query(read, &[])?[0].get(0);
            session.run(&format!("SELECT tidy_1('{key}', '{proc}')"))?;
            let after: i64 = session.query(read, &[])?[0].get(0);
            // Each twice: to find the thousandth, and to look at them.
            let read = after - before;
            ensure((1_000..=6_500).contains(&read), || format!("{read} rows, {analyze:?}"))?;
        }
        session.run("ROLLBACK")?;
    }
    let (mut key, mut proc, mut removed) = (Some(Vec::<u8>::new()), Some(String::new()), 0);
    while key.is_some() || proc.is_some() {
        let row = &bench.main.query("SELECT * FROM tidy_1($1, $2)", &[&key, &proc])?[0];
        (key, proc) = (row.get(0), row.get(1));
        removed += row.get::<_, i32>(2);
    }
    // A third of the old ones have live waiters.
    equal("all that is idle", &removed, &133)
}

fn clear(bench: &mut Bench) -> Verdict {
    let prefix = b"p\xff%_\\".to_vec();
    let with = |end: &[u8]| [&prefix, end].concat();
    for (n, end) in [(1, &b""[..]), (2, b"\0"), (3, b"\xff\xff")] {
        bench.acquire(&Claim::shared(n).key(&with(end)))?;
        bench.queue(&Claim::exclusive(n + 10).key(&with(end)))?;
        bench.main.query("SELECT fence($1, 1)", &[&with(end)])?;
        bench
            .main
            .query("SELECT swap_cell_1($1, NULL, gen_random_uuid(), '', 0)", &[&with(end)])?;
    }
    let others = [b"p\xff%_".to_vec(), b"p\xff%_]".to_vec(), b"q".to_vec(), b"p".to_vec()];
    for (n, key) in (100..).zip(&others) {
        bench.acquire(&Claim::shared(n).key(key))?;
        bench.main.query("SELECT fence($1, 1)", &[key])?;
    }
    let cleared = |bench: &Bench| -> Result<i64, String> {
        Ok(bench.main.query("SELECT clear_1($1)", &[&prefix])?[0].get(0))
    };
    // A lock, two claims, a fence and a cell of each.
    equal("what is cleared", &cleared(bench)?, &15)?;
    equal("a second time", &cleared(bench)?, &0)?;
    let left: Vec<_> = bench.state()?.locks.into_keys().collect();
    let mut expected = others.to_vec();
    expected.sort();
    equal("what is left", &left, &expected)
}
