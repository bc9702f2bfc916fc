//! The verdict of a round: checks its histories and the registers.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use fencelock_conformance::checker::{self, Rules, Violation};
use fencelock_conformance::history::{self, Event, What};
use fencelock_conformance::workload::{ELECTION, is_granted_in_order};
use fencelock_core::Order;

use super::earlier_rounds::EarlierRounds;
use super::report::{CellFigures, Round, StoreReport};
use super::round::Played;
use super::transactions::TransactionFigures;
use crate::deployments::{Deployment, Fault};

/// A request that is sent this much later than another is granted later, where the store keeps
/// arrival order. A busy machine can delay a request for long before it arrives: 1.1 s at a load of 70.
const LATER: Duration = Duration::from_secs(2);

/// What was seen of one round.
pub(super) struct Seen {
    pub(super) events: Vec<Event>,
    /// What the registers have counted since the beginning of the run.
    pub(super) writes: fencelock_conformance::Seen,
    pub(super) transactions: TransactionFigures,
}

/// Checks one round.
pub(super) fn verdict(
    number: usize,
    played: Played,
    seen: Seen,
    earlier: &mut EarlierRounds,
    deployment: &dyn Deployment,
    report: &StoreReport,
) -> Round {
    let faults = played.faults.faults();
    let Seen { events, writes, transactions } = seen;
    let failed_over = played.failed_over;
    let may_overlap = failed_over || faults.iter().any(|fault| deployment.may_overlap(*fault));
    let may_lose_data = failed_over || faults.iter().any(|fault| deployment.may_lose_data(*fault));
    // Only the tables of the store are lost then, not those that its locks protect.
    let may_lose_commits = failed_over
        || faults.iter().any(|it| *it != Fault::DataLost && deployment.may_lose_data(*it));
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
        cells: CellFigures::of(&events),
        writes,
        transactions,
        recovered: recovered(&events, played.healed_at),
        errors: played.done.errors,
        violations: played.done.wrong,
        histories: None,
    };
    round.violations.extend(transactions.violations(may_lose_commits));
    let before = earlier.as_events(&events);
    let (in_order, handed_on) = before
        .into_iter()
        .chain(events.iter().cloned())
        .partition(|event| is_granted_in_order(&event.lock));
    let in_order = checker::check(in_order, rules);
    let handed_on = checker::check(handed_on, Rules { asked_later: None, ..rules });
    for found in in_order.into_iter().chain(handed_on) {
        match &found.violation {
            Violation::Overlap { .. } if may_overlap => round.admitted_overlaps += 1,
            lost if may_lose_data && lost.is_of_data() => round.cells.admitted_losses += 1,
            other => {
                round.unadmitted_overlaps += u64::from(matches!(other, Violation::Overlap { .. }));
                round.violations.push(found.to_string());
            }
        }
    }
    earlier.remember(&events, may_lose_data);
    if is_without_leader(&events, played.healed_at) {
        round.violations.push("no candidate led after the fault".to_owned());
    }
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
    round
}

/// All histories, with the ends that kills made.
pub(super) fn merged(played: &Played) -> io::Result<Vec<Event>> {
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
    all.extend(played.done.sums.iter().cloned());
    all.sort_by_key(|event| event.at);
    Ok(all)
}

