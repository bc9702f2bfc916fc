//! Judges recorded histories: which claim believed to hold what, and when.
//!
//! A claim lasts from the return of acquire to the earliest of: release called, loss reported, the
//! last known end of its validity. That is within the time for which the holder really believed,
//! so whatever is found here is a fault; what is not found may still be one.
//!
//! What is made of cells has rules of its own, in `counters`, `ticks` and `observers`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use fencelock_core::Mode;

use crate::history::{Event, What};

mod counters;
mod observers;
mod ticks;
mod violation;

pub use violation::{Finding, Violation};

/// What to check, in addition to exclusion, tokens and cells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// A free lock with waiters is granted within this.
    pub granted_within: Option<Duration>,
    /// A claim is granted before those that asked this much later.
    pub asked_later: Option<Duration>,
    /// Two may hold together, after the store lost its data: then only a grant that was reported
    /// before another was requested has the smaller token for sure.
    pub overlaps_are_admitted: bool,
}

/// Everything that is wrong with a history, in no order of importance.
#[must_use]
pub fn check(mut events: Vec<Event>, rules: Rules) -> Vec<Finding> {
    // Stable, since one worker's events may have the same time.
    events.sort_by_key(|event| event.at);
    let mut findings = Vec::new();
    for (lock, events) in by_lock(&events) {
        let spans = spans(&events);
        let mut violations = overlaps(&spans);
        violations.extend(tokens(&spans, rules.overlaps_are_admitted));
        violations.extend(stale_writes(&events));
        violations.extend(counters::check(&events));
        violations.extend(ticks::check(&events, rules.overlaps_are_admitted));
        violations.extend(observers::check(&events));
        if let Some(bound) = rules.granted_within {
            violations.extend(stuck(&spans, bound));
        }
        if let Some(later) = rules.asked_later {
            violations.extend(out_of_order(&spans, later));
        }
        let named = |violation| Finding { name: lock.to_owned(), violation };
        findings.extend(violations.into_iter().map(named));
    }
    findings
}

/// As [`check`], for an assertion.
///
/// # Panics
/// When anything is wrong, saying what.
pub fn assert_clean(events: Vec<Event>, rules: Rules) {
    let granted = events.iter().filter(|it| matches!(it.what, What::Granted { .. })).count();
    assert!(granted > 0, "the history has no grant, so it proves nothing");
    let findings = check(events, rules);
    if let Some(first) = findings.first() {
        let (count, s) = (findings.len(), if findings.len() == 1 { "" } else { "s" });
        panic!("{count} violation{s} in {granted} grants; the first: {first}");
    }
}

fn by_lock(events: &[Event]) -> BTreeMap<&str, Vec<&Event>> {
    let mut locks: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        locks.entry(&event.lock).or_default().push(event);
    }
    locks
}

/// One acquisition from beginning to end.
#[derive(Clone, Debug)]
struct Span {
    mode: Mode,
    invoked: u64,
    /// When acquire returned, with or without a guard.
    answered: Option<u64>,
    grant: Option<Grant>,
}

impl Span {
    /// An exclusive grant whose place among the others is known. If the belief had ended before
    /// the guard was checked, the time of the grant is unknown.
    fn in_order(&self) -> Option<Grant> {
        let exclusive = self.mode == Mode::Exclusive;
        self.grant.filter(|grant| exclusive && grant.until >= self.invoked)
    }
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    token: u64,
    from: u64,
    /// The end of the holder's belief.
    until: u64,
    /// When the store must have known that it is free, if that is known.
    freed: Option<u64>,
}

impl Grant {
    /// When it had been granted for sure: acquire had returned, or the belief had ended by then. A
    /// machine that stands still in between can have others hold it first.
    fn surely(&self) -> u64 {
        self.from.min(self.until)
    }
}

fn spans(events: &[&Event]) -> Vec<Span> {
    let mut spans: HashMap<(u64, u64), Span> = HashMap::new();
    let mut order = Vec::new();
    for event in events {
        let key = (event.worker, event.claim);
        if let What::Invoked { how } = event.what {
            let mode = how.mode().unwrap_or(Mode::Exclusive);
            let invoked = event.at;
            let span = Span { mode, invoked, answered: None, grant: None };
            spans.insert(key, span);
            order.push(key);
            continue;
        }
        let Some(span) = spans.get_mut(&key) else { continue };
        let grant = span.grant.as_mut();
        match (event.what, grant) {
            (What::Granted { token, valid_until }, _) => {
                let (from, until) = (event.at, valid_until);
                span.answered = Some(from);
                span.grant = Some(Grant { token, from, until, freed: None });
            }
            (What::Refused | What::Unknown | What::AlreadyDone, _) => {
                span.answered = Some(event.at);
            }
            (What::Valid { until }, Some(grant)) => grant.until = until,
            (What::Lost, Some(grant)) => {
                grant.until = grant.until.min(event.at);
                grant.freed = Some(event.at);
            }
            (What::ReleaseInvoked | What::Killed, Some(grant)) => {
                grant.until = grant.until.min(event.at);
            }
            (What::Released | What::NotHeld, Some(grant)) => grant.freed = Some(event.at),
            _ => {}
        }
    }
    order.iter().filter_map(|key| spans.remove(key)).collect()
}

