//! The report of a run: the faults and the findings, as text and as JSON.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use fencelock_conformance::Seen;
use fencelock_conformance::history::{Event, What};
use fencelock_conformance::workload::{ELECTION, NEVER_TWICE, ONCE};
use fencelock_core::Profile;
use serde::Serialize;

use super::counted::counted;
use super::options::Options;
use super::transactions::TransactionFigures;
use crate::deployments::{Deployment, Fault};

/// One store's run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StoreReport {
    /// The settings of its servers.
    pub settings: String,
    /// When its profile says that exclusion fails.
    pub exclusion_fails_when: Vec<String>,
    /// Decided what happened.
    pub seed: u64,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// What the clients left behind.
    pub leftovers: Vec<String>,
    /// Whether it was stopped early. Then leftovers were not searched for.
    pub was_stopped: bool,
    #[serde(skip)]
    pub(super) profile: Profile,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Round {
    /// From 1.
    pub number: usize,
    /// The injected faults.
    pub faults: Vec<Fault>,
    /// Whether another server became the master in it, by a fault or by the servers
    /// themselves.
    pub failed_over: bool,
    /// How often a lock was granted.
    pub acquisitions: u64,
    /// Overlaps that the store's profile admits under these faults, or at a failover.
    pub admitted_overlaps: u64,
    /// Overlaps that it does not admit. They are among the violations too.
    pub unadmitted_overlaps: u64,
    /// What was done with cells.
    pub cells: CellFigures,
    /// The results of the writes to the protected registers.
    pub writes: Seen,
    /// What became of transactions on the lock's own database, for a store that is in one.
    pub transactions: TransactionFigures,
    /// How long after the fault the last of the locks was granted again.
    #[serde(serialize_with = "in_ms")]
    pub recovered: Option<Duration>,
    /// Errors that clients were answered, by their kind.
    pub errors: BTreeMap<String, u64>,
    /// The violations.
    pub violations: Vec<String>,
    /// Where the histories of a round with violations are.
    pub histories: Option<PathBuf>,
}

/// What was done with cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CellFigures {
    /// Additions to counters that were answered, without readings.
    pub additions: u64,
    /// Additions whose outcome is unknown.
    pub unsure_additions: u64,
    /// Ticks that were marked as done.
    pub ticks: u64,
    /// Runs of ticks that ended without a mark: killed, lost, or failed.
    pub unmarked_runs: u64,
    /// Leaders that were elected.
    pub terms: u64,
    /// Changes that observers were told of.
    pub observed: u64,
    /// Answers that only a loss of data explains, which the store's profile admits under these faults.
    pub admitted_losses: u64,
}

impl CellFigures {
    pub(super) fn of(events: &[Event]) -> CellFigures {
        let count =
            |is: &dyn Fn(&Event) -> bool| events.iter().filter(|event| is(event)).count() as u64;
        let granted = |event: &Event| matches!(event.what, What::Granted { .. });
        let (mut asked, mut additions) = (HashSet::new(), 0);
        for event in events {
            let claim = (event.worker, event.claim);
            match event.what {
                What::AddInvoked { n } if n > 0 => drop(asked.insert(claim)),
                What::Added { .. } => additions += u64::from(asked.remove(&claim)),
                What::Refused => drop(asked.remove(&claim)),
                _ => {}
            }
        }
        let ticks = count(&|event| event.what == What::Marked);
        let is_job = |event: &Event| [ONCE, NEVER_TWICE].contains(&&*event.lock);
        CellFigures {
            additions,
            unsure_additions: asked.len() as u64,
            ticks,
            unmarked_runs: count(&|event| is_job(event) && granted(event)) - ticks,
            terms: count(&|event| event.lock == ELECTION && granted(event)),
            observed: count(&|event| matches!(event.what, What::Observed { .. })),
            admitted_losses: 0,
        }
    }
}

impl std::ops::Add for CellFigures {
    type Output = CellFigures;

    fn add(self, other: CellFigures) -> CellFigures {
        CellFigures {
            additions: self.additions + other.additions,
            unsure_additions: self.unsure_additions + other.unsure_additions,
            ticks: self.ticks + other.ticks,
            unmarked_runs: self.unmarked_runs + other.unmarked_runs,
            terms: self.terms + other.terms,
            observed: self.observed + other.observed,
            admitted_losses: self.admitted_losses + other.admitted_losses,
        }
    }
}

/// In one line.
impl fmt::Display for CellFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CellFigures { unsure_additions, .. } = self;
        let additions = counted(self.additions, "addition", "additions");
        let ticks = counted(self.ticks, "tick", "ticks");
        let runs = counted(self.unmarked_runs, "run without a mark", "runs without a mark");
        let terms = counted(self.terms, "term", "terms");
        write!(f, "{additions} ({unsure_additions} unsure), {ticks} ({runs}), {terms}")?;
        if self.admitted_losses > 0 {
            let answers = counted(self.admitted_losses, "answer", "answers");
            write!(f, ", {answers} after a loss that the store's profile admits")?;
        }
        Ok(())
    }
}

fn in_ms<S: serde::Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(to)
}

impl StoreReport {
    pub(super) fn of(
        deployment: &dyn Deployment,
        profile: Profile,
        options: &Options,
    ) -> StoreReport {
        StoreReport {
            settings: deployment.settings(),
            exclusion_fails_when: profile
                .exclusion_fails_when
                .iter()
                .map(|it| (*it).to_owned())
                .collect(),
            seed: options.seed,
            rounds: Vec::new(),
            leftovers: Vec::new(),
            was_stopped: false,
            profile,
        }
    }

