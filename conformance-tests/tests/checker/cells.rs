//! Counters, jobs that run once for each tick, and elections.

use fencelock_conformance::checker::{Rules, Violation};
use fencelock_conformance::history::{Event, What};

use super::{X, check, event, held, judge};

/// An addition of `n` from `asked` to `answered`; without a sum, that is unknown.
fn added(claim: u64, n: i64, asked: u64, answered: Option<(u64, i64)>) -> Vec<Event> {
    let mut events = vec![event(asked, 1, claim, What::AddInvoked { n })];
    events.extend(answered.map(|(at, sum)| event(at, 1, claim, What::Added { sum })));
    events
}

#[test]
fn a_good_counter_is_clean() {
    let history = [
        added(1, 1, 10, Some((20, 1))),
        // Asked together with the next, and before it.
        added(2, 7, 25, Some((40, 10))),
        added(3, 2, 26, Some((30, 3))),
        // Of these two, one was made.
        added(4, 2, 41, None),
        added(5, 2, 42, None),
        added(6, 1, 50, Some((60, 13))),
        // Readings, also of the value between two additions.
        added(7, 0, 15, Some((45, 12))),
        added(8, 0, 61, Some((70, 13))),
        added(9, 1, 71, None),
    ];
    assert_eq!(judge(&history), []);
}

#[test]
fn two_additions_with_one_number_are_found() {
    for (n, sum) in [(1, 3), (2, 4), (7, 7)] {
        let found = judge(&[added(1, 3, 10, Some((90, 3))), added(2, n, 10, Some((90, sum)))]);
        assert!(matches!(found[..], [Violation::AddedTwice { .. }]), "{found:?}");
    }
    let read_in_between = judge(&[added(1, 3, 10, Some((90, 3))), added(2, 0, 10, Some((90, 2)))]);
    assert!(
        matches!(
            read_in_between[..],
            [Violation::Unexplained { .. } | Violation::AddedTwice { .. }, ..]
        ),
        "{read_in_between:?}"
    );
}

#[test]
fn numbers_that_no_addition_explains_are_found() {
    let unexplained = |histories: &[Vec<Event>]| {
        let found = judge(histories);
        matches!(found[..], [Violation::Unexplained { .. }])
    };
    let first = || added(1, 1, 10, Some((20, 1)));
    let next = |sum| added(2, 1, 30, Some((40, sum)));
    assert!(unexplained(&[first(), next(3)]), "one is missing");
    assert_eq!(judge(&[first(), next(3), added(3, 1, 25, None)]), []);
    assert!(unexplained(&[first(), next(4), added(3, 1, 25, None)]), "it was added twice");
    assert!(unexplained(&[first(), next(3), added(3, 2, 25, None)]), "it is too large");
    assert!(unexplained(&[first(), next(3), added(3, 1, 41, None)]), "it began too late");
    let mut refused = added(3, 1, 25, None);
    refused.push(event(26, 1, 3, What::Refused));
    assert!(unexplained(&[first(), next(3), refused]), "it was said not to have been made");
    // Each explains one gap only, and the larger one can do without the smaller.
    let two_gaps = |others: &[Vec<Event>]| {
        let gaps = [first(), added(2, 1, 30, Some((40, 4))), added(3, 1, 50, Some((60, 9)))];
        judge(&[&gaps[..], others].concat())
    };
    let [two, three] = [2, 3].map(|n| move |claim| added(claim, n, 25, None));
    assert_eq!(two_gaps(&[two(4), two(5), two(6)]), []);
    assert_eq!(two_gaps(&[two(4), three(5), three(6), added(7, 1, 25, None)]), []);
    assert_eq!(two_gaps(&[two(4), two(5)]).len(), 1);
    assert_eq!(two_gaps(&[two(4), three(5)]).len(), 1);
}

#[test]
fn a_sum_that_had_been_passed_before_it_was_asked_for_is_found() {
    let history = |asked| [added(1, 1, 10, Some((20, 2))), added(2, 1, asked, Some((40, 1)))];
    assert_eq!(judge(&history(20)), []);
    let found = judge(&history(21));
    assert!(
        matches!(found[..], [Violation::SumNotRising { earlier: 2, later: 1, .. }]),
        "{found:?}"
    );
    let read = [added(1, 1, 10, Some((20, 1))), added(2, 0, 21, Some((30, 0)))];
    assert!(matches!(judge(&read)[..], [Violation::SumNotRising { .. }]));
}

/// A run of a tick, which holds the lock like [`held`] and ends with these.
fn run(worker: u64, tick: u64, from: u64, until: u64, ends: &[What]) -> Vec<Event> {
    let mut history = held(worker, X, from, from, until);
    let [invoked, granted, releasing, _] = &mut history[..] else { unreachable!() };
    let for_tick = What::ForTick { tick, never_twice: false };
    let mut events = vec![invoked.clone(), Event { what: for_tick, ..invoked.clone() }];
    events.extend([granted.clone(), releasing.clone()]);
    events.extend(ends.iter().map(|what| Event { what: *what, ..releasing.clone() }));
    events
}

