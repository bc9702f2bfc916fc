//! Observers of elections: none is told of an earlier term after a later one.

use std::collections::HashMap;

use crate::history::{Event, What};

use super::Violation;

pub(super) fn check(events: &[&Event]) -> Vec<Violation> {
    let mut latest: HashMap<(u64, u64), u64> = HashMap::new();
    let mut violations = Vec::new();
    for event in events {
        let What::Observed { term: Some(term) } = event.what else { continue };
        let last = latest.entry((event.worker, event.claim)).or_default();
        if term < *last {
            violations.push(Violation::TermWentBack { terms: (*last, term) });
        }
        *last = term.max(*last);
    }
    violations
}