fn grants(spans: &[Span]) -> Vec<(Mode, Grant)> {
    let mut grants: Vec<_> =
        spans.iter().filter_map(|span| Some((span.mode, span.grant?))).collect();
    grants.sort_by_key(|(_, grant)| grant.from);
    grants
}

fn overlaps(spans: &[Span]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut holders: Vec<(Mode, Grant)> = Vec::new();
    for (mode, grant) in grants(spans) {
        if grant.until <= grant.from {
            continue;
        }
        holders.retain(|(_, other)| other.until > grant.from);
        let excluded = holders.iter().find(|(other, _)| excludes(*other, mode));
        let too_many = || {
            let all = holders.iter().map(|(mode, _)| *mode).chain([mode]);
            let (out, limit) = all.fold((0u64, 0u32), |(out, limit), mode| match mode {
                Mode::Permits(it) => (out + u64::from(it.n()), limit.max(it.limit())),
                _ => (out, limit),
            });
            // The last grant of these saw no more permits held than its own limit allows.
            out > u64::from(limit)
        };
        let found = match excluded {
            Some((_, other)) => Some((vec![other.token, grant.token], other.until)),
            None if matches!(mode, Mode::Permits(_)) && too_many() => {
                let tokens = holders.iter().map(|(_, other)| other.token).chain([grant.token]);
                let until = holders.iter().map(|(_, other)| other.until).min();
                Some((tokens.collect(), until.unwrap_or(grant.until)))
            }
            None => None,
        };
        if let Some((tokens, until)) = found {
            let nanos = until.min(grant.until) - grant.from;
            violations.push(Violation::Overlap { tokens, nanos });
        }
        holders.push((mode, grant));
    }
    violations
}

/// Whether the two can never be held together, whatever their permits.
fn excludes(one: Mode, other: Mode) -> bool {
    !matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}

fn tokens(spans: &[Span], reported_first: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for (_, Grant { token, .. }) in grants(spans) {
        if !seen.insert(token) {
            violations.push(Violation::TokenTwice { token });
        }
    }
    let mut by_asking: Vec<(u64, Grant)> = spans
        .iter()
        .filter_map(|span| {
            let grant = span.in_order()?;
            Some((if reported_first { span.invoked } else { grant.surely() }, grant))
        })
        .collect();
    let mut by_report: Vec<Grant> = by_asking.iter().map(|(_, grant)| *grant).collect();
    by_asking.sort_by_key(|(since, _)| *since);
    by_report.sort_by_key(Grant::surely);
    let mut earlier = by_report.iter().peekable();
    let mut largest = 0;
    for (since, Grant { token, .. }) in by_asking {
        while let Some(reported) = earlier.next_if(|grant| grant.surely() < since) {
            largest = reported.token.max(largest);
        }
        if token < largest {
            violations.push(Violation::TokenNotRising { earlier: largest, later: token });
        }
    }
    violations
}

fn stale_writes(events: &[&Event]) -> Vec<Violation> {
    let mut largest = 0;
    let mut violations = Vec::new();
    for event in events {
        if let What::Wrote { token, accepted: true } = event.what {
            if token < largest {
                violations.push(Violation::StaleWrite { token });
            }
            largest = largest.max(token);
        }
    }
    violations
}

/// Periods with waiters but without a holder. Claims that never got an answer do not
/// count: they may have been killed.
fn stuck(spans: &[Span], bound: Duration) -> Vec<Violation> {
    let mut steps: Vec<(u64, i64, i64)> = Vec::new();
    for span in spans {
        let Some(answered) = span.answered else { continue };
        steps.push((span.invoked, 0, 1));
        steps.push((answered, 0, -1));
        if let Some(grant) = span.grant {
            steps.push((answered, 1, 0));
            if let Some(freed) = grant.freed {
                steps.push((freed, -1, 0));
            }
        }
    }
    steps.sort_unstable();
    let (mut held, mut waiting, mut idle_since) = (0, 0, None);
    let mut violations = Vec::new();
    for (at, more_held, more_waiting) in steps {
        held += more_held;
        waiting += more_waiting;
        match (held == 0 && waiting > 0, idle_since) {
            (true, None) => idle_since = Some(at),
            (false, Some(since)) => {
                let nanos = at - since;
                if u128::from(nanos) > bound.as_nanos() {
                    violations.push(Violation::Stuck { nanos });
                }
                idle_since = None;
            }
            _ => {}
        }
    }
    violations
}

/// A claim that asks so much later than another is granted after it.
fn out_of_order(spans: &[Span], later: Duration) -> Vec<Violation> {
    let later = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX);
    let mut granted: Vec<(&Span, Grant)> =
        spans.iter().filter_map(|span| Some((span, span.in_order()?))).collect();
    granted.sort_by_key(|(_, grant)| grant.surely());
    let mut violations = Vec::new();
    // Of the claims granted so far, the one that asked last.
    let mut last: Option<(u64, u64)> = None;
    for (span, grant) in granted {
        if let Some((asked, first)) = last
            && asked > span.invoked.saturating_add(later)
        {
            violations.push(Violation::OutOfOrder { tokens: (grant.token, first) });
        }
        last = last.max(Some((span.invoked, grant.token)));
    }
    violations
}
