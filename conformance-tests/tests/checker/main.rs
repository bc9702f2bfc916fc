//! The checker finds every kind of violation in hand-written histories, and nothing in good ones;
//! its sweep agrees with trying every moment.

use std::time::Duration;

use fencelock_conformance::How;
use fencelock_conformance::checker::{self, Rules, Violation};
use fencelock_conformance::history::{Event, What, Worker, killed, read};
use proptest::prelude::*;

mod cells;

fn event(at: u64, worker: u64, claim: u64, what: What) -> Event {
    Event { at, worker, claim, lock: "lock".to_owned(), what }
}

/// Worker `worker` holds from `from` to `until`, with `token`.
fn held(worker: u64, how: How, token: u64, from: u64, until: u64) -> Vec<Event> {
    vec![
        event(from, worker, token, What::Invoked { how }),
        event(from, worker, token, What::Granted { token, valid_until: u64::MAX }),
        event(until, worker, token, What::ReleaseInvoked),
        event(until, worker, token, What::Released),
    ]
}

/// Claim 1 of worker 1, which nothing ends but its validity.
fn granted(invoked: u64, at: u64, token: u64, valid_until: u64) -> Vec<Event> {
    vec![
        event(invoked, 1, 1, What::Invoked { how: X }),
        event(at, 1, 1, What::Granted { token, valid_until }),
    ]
}

const X: How = How::Exclusive;

fn permits(n: u32, limit: u32) -> How {
    How::Permits { n, limit }
}

fn check(events: Vec<Event>, rules: Rules) -> Vec<Violation> {
    checker::check(events, rules).into_iter().map(|found| found.violation).collect()
}

fn judge(histories: &[Vec<Event>]) -> Vec<Violation> {
    check(histories.concat(), Rules::default())
}

#[test]
fn a_good_history_is_clean() {
    let rules = Rules {
        asked_later: Some(Duration::ZERO),
        granted_within: Some(Duration::from_nanos(10)),
        ..Rules::default()
    };
    let history = [
        held(1, X, 1, 10, 20),
        held(2, X, 2, 20, 30),
        held(1, How::Shared, 3, 30, 50),
        held(2, How::Shared, 4, 35, 60),
        held(1, permits(2, 3), 5, 60, 80),
        held(2, permits(1, 3), 6, 65, 80),
        held(3, X, 7, 80, 90),
    ];
    assert_eq!(check(history.concat(), rules), []);
}

#[test]
fn overlapping_holders_are_found() {
    for (one, other) in [(X, X), (X, How::Shared), (How::Shared, X), (X, permits(1, 2))] {
        let found = judge(&[held(1, one, 1, 10, 20), held(2, other, 2, 19, 30)]);
        let [Violation::Overlap { tokens, nanos, .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&tokens[..], *nanos), (&[1, 2][..], 1));
    }
    let found = judge(&[held(1, How::Shared, 1, 10, 20), held(2, permits(1, 2), 2, 15, 30)]);
    assert!(matches!(found[..], [Violation::Overlap { .. }]), "{found:?}");
}

#[test]
fn too_many_permits_are_found() {
    let two = permits(2, 3);
    let found = judge(&[held(1, two, 1, 10, 20), held(2, two, 2, 15, 30)]);
    assert!(matches!(found[..], [Violation::Overlap { .. }]), "{found:?}");
    let raised = judge(&[held(1, two, 1, 10, 20), held(2, permits(2, 4), 2, 15, 30)]);
    assert_eq!(raised, [], "each is measured by its own limit");
}

/// The belief ends with the validity, not with the release that comes late.
#[test]
fn a_claim_ends_with_its_validity_or_its_loss() {
    let until = |what| {
        let late = [(12, what), (40, What::ReleaseInvoked), (41, What::NotHeld)];
        let late = late.map(|(at, what)| event(at, 1, 1, what));
        [granted(10, 10, 1, 15), late.to_vec()].concat()
    };
    let next = held(2, X, 2, 20, 30);
    assert_eq!(judge(&[until(What::Valid { until: 20 }), next.clone()]), []);
    assert_eq!(judge(&[until(What::Lost), next.clone()]), []);
    let renewed = judge(&[until(What::Valid { until: 25 }), next]);
    assert!(matches!(renewed[..], [Violation::Overlap { nanos: 5, .. }]), "{renewed:?}");
}

