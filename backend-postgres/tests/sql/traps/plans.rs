//! How the server plans the functions' statements.

use std::collections::BTreeMap;

use super::*;
use crate::session::Session;

pub(super) const TRAPS: &[Trap] =
    &[("no step reads a whole table or queue, whatever was known of it", small_tables)];

/// So many executions of a statement, at the most, and its plan is kept.
const UNTIL_KEPT: usize = 7;
/// Far more than any step needs of claims that are not its own, and far fewer than wait.
const MOST_READ: i64 = 50;
const WAITERS: i64 = 2_000;

/// A plan is kept as long as the session, or until the next vacuum: one that was made for a few rows meets
/// thousands.
fn small_tables(bench: &mut Bench) -> Verdict {
    bench.acquire(&Claim::exclusive(1))?;
    bench.queue(&Claim::exclusive(2))?;
    bench.look(&Claim::exclusive(2), &[])?;
    let cell =
        "SELECT swap_cell_1('cell', NULL, gen_random_uuid(), '', 0); SELECT fence('stock', 1)";
    bench.main.run(cell)?;
    bench.main.run("VACUUM ANALYZE locks, claims, processes, cells, fences")?;
    let session = Session::new(bench.runtime.handle(), &bench.config);
    session.run("SET search_path = fencelock; SET enable_indexscan = on")?;
    let (holder, waiter) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let attempt = |owner: Uuid, mode: &str| {
        format!("SELECT attempt_1('lock', '{owner}', '{mode}', 1, 1, 9000, 'p', '', true, 1, true)")
    };
    let renew = |owner, ttl, is_patient| {
        format!(
            "SELECT renew_1(ARRAY['lock'::bytea], ARRAY['{owner}'::uuid], ARRAY[{ttl}], {is_patient})"
        )
    };
    let release = |owner| format!("SELECT release_1('lock', '{owner}')");
    let downgrade = format!("SELECT downgrade_1('lock', '{holder}', 0)");
    let look = format!(
        "SELECT look_1('fl_0000000000000002', ARRAY['lock'::bytea], ARRAY['{holder}'::uuid])"
    );
    let ended = "UPDATE locks SET until = 0 WHERE key = 'lock'";
    let reader_ended = format!("UPDATE claims SET until = 0 WHERE owner = '{holder}'");
    let of_few = [
        "SELECT inspect_1('lock')".into(),
        "SELECT evict_1('lock', 'w1')".into(),
        "SELECT read_cell_1('cell')".into(),
        "SELECT swap_cell_1('cell', gen_random_uuid(), gen_random_uuid(), '', 0)".into(),
        format!("SELECT check_token('lock', {START}, 60000)"),
        "SELECT fence('stock', 2)".into(),
    ];
    let of_any = [
        attempt(Uuid::from_u128(3), "x"),
        attempt(Uuid::from_u128(3), "s"),
        attempt(holder, "x"),
        attempt(waiter, "x"),
        release(holder),
        release(waiter),
        release(Uuid::from_u128(3)),
        renew(holder, 9000, true),
        renew(waiter, 9000, false),
        renew(waiter, 0, true),
        look.clone(),
        format!("{}; {look}", release(holder)),
        format!("{}; {ended}; {look}", release(holder)),
        format!("{}; {}", release(holder), attempt(waiter, "x")),
        format!("{}; {ended}; {}", release(holder), attempt(waiter, "x")),
        downgrade.clone(),
        format!("{downgrade}; {}", renew(holder, 9000, false)),
        format!("{downgrade}; {look}"),
        format!("{downgrade}; {reader_ended}; {look}"),
        format!("{downgrade}; {reader_ended}; {}", attempt(waiter, "x")),
        format!("{downgrade}; {downgrade}; {}", release(holder)),
    ];
    let counts = || -> Result<BTreeMap<String, [i64; 2]>, String> {
        let query = "SELECT relname::text, seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables
          WHERE schemaname = 'fencelock'";
        let rows = session.query(query, &[])?;
        Ok(rows.iter().map(|row| (row.get(0), [row.get(1), row.get(2)])).collect())
    };
    // The scans of each table, and the rows that were found by an index. The counts can include those of earlier
    // transactions, but none is taken out during one.
    let reads = |step: &str| -> Result<Vec<(String, [i64; 2])>, String> {
        session.run("BEGIN")?;
        let before = counts()?;
        session.run(step)?;
        let after = counts()?;
        session.run("ROLLBACK")?;
        let of = |(table, [scans, rows]): (String, [i64; 2])| {
            let [scans_before, rows_before] = before.get(&table).copied().unwrap_or_default();
            (table, [scans - scans_before, rows - rows_before])
        };
        Ok(after.into_iter().map(of).collect())
    };
    for _ in 0..UNTIL_KEPT {
        for step in of_few.iter().chain(&of_any) {
            let all = reads(step)?;
            let whole: Vec<_> = all.into_iter().filter(|(_, [scans, _])| *scans > 0).collect();
            equal(&format!("the tables that are read by {step}"), &whole, &vec![])?;
        }
    }
    session.run(&format!(
        "INSERT INTO claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, until)
         SELECT gen_random_uuid(), 'lock', 'w', {START} + n, 'x', 1, 1, 9000, 'fl_0', '', 1, {START} + {LONG}
         FROM generate_series(1, {WAITERS}) n"
    ))?;
    for step in of_any {
        let all = reads(&step)?;
        let many: Vec<_> = all.into_iter().filter(|(_, [_, rows])| *rows > MOST_READ).collect();
        equal(&format!("the tables of which many rows are read by {step}"), &many, &vec![])?;
    }
    Ok(())
}