const DONE: [What; 2] = [What::MarkInvoked, What::Marked];

fn told(tick: u64, at: u64) -> Vec<Event> {
    vec![
        event(at, 9, at, What::Invoked { how: X }),
        event(at, 9, at, What::ForTick { tick, never_twice: false }),
        event(at, 9, at, What::AlreadyDone),
    ]
}

#[test]
fn good_runs_are_clean() {
    let history = [
        run(1, 7, 10, 20, &DONE),
        told(7, 21),
        // This one is killed, which leaves its tick to the next.
        run(2, 8, 30, 40, &[]),
        run(3, 8, 41, 50, &[What::MarkInvoked]),
        run(1, 8, 51, 60, &[What::MarkInvoked, What::NotMarked]),
        run(2, 8, 61, 70, &DONE),
        told(8, 71),
    ];
    assert_eq!(judge(&history), []);
}

#[test]
fn a_tick_that_is_run_again_is_found() {
    let again = judge(&[run(1, 7, 10, 20, &DONE), run(2, 7, 30, 40, &[])]);
    assert!(matches!(again[..], [Violation::RunAgain { tick: 7, .. }]), "{again:?}");
    let done_twice = judge(&[run(1, 7, 10, 20, &DONE), run(2, 7, 30, 40, &DONE)]);
    assert!(matches!(done_twice[..], [Violation::RunAgain { .. }]), "{done_twice:?}");
    let at_once = judge(&[run(1, 7, 10, 20, &DONE), run(2, 7, 15, 40, &DONE)]);
    assert!(matches!(at_once[..], [Violation::Overlap { .. }]), "{at_once:?}");
}

/// It asked before the tick was done, and did not look again when it had the lock.
#[test]
fn a_run_that_did_not_read_again_under_the_lock_is_found() {
    let waited = |first: Vec<Event>| {
        let mut second = run(2, 7, 30, 40, &[]);
        second[..2].iter_mut().for_each(|event| event.at = 15);
        [first, second].concat()
    };
    let found = judge(&[waited(run(1, 7, 10, 20, &DONE))]);
    assert!(matches!(found[..], [Violation::RunAgain { tick: 7, .. }]), "{found:?}");
    let rules = Rules { overlaps_are_admitted: true, ..Rules::default() };
    assert_eq!(check(waited(run(1, 7, 10, 20, &DONE)), rules), [], "another may have held it too");
    // The mark was on its way when the lock was lost: it came after the other one had looked.
    let mut late = run(1, 7, 10, 20, &[What::MarkInvoked]);
    late.insert(3, event(19, 1, 10, What::Valid { until: 25 }));
    late.push(event(35, 1, 10, What::Marked));
    assert_eq!(judge(&[waited(late)]), []);
}

#[test]
fn a_tick_that_is_begun_twice_and_never_may_be_is_found() {
    let begun = |mut events: Vec<Event>| {
        events[1].what = What::ForTick { tick: 7, never_twice: true };
        events
    };
    let [first, second] = [run(1, 7, 10, 20, &[]), run(2, 7, 30, 40, &[])].map(begun);
    assert_eq!(judge(&[first.clone(), told(7, 21)]), [], "its outcome is unknown");
    let found = judge(&[first, second]);
    assert!(matches!(found[..], [Violation::BegunTwice { tick: 7, .. }]), "{found:?}");
}

#[test]
fn a_tick_that_is_done_without_a_run_is_found() {
    let runs = |next| [run(1, 7, 10, 20, &DONE), run(2, next, 30, 40, &DONE)].concat();
    let never_run = |tick, at, next| {
        let found = judge(&[runs(next), told(tick, at)]);
        matches!(found[..], [Violation::NeverRun { .. }])
    };
    assert!(never_run(6, 50, 9) && never_run(10, 50, 9));
    assert!(!never_run(8, 50, 9), "what is between a few is forgotten");
    assert!(never_run(8, 50, 9_000), "that much is not");
    assert!(never_run(9, 25, 9), "it was not done then");
    let refused = run(2, 9, 30, 40, &[What::MarkInvoked, What::NotMarked]);
    assert_eq!(judge(&[refused, told(9, 50)]).len(), 1);
}

#[test]
fn a_term_that_goes_back_is_found() {
    let seen = |at, claim, term| event(at, 1, claim, What::Observed { term });
    let good = [seen(1, 1, None), seen(2, 1, Some(5)), seen(3, 1, None), seen(4, 1, Some(5))];
    assert_eq!(judge(&[good.to_vec(), vec![seen(5, 2, Some(4))]]), [], "another observer");
    let found = judge(&[good.to_vec(), vec![seen(5, 1, Some(4))]]);
    assert!(matches!(found[..], [Violation::TermWentBack { terms: (5, 4), .. }]), "{found:?}");
}
