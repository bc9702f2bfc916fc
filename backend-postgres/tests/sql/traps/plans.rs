//! How the server plans the functions' statements.

use super::*;
use crate::session::Session;

pub(super) const TRAPS: &[Trap] =
    &[("no step reads a whole table, whatever was known of it", small_tables)];

/// A plan is kept as long as the session, or until the next vacuum: one that was made for a few rows meets
/// ten thousand.
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
    let owner = Uuid::from_u128(1);
    let attempt = |mode: &str| {
        format!(
            "SELECT * FROM attempt_1('lock', gen_random_uuid(), '{mode}', 1, 1, 9000, 'p', '', true, 1, true)"
        )
    };
    let steps = [
        attempt("x"),
        attempt("s"),
        format!("SELECT release_1('lock', '{owner}')"),
        format!("SELECT downgrade_1('lock', '{owner}', 0)"),
        format!("SELECT renew_1(ARRAY['lock'::bytea], ARRAY['{owner}'::uuid], ARRAY[9000], true)"),
        format!("SELECT look_1('p', ARRAY['lock'::bytea], ARRAY['{owner}'::uuid])"),
        "SELECT inspect_1('lock')".into(),
        "SELECT evict_1('lock', 'w1')".into(),
        "SELECT read_cell_1('cell')".into(),
        "SELECT swap_cell_1('cell', gen_random_uuid(), gen_random_uuid(), '', 0)".into(),
        format!("SELECT check_token('lock', {START}, 60000)"),
        "SELECT fence('stock', 2)".into(),
    ];
    for step in steps {
        session.run(&format!("BEGIN; {step}"))?;
        let read = "SELECT relname::text FROM pg_stat_xact_user_tables
          WHERE schemaname = 'fencelock' AND seq_scan > 0";
        let rows = session.query(read, &[])?;
        let read: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        session.run("ROLLBACK")?;
        equal(&format!("the tables that are read by {step}"), &read, &vec![])?;
    }
    Ok(())
}
