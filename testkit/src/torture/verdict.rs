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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use async_trait::async_trait;
    use fencelock_core::{Liveness, Modes, Profile, Reach, RenewalPlan, TokenOrder, Ttl};

    use super::super::client_pool::Done;
    use super::super::fault_schedule::RoundFaults;
    use super::super::{Options, Until, Workload};
    use super::*;
    use crate::deployments::Fault;

    /// A store whose leases go by its server's clock.
    struct ByItsClock;

    #[async_trait(?Send)]
    impl Deployment for ByItsClock {
        fn url(&self) -> String {
            String::new()
        }

        fn settings(&self) -> String {
            String::new()
        }

        fn may_overlap(&self, fault: Fault) -> bool {
            fault == Fault::ServerClockStepped
        }

        async fn inflict(&self, _: Fault, _: Duration) -> io::Result<()> {
            Ok(())
        }

        async fn leftovers(&self) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }
    }

    fn profile() -> Profile {
        Profile {
            store: "by its clock",
            reach: Reach::Network,
            liveness: Liveness::Lease,
            renewal: RenewalPlan::ThirdOfTtl,
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            downgrade: true,
            tokens: TokenOrder::BeyondData,
            max_local_handoffs: 1,
            cells: None,
            exclusion_fails_when: Cow::Borrowed(&["the server's clock jumps"]),
        }
    }

    /// A round with that fault, in which a lock was granted with the first token until 100, and at
    /// `second` with the other one.
    fn judged(fault: Fault, tokens: [u64; 2], second: u64) -> Round {
        let options = Options {
            seed: 0,
            until: Until::Rounds(1),
            faults_for: Duration::ZERO,
            quiet_for: Duration::ZERO,
            only: Vec::new(),
            processes: 1,
            workload: Workload {
                workers: 1,
                locks: 1,
                hold_at_most: Duration::ZERO,
                ttl: Duration::from_secs(2),
            },
        };
        let directory = tempfile::tempdir().unwrap();
        let mut history = String::new();
        for (claim, at, until) in [(0, 10, 100), (1, second, second + 10)] {
            let granted = What::Granted { token: tokens[claim], valid_until: u64::MAX };
            let invoked = What::Invoked { how: How::Exclusive };
            for (at, what) in [(at, invoked), (at + 1, granted), (until, What::ReleaseInvoked)] {
                let (claim, lock) = (claim as u64, "lock-0".to_owned());
                let event = Event { at, worker: 1, claim, lock, what };
                history += &(serde_json::to_string(&event).unwrap() + "\n");
            }
        }
        std::fs::write(directory.path().join("0.0-0"), history).unwrap();
        let played = Played {
            faults: RoundFaults { to_servers: Some(fault), ..RoundFaults::default() },
            histories: directory.path().to_owned(),
            deaths: Vec::new(),
            healed_at: 1_000,
            done: Done::default(),
            failed_over: false,
            recovery: Duration::ZERO,
        };
        let report = StoreReport::of(&ByItsClock, profile(), &options);
        let mut largest = LargestTokens::default();
        verdict(1, played, Seen::default(), &mut largest, &ByItsClock, &report).unwrap()
    }

    #[test]
    fn overlaps_are_admitted_only_under_a_fault_that_the_profile_names() {
        let admitted = judged(Fault::ServerClockStepped, [1, 2], 50);
        assert_eq!((admitted.admitted_overlaps, admitted.unadmitted_overlaps), (1, 0));
        assert!(admitted.violations.is_empty(), "{admitted}");
        let not_admitted = judged(Fault::ClientClockStepped, [1, 2], 50);
        assert_eq!((not_admitted.admitted_overlaps, not_admitted.unadmitted_overlaps), (0, 1));
        assert_eq!(not_admitted.violations.len(), 1, "{not_admitted}");
    }

    #[test]
    fn tokens_rise_under_every_fault() {
        for second in [50, 200] {
            let round = judged(Fault::ServerClockStepped, [2, 1], second);
            assert!(round.violations[0].contains("token 1 was granted after 2"), "{round}");
        }
        assert!(judged(Fault::ServerClockStepped, [1, 2], 200).violations.is_empty());
    }
}