/// A kill leaves a grant without an end: believed in until its validity's.
#[test]
fn an_open_claim_lasts_for_its_validity() {
    let open = granted(10, 11, 1, 20);
    assert_eq!(judge(&[open.clone(), held(2, X, 2, 20, 30)]), []);
    assert_eq!(judge(&[open, held(2, X, 2, 19, 30)]).len(), 1);
}

/// Where validity has no end, only the kill ends the belief of a killed process.
#[test]
fn a_killed_process_holds_nothing() {
    let mut open = granted(10, 11, 1, u64::MAX);
    assert_eq!(judge(&[open.clone(), held(2, X, 2, 20, 30)]).len(), 1);
    killed(&mut open, 19);
    assert_eq!(judge(&[open, held(2, X, 2, 20, 30)]), []);
}

/// The signal is not there the moment it is sent.
#[test]
fn a_process_that_writes_after_it_was_to_be_killed_was_alive_until_then() {
    let mut open = granted(10, 11, 1, u64::MAX);
    open.push(event(18, 1, 1, What::Valid { until: u64::MAX }));
    killed(&mut open, 15);
    assert_eq!(judge(&[open.clone(), held(2, X, 2, 17, 30)]).len(), 1, "it believed at 18");
    assert_eq!(judge(&[open, held(2, X, 2, 19, 30)]), []);
}

#[test]
fn tokens_that_do_not_rise_are_found() {
    let found = judge(&[held(1, X, 5, 10, 20), held(2, X, 4, 20, 30)]);
    assert!(
        matches!(found[..], [Violation::TokenNotRising { earlier: 5, later: 4, .. }]),
        "{found:?}"
    );
    let shared = judge(&[held(1, How::Shared, 5, 10, 20), held(2, How::Shared, 4, 20, 30)]);
    assert_eq!(shared, [], "shared tokens have no order");
    for how in [X, How::Shared, permits(1, 9)] {
        let found = judge(&[held(1, how, 5, 10, 20), held(2, how, 5, 20, 30)]);
        assert!(matches!(found[..], [Violation::TokenTwice { token: 5, .. }]), "{found:?}");
    }
}

/// Between the return of acquire and the note of it the machine can stand still for longer than the
/// hold, and others have held the lock by then.
#[test]
fn a_hold_that_ended_before_it_was_reported_counts_from_its_end() {
    let rules = Rules { asked_later: Some(Duration::from_nanos(1)), ..Rules::default() };
    let reported_late = |token, ended| granted(1, 30, token, ended);
    let others = held(2, X, 7, 10, 20);
    assert_eq!(check([reported_late(5, 9), others.clone()].concat(), rules), []);
    let found = check([reported_late(5, 21), others.clone()].concat(), Rules::default());
    assert!(matches!(found[..], [Violation::TokenNotRising { .. }]), "{found:?}");
    let found = check([reported_late(9, 9), others.clone()].concat(), Rules::default());
    assert!(matches!(found[..], [Violation::TokenNotRising { .. }]), "{found:?}");
    // It ended before the guard was checked, which then does not say when.
    for token in [5, 9] {
        assert_eq!(check([reported_late(token, 0), others.clone()].concat(), rules), []);
    }
}

#[test]
fn a_stale_write_is_found() {
    let wrote = |at, token, accepted| event(at, 1, 1, What::Wrote { token, accepted });
    assert_eq!(judge(&[vec![wrote(1, 5, true), wrote(2, 4, false), wrote(3, 5, true)]]), []);
    let found = judge(&[vec![wrote(1, 5, true), wrote(2, 4, true)]]);
    assert!(matches!(found[..], [Violation::StaleWrite { token: 4, .. }]), "{found:?}");
}

#[test]
fn a_free_lock_that_is_never_granted_is_found() {
    let rules = Rules { granted_within: Some(Duration::from_nanos(100)), ..Rules::default() };
    let waiter = |granted| {
        vec![
            event(15, 2, 2, What::Invoked { how: X }),
            event(granted, 2, 2, What::Granted { token: 2, valid_until: u64::MAX }),
        ]
    };
    let quick = [held(1, X, 1, 10, 50), waiter(150)].concat();
    assert_eq!(check(quick, rules), []);
    let slow = [held(1, X, 1, 10, 50), waiter(151)].concat();
    let found = check(slow, rules);
    assert!(matches!(found[..], [Violation::Stuck { nanos: 101, .. }]), "{found:?}");
    let killed = [held(1, X, 1, 10, 50), vec![event(15, 2, 2, What::Invoked { how: X })]].concat();
    assert_eq!(check(killed, rules), [], "a claim without an answer may be dead");
}

