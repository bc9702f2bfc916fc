//! The verdict of a round: checks its histories and the registers.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use fencelock_conformance::checker::{self, Rules, Violation};
use fencelock_conformance::history::{self, Event, What};
use fencelock_conformance::workload::is_granted_in_order;
use fencelock_conformance::{How, Seen};
use fencelock_core::Order;

use super::report::{Round, StoreReport};
use super::round::Played;
use crate::deployments::Deployment;

/// A request that is sent this much later than another is granted later, where the store keeps
/// arrival order. A busy machine can delay a request for long before it arrives.
const LATER: Duration = Duration::from_secs(1);

/// The largest token of each lock so far, since tokens rise over rounds too.
#[derive(Debug, Default)]
pub(super) struct LargestTokens(BTreeMap<String, u64>);

impl LargestTokens {
    /// As grants before the round.
    fn as_events(&self) -> impl Iterator<Item = Event> {
        let exclusive = What::Invoked { how: How::Exclusive };
        self.0.iter().flat_map(move |(lock, &token)| {
            [exclusive, What::Granted { token, valid_until: 0 }].map(|what| Event {
                at: 0,
                worker: 0,
                claim: 0,
                lock: lock.clone(),
                what,
            })
        })
    }

    fn remember(&mut self, events: &[Event]) {
        let mut exclusive = std::collections::HashSet::new();
        for event in events {
            let claim = (event.worker, event.claim);
            match event.what {
                What::Invoked { how: How::Exclusive } => {
                    exclusive.insert(claim);
                }
                What::Granted { token, .. } if exclusive.contains(&claim) => {
                    let largest = self.0.entry(event.lock.clone()).or_default();
                    *largest = token.max(*largest);
                }
                _ => {}
            }
        }
    }
}

/// Checks one round. `writes` is what the registers have counted since the beginning of the run.
pub(super) fn verdict(
    number: usize,
    played: Played,
    writes: Seen,
    largest_tokens: &mut LargestTokens,
    deployment: &dyn Deployment,
    report: &StoreReport,
) -> io::Result<Round> {
    let faults = played.faults.faults();
    let events = merged(&played)?;
    let failed_over = played.failed_over;
    let may_overlap = failed_over || faults.iter().any(|fault| deployment.may_overlap(*fault));
    let undisturbed = faults.is_empty() && !failed_over;
    let rules = Rules {
        overlaps_are_admitted: may_overlap,
        asked_later: (undisturbed && report.profile.order == Order::Arrival).then_some(LATER),
        ..Rules::default()
    };
    let mut round = Round {
        number,
        faults,
        failed_over,
        acquisitions: events.iter().filter(|it| matches!(it.what, What::Granted { .. })).count()
            as u64,
        admitted_overlaps: 0,
        unadmitted_overlaps: 0,
        writes: report.writes_of(writes),
        recovered: recovered(&events, played.healed_at),
        errors: played.done.errors,
        violations: played.done.wrong,
        histories: None,
    };
    let (in_order, handed_on) = largest_tokens
        .as_events()
        .chain(events.iter().cloned())
        .partition(|event| is_granted_in_order(&event.lock));
    let in_order = checker::check(in_order, rules);
    let handed_on = checker::check(handed_on, Rules { asked_later: None, ..rules });
    for violation in in_order.into_iter().chain(handed_on) {
        match violation {
            Violation::Overlap { .. } if may_overlap => round.admitted_overlaps += 1,
            other => {
                round.unadmitted_overlaps += u64::from(matches!(other, Violation::Overlap { .. }));
                round.violations.push(other.to_string());
            }
        }
    }
    largest_tokens.remember(&events);
    if round.acquisitions == 0 {
        round.violations.push("nothing was granted in the whole round".to_owned());
    }
    if round.recovered.is_some_and(|took| took > played.recovery) {
        let (took, bound) = (round.recovered, played.recovery);
        round
            .violations
            .push(format!("a lock was granted {took:?} after the fault; at most {bound:?}"));
    }
    let checked = round.writes.checked;
    if checked.stale + checked.lost_updates > 0 {
        round.violations.push(format!("the register was not protected: {checked:?}"));
    }
    if checked.money != 0 {
        round.violations.push(format!("the accounts have {} too much", checked.money));
    }
    Ok(round)
}

/// All histories, with the ends that kills made.
fn merged(played: &Played) -> io::Result<Vec<Event>> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(&played.histories)? {
        let file = file?;
        let mut events = history::read(&file.path())?;
        let name = file.file_name();
        let of = |who: &str| name.to_string_lossy().starts_with(who);
        if let Some(death) = played.deaths.iter().find(|death| of(&death.who)) {
            history::killed(&mut events, death.at);
        }
        all.extend(events);
    }
    all.sort_by_key(|event| event.at);
    Ok(all)
}

/// How long after the fault the last of the locks was granted again.
fn recovered(events: &[Event], healed_at: u64) -> Option<Duration> {
    let mut first: BTreeMap<&str, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event.at >= healed_at) {
        if matches!(event.what, What::Granted { .. }) {
            first.entry(&event.lock).or_insert(event.at);
        }
    }
    first.into_values().max().map(|at| Duration::from_nanos(at - healed_at))
}