/// Whether there are candidates, of whom none was elected after the fault. Each tries once more when all is
/// calm.
fn is_without_leader(events: &[Event], healed_at: u64) -> bool {
    let mut of_election = events.iter().filter(|event| event.lock == ELECTION).peekable();
    let granted = |event: &Event| matches!(event.what, What::Granted { .. });
    of_election.peek().is_some() && !of_election.any(|it| it.at >= healed_at && granted(it))
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
    use fencelock_conformance::How;
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
            self.may_lose_data(fault) || fault == Fault::ServerClockStepped
        }

        fn may_lose_data(&self, fault: Fault) -> bool {
            fault == Fault::DataLost
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
        let mut events = Vec::new();
        for (claim, at, until) in [(0, 10, 100), (1, second, second + 10)] {
            let granted = What::Granted { token: tokens[claim], valid_until: u64::MAX };
            let invoked = What::Invoked { how: How::Exclusive };
            for (at, what) in [(at, invoked), (at + 1, granted), (until, What::ReleaseInvoked)] {
                let (claim, lock) = (claim as u64, "lock-0".to_owned());
                events.push(Event { at, worker: 1, claim, lock, what });
            }
        }
        round_of(fault, &events)
    }

    /// A round with that fault, in which one claim had these events, after a grant of a lock.
    fn judged_besides(fault: Fault, name: &str, events: &[What]) -> Round {
        let invoked = What::Invoked { how: How::Exclusive };
        let lock =
            [invoked, What::Granted { token: 1, valid_until: 0 }].map(|what| ("lock-0", what));
        let all = lock.into_iter().chain(events.iter().map(|what| (name, *what)));
        let event = |(at, (lock, what)): (usize, (&str, What))| Event {
            at: at as u64,
            worker: 1,
            claim: at as u64 / 2,
            lock: lock.to_owned(),
            what,
        };
        round_of(fault, &all.enumerate().map(event).collect::<Vec<_>>())
    }

    fn round_of(fault: Fault, events: &[Event]) -> Round {
        round_with(fault, events, TransactionFigures::default())
    }

    fn round_with(fault: Fault, events: &[Event], transactions: TransactionFigures) -> Round {
        let options = Options {
            seed: 0,
            until: Until::Rounds(1),
            faults_for: Duration::ZERO,
            quiet_for: Duration::ZERO,
            only: Vec::new(),
            processes: 1,
            workload: Workload {
                workers: 1,
                only: None,
                locks: 1,
                hold_at_most: Duration::ZERO,
                ttl: Duration::from_secs(2),
                transactions_percent: 0,
            },
        };
        let directory = tempfile::tempdir().unwrap();
        let line = |event: &Event| serde_json::to_string(event).unwrap() + "\n";
        let history: String = events.iter().map(line).collect();
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
        let events = merged(&played).unwrap();
        let seen = Seen { events, writes: fencelock_conformance::Seen::default(), transactions };
        let report = StoreReport::of(&ByItsClock, profile(), &options);
        let mut earlier = EarlierRounds::default();
        verdict(1, played, seen, &mut earlier, &ByItsClock, &report)
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

    /// A clock that steps ends leases, and no cells.
    #[test]
    fn losses_are_admitted_only_under_a_fault_that_the_profile_names() {
        let wrong = [What::AddInvoked { n: 1 }, What::Added { sum: 2 }];
        let judged = |fault| judged_besides(fault, "counter-0", &wrong);
        let admitted = judged(Fault::DataLost);
        assert_eq!(
            (admitted.cells.admitted_losses, admitted.violations.len()),
            (1, 0),
            "{admitted}"
        );
        let not_admitted = judged(Fault::ServerClockStepped);
        assert_eq!((not_admitted.cells.admitted_losses, not_admitted.violations.len()), (0, 1));
    }

    #[test]
    fn an_election_without_a_leader_after_the_fault_is_a_violation() {
        let invoked = What::Invoked { how: How::Exclusive };
        let round = judged_besides(Fault::ClientsFrozen, ELECTION, &[invoked]);
        assert!(round.violations[0].contains("no candidate led"), "{round}");
    }

    /// Data that is lost is the store's, and not what its locks protect.
    #[test]
    fn a_commit_is_lost_only_where_the_profile_names_the_failover() {
        let lost = TransactionFigures { lost_commits: 1, ..TransactionFigures::default() };
        for fault in [Fault::DataLost, Fault::ClientsFrozen] {
            let round = round_with(fault, &[], lost);
            assert!(round.violations.iter().any(|it| it.starts_with("1 commit lost")), "{round}");
        }
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