#[test]
fn a_much_later_request_that_was_granted_first_is_found() {
    let rules = Rules { asked_later: Some(Duration::from_nanos(5)), ..Rules::default() };
    let asked = |at| [granted(1, 20, 9, 21), held(2, X, 3, at, at + 1)].concat();
    assert_eq!(check(asked(6), rules), [], "it may have been on its way for longer");
    let found = check(asked(7), rules);
    assert!(matches!(found[..], [Violation::OutOfOrder { tokens: (9, 3), .. }]), "{found:?}");
}

/// A grant of before the store lost its data may be reported after a later one.
#[test]
fn where_overlaps_are_admitted_only_a_grant_reported_first_has_the_smaller_token() {
    let rules = Rules { overlaps_are_admitted: true, ..Rules::default() };
    let history = |invoked| [granted(invoked, 30, 1, 40), held(2, X, 2, 10, 20)].concat();
    assert_eq!(check(history(5), rules), []);
    let found = check(history(5), Rules::default());
    assert!(matches!(found[..], [Violation::TokenNotRising { .. }]), "{found:?}");
    let found = check(history(11), rules);
    assert!(matches!(found[..], [Violation::TokenNotRising { .. }]), "{found:?}");
}

#[test]
fn locks_are_checked_separately() {
    let mut other = held(2, X, 1, 12, 30);
    for event in &mut other {
        event.lock = "other".to_owned();
    }
    assert_eq!(judge(&[held(1, X, 1, 10, 20), other]), []);
}

#[test]
fn a_history_comes_back_from_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history");
    drop(Worker::to_file(&path).unwrap());
    assert_eq!(read(&path).unwrap(), []);
    let events = held(1, permits(2, 3), 5, 10, 20);
    let lines: Vec<String> = events.iter().map(|it| serde_json::to_string(it).unwrap()).collect();
    // The last line as a kill leaves it.
    std::fs::write(&path, lines.join("\n") + "\n{\"at\":21,\"wor").unwrap();
    assert_eq!(read(&path).unwrap(), events);
}

fn any_how() -> impl Strategy<Value = How> {
    prop_oneof![
        Just(X),
        Just(How::Shared),
        (1u32..4, 0u32..3).prop_map(|(n, more)| permits(n, n + more)),
    ]
}

/// Whether all holders at `now` may hold together, by trying every pair and the sum.
fn fits(now: u64, holders: &[(How, u64, u64)]) -> bool {
    let inside: Vec<How> = holders
        .iter()
        .filter(|(_, from, until)| (*from..*until).contains(&now))
        .map(|it| it.0)
        .collect();
    let pairs_fit = inside.iter().enumerate().all(|(index, one)| {
        inside[index + 1..].iter().all(|other| {
            matches!(
                (one, other),
                (How::Shared, How::Shared) | (How::Permits { .. }, How::Permits { .. })
            )
        })
    });
    let counts = inside.iter().filter_map(|how| match how {
        How::Permits { n, limit } => Some((*n, *limit)),
        _ => None,
    });
    let (out, limit) = counts.fold((0, 0), |(out, most), (n, limit)| (out + n, most.max(limit)));
    pairs_fit && out <= limit
}

proptest! {
    #[test]
    fn the_sweep_agrees_with_every_moment(
        holders in prop::collection::vec((any_how(), 1u64..40, 0u64..12), 0..7)
    ) {
        let holders: Vec<_> =
            holders.into_iter().map(|(how, from, length)| (how, from, from + length)).collect();
        let mut in_order = holders.clone();
        in_order.sort_by_key(|(_, from, _)| *from);
        let history: Vec<Event> = in_order
            .iter()
            .enumerate()
            .flat_map(|(index, (how, from, until))| {
                let token = u64::try_from(index).unwrap() + 1;
                held(token, *how, token, *from, *until)
            })
            .collect();
        let overlaps = !check(history, Rules::default()).is_empty();
        let brute_force = (0..60).any(|now| !fits(now, &holders));
        prop_assert_eq!(overlaps, brute_force);
    }
}
