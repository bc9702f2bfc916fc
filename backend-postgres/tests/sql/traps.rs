//! What went wrong once, or nearly, in some store or in the design: each trap on empty tables.

use uuid::Uuid;

use super::Verdict;
use super::bench::{Bench, Call, START, Step, ensure, ensure_queued, equal};
use super::claim::{Claim, LONG, SECOND};

mod admin;
mod batches;
mod cells;
mod durability;
mod groups;
mod guarded;
mod leases;
mod nonsense;
mod plans;
mod queues;

/// A name, and the function that springs the trap.
pub(crate) type Trap = (&'static str, fn(&mut Bench) -> Verdict);

pub(crate) fn all() -> Vec<Trap> {
    let all = [
        leases::TRAPS,
        queues::TRAPS,
        groups::TRAPS,
        guarded::TRAPS,
        batches::TRAPS,
        durability::TRAPS,
        cells::TRAPS,
        admin::TRAPS,
        nonsense::TRAPS,
        plans::TRAPS,
    ];
    all.concat()
}

/// Springs one on empty tables.
pub(crate) fn spring(bench: &mut Bench, (name, trap): Trap) -> Verdict {
    bench.reset();
    trap(bench).map_err(|why| format!("{name}: {why}"))
}

fn key() -> Vec<u8> {
    b"lock".to_vec()
}

fn holder(bench: &Bench) -> Result<Option<Uuid>, String> {
    let now = bench.now();
    let grants = bench.state()?.lock(b"lock").grants();
    Ok(grants.iter().find(|grant| grant.until > now).map(|grant| grant.owner))
}

/// Whether the open transaction, which is rolled back, notifies: only one that does not can be prepared.
fn notifies(bench: &Bench) -> Result<bool, String> {
    // Its name is the whole server's.
    let name = bench.main_pid;
    match bench.main.run(&format!("PREPARE TRANSACTION '{name}'")) {
        Ok(()) => bench.main.run(&format!("ROLLBACK PREPARED '{name}'")).map(|()| false),
        Err(error) if error.contains("NOTIFY") => Ok(true),
        Err(error) => Err(error),
    }
}

/// Fails with a code.
fn fails<T: std::fmt::Debug>(code: &str, done: &Result<T, String>) -> Verdict {
    let fails = done.as_ref().is_err_and(|error| error.starts_with(code));
    ensure(fails, || format!("{code} was expected: {done:?}"))
}

fn check(claim: &Claim, token: i64) -> String {
    let key: String = claim.key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("SELECT check_token('\\x{key}', {token}, 60000)")
}

/// The user's transaction.
fn begins_with_check(bench: &Bench, claim: &Claim, token: i64) -> Verdict {
    bench.other.run("BEGIN")?;
    bench.other.run(&check(claim, token))
}

fn attempt_in_sql(claim: &Claim) -> String {
    let (owner, mode, ttl, process) = (claim.owner, claim.mode, claim.ttl, &claim.process);
    format!(
        "SELECT attempt_1('lock', '{owner}', '{mode}', 1, 1, {ttl}, '{process}', '', true, 1, true)"
    )
}
