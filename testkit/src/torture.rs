//! Clients in processes of their own use a store's locks for as long as one likes, while it and
//! they are broken and healed; what they saw is judged.
//!
//! A run is a series of rounds. In each, every process acquires, holds, writes to protected
//! registers (a process of their own, which no fault hits), releases and gives up, in all modes; a
//! fault is injected and healed; then all clients finish, and the round's histories are merged and checked:
//! exclusion, fencing, order, liveness, leftovers, and what counters, jobs with ticks and elections
//! promise, where the store has cells. Overlaps that the store's profile admits under
//! that fault are counted and shown; the register that checks tokens must have refused the stale
//! writes. Anything else is a violation. What the one beside it lost, which does not check, is
//! shown.
//!
//! The seed decides which faults come in which order and what the clients do; what meets what is up
//! to the machine, so a run is repeated, not replayed.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Instant;

use fencelock_conformance::RegisterServer;
use tempfile::TempDir;

use crate::deployments::{Deployment, Library};

mod client_pool;
mod clock_steps;
mod counted;
mod earlier_rounds;
mod fault_schedule;
mod options;
mod report;
mod round;
pub mod transactions;
mod verdict;

pub use counted::counted;
pub use fencelock_conformance::workload::{Only, Shift, Workload};
pub use options::{Options, Until};
pub use report::{CellFigures, Round, StoreReport};
pub use transactions::TransactionFigures;

use client_pool::ClientPool;
use earlier_rounds::EarlierRounds;
use fault_schedule::FaultSchedule;

/// Runs the torture test on one store, and reports each completed round to `completed`. When `stop`
/// completes, the run ends with the rounds that are complete.
///
/// # Errors
/// When processes or servers cannot be started, or do not come back. The library's own error is
/// inside.
pub async fn torture(
    deployment: &dyn Deployment,
    library: Library,
    options: &Options,
    stop: impl Future<Output = ()> + Send,
    mut completed: impl FnMut(&Round),
) -> io::Result<StoreReport> {
    let run = Run::prepare().await?;
    let locks = options.workload.locks;
    let in_database =
        options.has_transactions() && transactions::prepare(deployment, locks).await?;
    let (mut clients, profile) =
        ClientPool::start(deployment, library, options, run.register.socket(), in_database).await?;
    let mut report = StoreReport::of(deployment, profile, options);
    let mut schedule = FaultSchedule::shuffled(options, deployment)?;
    let mut earlier = EarlierRounds::default();
    let mut recovery = client_pool::recovery(options);
    // One future for all rounds, so that a stop between two of them is not lost.
    let mut stop = pin!(stop);
    let started = Instant::now();
    while !is_over(options.until, started, &report) {
        let number = report.rounds.len() + 1;
        let directory = run.directory.path().join(format!("round-{number}"));
        std::fs::create_dir(&directory)?;
        if in_database {
            transactions::prepare(deployment, locks).await?;
        }
        let faults = schedule.next_round();
        let profile = &report.profile;
        let playing =
            round::play(deployment, &mut clients, faults, &directory, options, profile.liveness);
        let played = tokio::select! {
            played = playing => played?,
            () = &mut stop => {
                report.was_stopped = true;
                break;
            }
        };
        recovery = played.recovery;
        let writes = run.register.seen().await?;
        let events = verdict::merged(&played)?;
        let transactions = match in_database {
            true => transactions::seen(deployment, &events).await?,
            false => TransactionFigures::default(),
        };
        let seen = verdict::Seen { events, writes, transactions };
        let mut round = verdict::verdict(number, played, seen, &mut earlier, deployment, &report);
        if round.violations.is_empty() {
            std::fs::remove_dir_all(&directory)?;
        } else {
            round.histories = Some(run.keep(number)?);
        }
        completed(&round);
        report.rounds.push(round);
    }
    clients.leave().await;
    if !report.was_stopped {
        report.leftovers =
            client_pool::gone(async || deployment.leftovers().await, recovery).await?;
    }
    Ok(report)
}

fn is_over(until: Until, started: Instant, report: &StoreReport) -> bool {
    match until {
        Until::Time(time) => started.elapsed() >= time,
        Until::Acquisitions(wanted) => report.acquisitions() >= wanted,
        Until::Rounds(wanted) => report.rounds.len() >= wanted as usize,
    }
}

/// What a run needs in addition to the store.
struct Run {
    directory: TempDir,
    register: RegisterServer,
}

impl Run {
    async fn prepare() -> io::Result<Run> {
        let directory = tempfile::Builder::new().prefix("fencelock-torture-").tempdir()?;
        let socket = directory.path().join("register");
        let register = RegisterServer::start(socket).await?;
        Ok(Run { directory, register })
    }

    /// Puts a round's histories where they outlive the run.
    fn keep(&self, number: usize) -> io::Result<PathBuf> {
        let from = self.directory.path().join(format!("round-{number}"));
        let to = std::env::temp_dir().join(format!(
            "fencelock-torture-history-{:016x}",
            fencelock_conformance::fresh_seed()
        ));
        std::fs::rename(from, &to)?;
        Ok(to)
    }
}
