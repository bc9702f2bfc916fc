//! Jobs that run once for each tick. That no two runs of a job overlap is the rule of its lock.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Event, What};

use super::Violation;

/// A `once` remembers ticks as a few ranges: with many gaps it takes the narrowest for done. No gap of
/// so many ticks is among these.
const FORGOTTEN: u64 = 1_000;

/// A claim of a tick.
#[derive(Default)]
struct Claim {
    tick: u64,
    never_twice: bool,
    invoked: u64,
    /// When it was told to run it.
    begun: Option<u64>,
    /// The last known end of its validity.
    until: u64,
    mark_invoked: Option<u64>,
    marked: Option<u64>,
    /// It was told not to run it.
    refused: bool,
    /// It was told that it is done.
    already_done: Option<u64>,
}

impl Claim {
    /// When others may first have been told by it that the tick is over.
    fn may_be_over(&self) -> Option<u64> {
        if self.never_twice && !self.refused { Some(self.invoked) } else { self.mark_invoked }
    }

    /// Whether it began to run after `first` had marked the tick.
    fn is_after(&self, first: &Claim, overlaps_are_admitted: bool) -> bool {
        let (Some(begun), Some(marked)) = (self.begun, first.marked) else { return false };
        // The first run held the lock when it was marked, so this one read under the lock afterwards.
        let read_later = begun > marked && first.until >= marked && !overlaps_are_admitted;
        self.invoked > marked || read_later
    }
}

pub(super) fn check(events: &[&Event], overlaps_are_admitted: bool) -> Vec<Violation> {
    let claims = claims(events);
    let mut by_tick: BTreeMap<u64, Vec<&Claim>> = BTreeMap::new();
    for claim in &claims {
        by_tick.entry(claim.tick).or_default().push(claim);
    }
    let over: BTreeMap<u64, u64> = by_tick
        .iter()
        .filter_map(|(tick, claims)| {
            Some((*tick, claims.iter().filter_map(|it| it.may_be_over()).min()?))
        })
        .collect();
    let mut violations = Vec::new();
    for (&tick, claims) in &by_tick {
        let runs: Vec<&&Claim> = claims.iter().filter(|it| it.begun.is_some()).collect();
        let again = |run: &&&Claim| runs.iter().any(|it| run.is_after(it, overlaps_are_admitted));
        for _ in runs.iter().filter(|run| again(run)) {
            violations.push(Violation::RunAgain { tick });
        }
        if runs.len() > 1 && runs.iter().all(|run| run.never_twice) {
            violations.push(Violation::BegunTwice { tick });
        }
        let told = claims.iter().filter_map(|it| it.already_done).min();
        if told.is_some_and(|told| !can_be_over(tick, told, &over)) {
            violations.push(Violation::NeverRun { tick });
        }
    }
    violations
}

/// Whether a tick may be said to be done at `now`: it was marked, or is in a narrow gap.
fn can_be_over(tick: u64, now: u64, over: &BTreeMap<u64, u64>) -> bool {
    let is_over = |(_, since): &(&u64, &u64)| **since < now;
    let before = over.range(..=tick).rev().find(is_over).map(|(tick, _)| *tick);
    let after = over.range(tick..).find(is_over).map(|(tick, _)| *tick);
    matches!((before, after), (Some(before), Some(after)) if after - before <= FORGOTTEN)
}

fn claims(events: &[&Event]) -> Vec<Claim> {
    let mut claims: HashMap<(u64, u64), Claim> = HashMap::new();
    for event in events {
        let key = (event.worker, event.claim);
        if let What::ForTick { tick, never_twice } = event.what {
            let invoked = event.at;
            claims.insert(key, Claim { tick, never_twice, invoked, ..Claim::default() });
            continue;
        }
        let Some(claim) = claims.get_mut(&key) else { continue };
        match event.what {
            What::Granted { valid_until, .. } => {
                (claim.begun, claim.until) = (Some(event.at), valid_until);
            }
            What::Valid { until } => claim.until = until,
            What::Lost => claim.until = claim.until.min(event.at),
            What::MarkInvoked => claim.mark_invoked = Some(event.at),
            What::Marked => claim.marked = Some(event.at),
            What::NotMarked => claim.mark_invoked = None,
            What::Refused => claim.refused = true,
            What::AlreadyDone => {
                (claim.refused, claim.already_done) = (true, Some(event.at));
            }
            _ => {}
        }
    }
    claims.into_values().collect()
}