    /// How often a lock was granted.
    #[must_use]
    pub fn acquisitions(&self) -> u64 {
        self.rounds.iter().map(|round| round.acquisitions).sum()
    }

    /// Overlaps that the store's profile admits under the faults that there were.
    #[must_use]
    pub fn admitted_overlaps(&self) -> u64 {
        self.rounds.iter().map(|round| round.admitted_overlaps).sum()
    }

    /// All of them, admitted or not.
    #[must_use]
    pub fn overlaps(&self) -> u64 {
        self.rounds.iter().map(Round::overlaps).sum()
    }

    /// How much should not have happened.
    #[must_use]
    pub fn violations(&self) -> usize {
        self.all_violations().len()
    }

    /// The violations.
    #[must_use]
    pub fn all_violations(&self) -> Vec<String> {
        let in_rounds = self.rounds.iter().flat_map(|round| round.violations.iter().cloned());
        let left = self.leftovers.iter().map(|left| format!("left behind: {left}"));
        in_rounds.chain(left).collect()
    }

    /// The results of all writes to the protected registers.
    #[must_use]
    pub fn writes(&self) -> Seen {
        self.rounds.iter().fold(Seen::default(), |sum, round| sum + round.writes)
    }

    /// What became of transactions on the lock's own database, in all rounds.
    #[must_use]
    pub fn transactions(&self) -> TransactionFigures {
        let figures = self.rounds.iter().map(|round| round.transactions);
        figures.fold(TransactionFigures::default(), |sum, more| sum + more)
    }

    /// What was done with cells, in all rounds.
    #[must_use]
    pub fn cells(&self) -> CellFigures {
        self.rounds.iter().fold(CellFigures::default(), |sum, round| sum + round.cells)
    }

    /// The most violations per acquisition that a run of this length, in which there was none, is
    /// compatible with, at a confidence of 95 %: three in as many (Hanley and Lippman-Hand, "If
    /// nothing goes wrong, is everything all right?", JAMA 1983).
    #[must_use]
    pub fn upper_bound(&self) -> Option<f64> {
        let acquisitions = self.acquisitions();
        #[expect(clippy::cast_precision_loss, reason = "a bound for people")]
        (self.violations() == 0 && acquisitions > 0).then(|| 3.0 / acquisitions as f64)
    }
}

impl Round {
    /// All of them, admitted or not.
    #[must_use]
    pub fn overlaps(&self) -> u64 {
        self.admitted_overlaps + self.unadmitted_overlaps
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        let faults = if faults.is_empty() { "no fault".to_owned() } else { faults.join(" and ") };
        let acquisitions = counted(self.acquisitions, "acquisition", "acquisitions");
        write!(f, "round {}, {faults}: {acquisitions}", self.number)?;
        if self.cells != CellFigures::default() {
            write!(f, ", {}", self.cells)?;
        }
        if self.failed_over {
            write!(f, ", another master")?;
        }
        if let Some(recovered) = self.recovered.filter(|_| !self.faults.is_empty()) {
            write!(f, ", all locks granted again {} ms later", recovered.as_millis())?;
        }
        let (checked, unchecked) = (self.writes.checked, self.writes.unchecked);
        if checked.rejected > 0 {
            write!(f, ", {} refused", counted(checked.rejected, "stale access", "stale accesses"))?;
        }
        if unchecked.lost_updates > 0 {
            let updates = counted(unchecked.lost_updates, "update", "updates");
            write!(f, ", {updates} lost where tokens are not checked")?;
        }
        if unchecked.money != 0 {
            write!(f, ", the accounts there have {:+}", unchecked.money)?;
        }
        if self.transactions != TransactionFigures::default() {
            write!(f, ", {}", self.transactions)?;
        }
        if self.admitted_overlaps > 0 {
            let overlaps = counted(self.admitted_overlaps, "overlap", "overlaps");
            write!(f, ", {overlaps}, which the store's profile admits")?;
        }
        for violation in self.violations.iter().take(10) {
            write!(f, "\n  VIOLATION: {violation}")?;
        }
        if let Some(histories) = &self.histories {
            let violations = counted(self.violations.len(), "violation", "violations");
            write!(f, "\n  {violations}; histories in {}", histories.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_and_refused_additions_are_not_counted() {
        let of = |lock: &'static str, claims: &[&[What]]| -> Vec<Event> {
            let claims = claims.iter().zip(0..);
            let event =
                |claim, &what| Event { at: 0, worker: 1, claim, lock: lock.to_owned(), what };
            claims
                .flat_map(|(events, claim)| events.iter().map(move |it| event(claim, it)))
                .collect()
        };
        let [reading, adding] = [0, 1].map(|n| What::AddInvoked { n });
        let (added, granted) = (What::Added { sum: 1 }, What::Granted { token: 1, valid_until: 0 });
        let counter = of(
            "counter-0",
            &[
                &[reading, added],
                &[adding, added],
                &[adding, What::Refused],
                &[adding, What::Unknown],
                &[adding, What::Killed],
            ],
        );
        let figures = CellFigures::of(&counter);
        assert_eq!((figures.additions, figures.unsure_additions), (1, 2));
        let once =
            of(ONCE, &[&[granted, What::MarkInvoked, What::Marked], &[granted, What::Killed]]);
        let figures =
            figures + CellFigures::of(&once) + CellFigures::of(&of(ELECTION, &[&[granted]]));
        assert_eq!((figures.ticks, figures.unmarked_runs, figures.terms), (1, 1, 1));
        assert!(
            figures
                .to_string()
                .starts_with("1 addition (2 unsure), 1 tick (1 run without a mark), 1 term")
        );
    }
}
