//! Counters: every addition is given numbers of its own, and all numbers are explained by additions.
//!
//! An answer pins its addition: a sum `s` of an addition of `n` took the numbers from `s - n`, which it
//! does not have, to `s`. Additions without an answer can only have taken what is missing between those
//! that have one, each once or not at all. A reading is an addition of nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::history::{Event, What};

use super::Violation;

/// An addition with its answer.
#[derive(Clone, Copy)]
struct Added {
    n: i64,
    sum: i64,
    invoked: u64,
    answered: u64,
}

impl Added {
    /// The value that it added to.
    fn from(&self) -> i64 {
        self.sum - self.n
    }
}

/// An addition that may have been made at any time since.
#[derive(Clone, Copy)]
struct Unsure {
    n: i64,
    invoked: u64,
}

pub(super) fn check(events: &[&Event]) -> Vec<Violation> {
    let (mut added, unsure) = additions(events);
    let mut violations = not_rising(&added);
    // What was read as a sum was read after that addition.
    added.sort_by_key(|it| (it.sum, -it.n));
    let (twice, missing) = steps(&added);
    violations.extend(twice);
    violations.extend(unexplained(&missing, &unsure));
    violations
}

fn additions(events: &[&Event]) -> (Vec<Added>, Vec<Unsure>) {
    let mut asked: HashMap<(u64, u64), Unsure> = HashMap::new();
    let mut added = Vec::new();
    for event in events {
        let key = (event.worker, event.claim);
        match event.what {
            What::AddInvoked { n } => {
                asked.insert(key, Unsure { n, invoked: event.at });
            }
            What::Added { sum } => {
                let Some(Unsure { n, invoked }) = asked.remove(&key) else { continue };
                added.push(Added { n, sum, invoked, answered: event.at });
            }
            What::Refused => drop(asked.remove(&key)),
            _ => {}
        }
    }
    (added, asked.into_values().filter(|it| it.n > 0).collect())
}

/// Additions that began after the answer to another and did not come after it.
fn not_rising(added: &[Added]) -> Vec<Violation> {
    let (mut by_asking, mut by_answer) = (added.to_vec(), added.to_vec());
    by_asking.sort_by_key(|it| it.invoked);
    by_answer.sort_by_key(|it| it.answered);
    let mut answered = by_answer.iter().peekable();
    let mut largest = 0;
    let mut violations = Vec::new();
    for it in by_asking {
        while let Some(before) = answered.next_if(|before| before.answered < it.invoked) {
            largest = before.sum.max(largest);
        }
        if it.from() < largest {
            let (earlier, later) = (largest, it.sum);
            violations.push(Violation::SumNotRising { earlier, later });
        }
    }
    violations
}

/// Numbers that no addition with an answer has taken.
struct Missing {
    from: i64,
    to: i64,
    /// An addition took larger ones by then.
    before: u64,
}

/// From zero to the largest sum, along all additions, which are in order: those that share numbers, and
/// what is missing.
fn steps(added: &[Added]) -> (Vec<Violation>, Vec<Missing>) {
    let (mut twice, mut missing) = (Vec::new(), Vec::new());
    // When it had been passed for sure.
    let mut passed: Vec<u64> = added.iter().map(|it| it.answered).collect();
    for at in (1..passed.len()).rev() {
        passed[at - 1] = passed[at - 1].min(passed[at]);
    }
    let mut value = 0;
    for (it, &before) in added.iter().zip(&passed) {
        if it.from() < value {
            twice.push(Violation::AddedTwice { sums: (value, it.sum) });
        } else if it.from() > value {
            missing.push(Missing { from: value, to: it.from(), before });
        }
        value = value.max(it.sum);
    }
    (twice, missing)
}

/// The first missing numbers that unsure additions cannot have taken, together with all before them.
///
/// Only additions that began before larger numbers were answered can have taken some. What was early
/// enough for smaller ones is so for larger ones, so of each size only how many have been used matters.
fn unexplained(missing: &[Missing], unsure: &[Unsure]) -> Option<Violation> {
    let mut sizes: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for it in unsure {
        sizes.entry(it.n).or_default().push(it.invoked);
    }
    sizes.values_mut().for_each(|invoked| invoked.sort_unstable());
    // How many of each size may have been used so far, in all ways.
    let mut used = BTreeSet::from([vec![0; sizes.len()]]);
    for Missing { from, to, before } in missing {
        let early = sizes.values().map(|invoked| invoked.partition_point(|it| it < before));
        let early: Vec<(i64, usize)> = sizes.keys().copied().zip(early).collect();
        used = used.iter().flat_map(|used| ways(used, &early, to - from)).collect();
        if used.is_empty() {
            return Some(Violation::Unexplained { values: (*from, *to) });
        }
    }
    None
}

/// How many of each size are used after these are and `numbers` more were taken, in all ways.
fn ways(used: &[usize], early: &[(i64, usize)], numbers: i64) -> Vec<Vec<usize>> {
    let Some((&(size, count), smaller)) = early.split_last() else {
        return if numbers == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    let (used, smaller_used) = (used[early.len() - 1], &used[..early.len() - 1]);
    let mut all = Vec::new();
    let mut left = numbers;
    for now in used..=count {
        if left < 0 {
            break;
        }
        // The smallest size has to take the rest at once.
        if !smaller.is_empty() || left == 0 {
            for mut way in ways(smaller_used, smaller, left) {
                way.push(now);
                all.push(way);
            }
        }
        left -= size;
    }
    all
}
