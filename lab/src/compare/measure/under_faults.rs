//! Violations under faults, as recorded by independent registers.
//!
//! A short torture: client processes write to two registers that no fault hits, one that checks
//! fencing tokens and one that does not, while they and the servers are broken and healed.

use std::time::{Duration, Instant};

use fencelock::Result;
use fencelock_testkit::deployments::{Deployment, Fault};
use fencelock_testkit::torture::{self, Only, Round, StoreReport, Until, Workload, torture};

use crate::compare::board::Board;
use crate::compare::data::{FaultRound, UnderFaults, in_ms};
use crate::compare::plan::Plan;
use crate::store_spec::{LIBRARY, StoreSpec};
use crate::torture::in_one_word;

/// Rather many clients with rather long holds: whenever something breaks, some locks are held and some
/// are free.
const PROCESSES: u32 = 3;
const WORKLOAD: Workload = Workload {
    workers: 12,
    only: Some(Only::Locks),
    locks: 48,
    hold_at_most: Duration::from_millis(400),
    ttl: Duration::from_secs(2),
    transactions_percent: 0,
};
const FAULTS_FOR: Duration = Duration::from_millis(1500);
const QUIET_FOR: Duration = Duration::from_millis(500);

pub(crate) async fn run(
    deployment: &dyn Deployment,
    spec: &StoreSpec,
    board: &Board<'_>,
    plan: &Plan,
    seed: u64,
) -> Result<UnderFaults> {
    let faults = plan.faults(deployment);
    let options = torture::Options {
        seed,
        until: Until::Rounds(u32::try_from(faults.len()).unwrap_or(u32::MAX) * plan.turns),
        faults_for: FAULTS_FOR,
        quiet_for: QUIET_FOR,
        only: faults.clone(),
        processes: PROCESSES,
        workload: WORKLOAD,
    };
    // The torture takes servers that do not answer for a wrong address.
    super::connect(&super::url_of(deployment)).await?.close().await?;
    let began = Instant::now();
    let report_round = |round: &Round| board.saw(plan.faults_take() / 6, &round.to_string());
    let report = torture(deployment, LIBRARY, &options, std::future::pending(), report_round).await;
    let report = report.map_err(|cause| spec.failed("watched under faults", cause))?;
    Ok(summarized(&report, began.elapsed(), again(spec, &faults, seed)))
}

fn summarized(report: &StoreReport, took: Duration, again: String) -> UnderFaults {
    let (checked, unchecked) = (report.writes().checked, report.writes().unchecked);
    let overlaps = report.overlaps();
    UnderFaults {
        rounds: report.rounds.iter().map(round).collect(),
        seconds: took.as_secs_f64(),
        acquisitions: report.acquisitions(),
        overlaps,
        admitted_overlaps: report.admitted_overlaps(),
        overlaps_at_most: (overlaps == 0).then(|| report.upper_bound()).flatten(),
        stale_refused: checked.rejected,
        lost_with_fencing: checked.lost_updates,
        lost_without_fencing: unchecked.lost_updates,
        violations: report.all_violations(),
        again,
    }
}

fn round(round: &Round) -> FaultRound {
    FaultRound {
        faults: round.faults.iter().map(Fault::to_string).collect(),
        acquisitions: round.acquisitions,
        overlaps: round.overlaps(),
        stale_refused: round.writes.checked.rejected,
        lost_without_fencing: round.writes.unchecked.lost_updates,
        recovered_ms: round.recovered.map(in_ms),
    }
}

/// The same, for an hour.
fn again(spec: &StoreSpec, faults: &[Fault], seed: u64) -> String {
    let mut faults = faults.to_vec();
    faults.sort();
    faults.dedup();
    let faults: String = faults.iter().map(|fault| format!(" --fault {}", fault.word())).collect();
    format!(
        "fencelock-lab torture {spec} --minutes 60{faults} --seed {seed} --faults-for {} \
         --quiet-for {} --hold-at-most {} --processes {PROCESSES} --workers {} --locks {} --only locks \
         --transactions 0",
        in_one_word(FAULTS_FOR),
        in_one_word(QUIET_FOR),
        in_one_word(WORKLOAD.hold_at_most),
        WORKLOAD.workers,
        WORKLOAD.locks
    )
}
