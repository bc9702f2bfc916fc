//! Jobs that run once for each tick of a schedule: each process labels its ticks by a clock that is off.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{Claimed, ErrorKind, Run, Tick};
use rand::RngExt;

use super::tools::{Calm, Tools};
use crate::history::{ClaimId, What};
use crate::how::How;
use crate::processes::workload::{Errors, NEVER_TWICE, TICK};

/// Asks for each tick of `job`, by a clock that is so many seconds ahead.
pub(super) async fn run(
    mut tools: Tools,
    job: &'static str,
    ahead: i64,
    calm: Calm,
) -> io::Result<Errors> {
    while !calm.has_come() {
        once(&mut tools, job, tick(ahead)).await;
    }
    Ok(tools.errors)
}

/// The number of the tick that is due.
fn tick(ahead: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let due = ms.saturating_add(ahead * 1_000).max(0).unsigned_abs();
    due / u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX)
}

async fn once(tools: &mut Tools, job: &'static str, tick: u64) {
    let never_twice = job == NEVER_TWICE;
    let mut once = tools.locks.once(job).tick(Tick::number(tick)).ttl(tools.workload.ttl);
    if never_twice {
        once = once.never_twice();
    }
    if tools.random.random_bool(0.5) {
        // It takes over from a runner that dies, and finds the tick done otherwise.
        once = once.wait_at_most(Duration::from_millis(tools.random.random_range(1..500)));
    }
    let claim = tools.history.invoke(job, How::Exclusive);
    tools.history.record(&claim, What::ForTick { tick, never_twice });
    match once.claim().await {
        Ok(Claimed::Run(run)) => work(tools, run, &claim).await,
        Ok(Claimed::Done { .. }) => {
            tools.history.record(&claim, What::AlreadyDone);
            tools.pause(10..60).await;
        }
        Ok(Claimed::Running) => {
            tools.history.record(&claim, What::Refused);
            tools.pause(1..30).await;
        }
        Err(error) => {
            tools.history.record(&claim, What::Unknown);
            tools.count(&error).await;
        }
    }
}

/// The work of one tick, and its mark in most cases.
async fn work(tools: &mut Tools, run: Run, claim: &ClaimId) {
    tools.history.granted(run.guard(), claim);
    match tools.random.random_range(0..300) {
        0 => tools.hold_for_long(run.guard(), claim).await,
        // Often there is a run for a kill to meet.
        _ => tools.pause(0..60).await,
    }
    tools.history.releasing(run.guard(), claim);
    let ended = match tools.random.random_range(0..30) {
        0 => return,
        1 => run.failed().await,
        _ => {
            tools.history.record(claim, What::MarkInvoked);
            let marked = run.done().await;
            match &marked {
                Ok(()) => tools.history.record(claim, What::Marked),
                Err(error) if [ErrorKind::Lost, ErrorKind::Stale].contains(&error.kind()) => {
                    tools.history.record(claim, What::NotMarked);
                }
                Err(_) => {}
            }
            marked
        }
    };
    if let Err(error) = ended {
        tools.count(&error).await;
    }
}
