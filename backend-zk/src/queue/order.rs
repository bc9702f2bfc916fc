//! Which nodes block a claim: without I/O, from the names of a lock's nodes.
//!
//! The queue is the order of the sequence numbers, and no claim overtakes another. A claim watches
//! the fewest nodes without whose deletion it cannot be granted, so that a release wakes only claims
//! that can be granted.
//!
//! No node is ever made whose number is already queued: the deletion of the only node that blocks a
//! claim is its turn, and a second node of that number would still be there. So a writer that
//! becomes a reader keeps its node, and marks it.

use std::borrow::Cow;
use std::sync::OnceLock;

use fencelock_core::Mode;

use crate::queue::names::{NodeName, is_before, read};

/// The standing of a claim in the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// Its node does not exist.
    Missing,
    /// No node blocks it.
    Free,
    /// It cannot be granted before one of these nodes is deleted.
    Blocked {
        by: Vec<&'a str>,
        /// No other node blocks it: when `by` is deleted, the claim can be granted without a list.
        is_sole: bool,
    },
}

/// The names of a lock's nodes as a server has listed them. They are parsed once for all claims that
/// share the list: when many claims queue at once, parsing them for each would take longer than
/// everything else.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    names: Vec<String>,
    queue: OnceLock<Queue>,
}

/// The entries in the queue of a lock, in order.
#[derive(Debug)]
struct Queue {
    entries: Vec<Entry>,
    /// All numbers are within 2^31 of each other, so that their order is the same seen from each of
    /// them. Servers give no others.
    is_sound: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The index of the name.
    at: usize,
    parsed: NodeName,
}

impl Listing {
    pub(crate) fn new(names: Vec<String>) -> Listing {
        Listing { names, queue: OnceLock::new() }
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    fn queue(&self) -> &Queue {
        self.queue.get_or_init(|| {
            let read = |(at, name): (usize, &String)| Some(Entry { at, parsed: read(name)? });
            Queue::of(self.names.iter().enumerate().filter_map(read).collect())
        })
    }

    /// The standing of the node `own`, one of the names.
    pub(crate) fn standing(&self, own: &str, parsed: NodeName) -> Standing<'_> {
        let entries = self.queue().as_seen_from(parsed.sequence);
        let is_ahead = |entry: &Entry| is_before(entry.parsed.sequence, parsed.sequence);
        let (ahead, rest) = entries.split_at(entries.partition_point(is_ahead));
        let mut same = rest.iter().take_while(|entry| entry.parsed.sequence == parsed.sequence);
        if !same.any(|entry| self.names[entry.at] == own) {
            return Standing::Missing;
        }
        self.standing_after(ahead, parsed.mode)
    }

    /// Whether a claim in `mode` at the end of the queue would be granted.
    pub(crate) fn is_free(&self, mode: Mode) -> bool {
        self.standing_at_end(mode) == Standing::Free
    }

    /// The standing of a claim in `mode` at the end of the queue.
    pub(crate) fn standing_at_end(&self, mode: Mode) -> Standing<'_> {
        self.standing_after(&self.queue().entries, mode)
    }

    /// The nodes in the order of the queue, each with whether it is granted.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (&str, Mode, bool)> {
        let entries = &self.queue().entries;
        let granted = granted(entries);
        let node = move |(index, entry): (usize, &Entry)| {
            (self.names[entry.at].as_str(), entry.parsed.mode, index < granted)
        };
        entries.iter().enumerate().map(node)
    }

    /// The standing of a claim in `mode` that has these ahead of it.
    fn standing_after(&self, ahead: &[Entry], mode: Mode) -> Standing<'_> {
        let name = |entry: &Entry| self.names[entry.at].as_str();
        let Mode::Permits(wanted) = mode else {
            // The nearest of those that it cannot be held together with.
            let blocks = |entry: &&Entry| !mode.is_compatible_with([entry.parsed.mode]);
            let mut blocking = ahead.iter().rev().filter(blocks);
            return match blocking.next() {
                None => Standing::Free,
                Some(nearest) => Standing::Blocked {
                    by: vec![name(nearest)],
                    is_sole: blocking.next().is_none(),
                },
            };
        };
        let no_permits = |entry: &&Entry| !matches!(entry.parsed.mode, Mode::Permits(_));
        if let Some(nearest) = ahead.iter().rfind(no_permits) {
            // Permits may block it as well.
            return Standing::Blocked { by: vec![name(nearest)], is_sole: false };
        }
        let mut by = blocking_permits(ahead, wanted.n(), wanted.limit());
        if by.is_empty() {
            // There is room, but a claim ahead that waits comes first.
            let first = granted(ahead);
            let Some(waiter) = ahead.get(first) else { return Standing::Free };
            if let Mode::Permits(wanted) = waiter.parsed.mode {
                by = blocking_permits(&ahead[..first], wanted.n(), wanted.limit());
            }
            by.push(*waiter);
        }
        Standing::Blocked { by: by.iter().map(name).collect(), is_sole: false }
    }
}

impl Queue {
    fn of(mut entries: Vec<Entry>) -> Queue {
        let Some(base) = entries.first().map(|entry| entry.parsed.sequence) else {
            return Queue { entries, is_sound: true };
        };
        // Numbers of one queue are near each other, on either side of the largest number.
        sort_around(&mut entries, base);
        let distance = |entry: &Entry| i64::from(entry.parsed.sequence.wrapping_sub(base));
        let spread = entries.last().map_or(0, distance) - entries.first().map_or(0, distance);
        Queue { entries, is_sound: i32::try_from(spread).is_ok() }
    }

    /// The entries in order, those before the number `sequence` first.
    fn as_seen_from(&self, sequence: i32) -> Cow<'_, [Entry]> {
        if self.is_sound {
            return Cow::Borrowed(&self.entries);
        }
        let mut entries = self.entries.clone();
        sort_around(&mut entries, sequence);
        Cow::Owned(entries)
    }
}

/// Sorts by the distance from `base`, of which numbers are before or after it.
fn sort_around(entries: &mut [Entry], base: i32) {
    entries.sort_unstable_by_key(|entry| entry.parsed.sequence.wrapping_sub(base));
}

/// The nearest of `ahead`, all permits, that together leave no room for `n` of `limit`; none when
/// there is room.
fn blocking_permits(ahead: &[Entry], n: u32, limit: u32) -> Vec<Entry> {
    let mut out = u64::from(n);
    let mut nearest = Vec::new();
    for entry in ahead.iter().rev() {
        let Mode::Permits(taken) = entry.parsed.mode else { continue };
        out += u64::from(taken.n());
        nearest.push(*entry);
        if out > u64::from(limit) {
            return nearest;
        }
    }
    Vec::new()
}

/// How many at the head of the queue are granted.
fn granted(queue: &[Entry]) -> usize {
    let modes = |count: usize| queue[..count].iter().map(|entry| entry.parsed.mode);
    let fits = |at: &usize| queue[*at].parsed.mode.is_compatible_with(modes(*at));
    (0..queue.len()).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::Permits;
    use proptest::prelude::*;

    fn name(mode: Mode, sequence: i32) -> String {
        match mode {
            Mode::Exclusive => format!("_c_x-lock-{sequence:010}"),
            Mode::Shared => format!("_c_x-__READ__{sequence:010}"),
            Mode::Permits(p) => format!("_c_x-permits-{}-{}-{sequence:010}", p.n(), p.limit()),
        }
    }

    fn permits(n: u32, limit: u32) -> Mode {
        Mode::Permits(Permits::new(n, limit).unwrap())
    }

    fn names(first: i32, modes: &[Mode]) -> Vec<String> {
        let number = |at: usize| first.wrapping_add(i32::try_from(at).unwrap());
        modes.iter().enumerate().map(|(at, mode)| name(*mode, number(at))).collect()
    }

    fn listed(first: i32, modes: &[Mode]) -> Listing {
        Listing::new(names(first, modes))
    }

    fn standing_of(all: &Listing, at: usize) -> Standing<'_> {
        let own = &all.names()[at];
        all.standing(own, read(own).unwrap())
    }

    fn watches(all: &Listing, at: usize) -> Vec<&str> {
        match standing_of(all, at) {
            Standing::Blocked { by, .. } => by,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_mode_watches_the_nearest_node_that_blocks_it() {
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        let all = listed(0, &[x, x, s, s, x, s]);
        assert_eq!(standing_of(&all, 0), Standing::Free);
        assert_eq!(
            standing_of(&all, 1),
            Standing::Blocked { by: vec![&all.names()[0]], is_sole: true }
        );
        assert_eq!(
            standing_of(&all, 2),
            Standing::Blocked { by: vec![&all.names()[1]], is_sole: false }
        );
        assert_eq!(watches(&all, 3), [&all.names()[1]]);
        assert_eq!(watches(&all, 4), [&all.names()[3]]);
        assert_eq!(watches(&all, 5), [&all.names()[4]]);
        let readers = listed(0, &[s, s, s, x]);
        assert!((0..3).all(|at| standing_of(&readers, at) == Standing::Free));
        assert_eq!(watches(&readers, 3), [&readers.names()[2]]);
    }

    #[test]
    fn permits_watch_the_nearest_that_leave_no_room() {
        let all = listed(0, &[permits(1, 3), permits(1, 3), permits(1, 3), permits(1, 3)]);
        assert!((0..3).all(|at| standing_of(&all, at) == Standing::Free));
        assert_eq!(watches(&all, 3), [&all.names()[2], &all.names()[1], &all.names()[0]]);
        let all = listed(0, &[permits(1, 2), permits(1, 2), permits(1, 2), permits(1, 2)]);
        assert_eq!(watches(&all, 3), [&all.names()[2], &all.names()[1]], "the nearest are enough");
        let all = listed(0, &[permits(1, 1), permits(1, 1), permits(1, 5)]);
        assert_eq!(
            watches(&all, 2),
            [&all.names()[0], &all.names()[1]],
            "room, but no claim overtakes another"
        );
        let all = listed(0, &[permits(1, 5), Mode::Shared, permits(1, 5)]);
        assert_eq!(watches(&all, 1), [&all.names()[0]]);
        assert_eq!(watches(&all, 2), [&all.names()[1]]);
    }

    #[test]
    fn an_unlisted_node_is_missing() {
        let all = listed(0, &[Mode::Exclusive]);
        let own = name(Mode::Exclusive, 5);
        assert_eq!(all.standing(&own, read(&own).unwrap()), Standing::Missing);
        let other = name(Mode::Shared, 0);
        let standing = all.standing(&other, read(&other).unwrap());
        assert_eq!(standing, Standing::Missing, "the number of another node");
        assert!(listed(0, &[]).is_free(Mode::Exclusive) && !all.is_free(Mode::Exclusive));
        let others = Listing::new(vec!["config".to_owned()]);
        assert!(others.is_free(Mode::Exclusive), "a node without a number is not in the queue");
    }

    #[test]
    fn far_apart_numbers_are_ordered_as_seen_from_each() {
        let numbers = [0, i32::MAX / 2, i32::MAX, i32::MIN / 2];
        let all = Listing::new(numbers.iter().map(|n| name(Mode::Exclusive, *n)).collect());
        for (at, own) in numbers.iter().enumerate() {
            let is_first = !numbers.iter().any(|other| is_before(*other, *own));
            assert_eq!(standing_of(&all, at) == Standing::Free, is_first, "{own}");
        }
    }

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1u32..3, 0u32..3).prop_map(|(n, more)| permits(n, n + more)),
        ]
    }

    proptest! {
        /// The queue against its plain definition, around the largest number as well.
        #[test]
        fn exactly_free_claims_are_granted_and_watched_nodes_block(
            modes in proptest::collection::vec(any_mode(), 1..9),
            near in -9i32..9,
            seed: u64,
        ) {
            let first = i32::MAX.wrapping_add(near);
            let mut all = names(first, &modes);
            let ordered = all.clone();
            // Servers list in no order.
            let len = all.len();
            all.rotate_left(usize::try_from(seed % len as u64).unwrap());
            let granted = (0..len)
                .take_while(|at| modes[*at].is_compatible_with(modes[..*at].iter().copied()))
                .count();
            let all = Listing::new(all);
            let queue = |names: &[String]| -> Vec<bool> {
                Listing::new(names.to_vec()).in_order().map(|(_, _, is)| is).collect()
            };
            let seen: Vec<_> = all.in_order().map(|(name, _, is)| (name, is)).collect();
            let wanted: Vec<_> =
                ordered.iter().enumerate().map(|(at, name)| (name.as_str(), at < granted)).collect();
            prop_assert_eq!(seen, wanted);
            for (at, own) in ordered.iter().enumerate() {
                match all.standing(own, read(own).unwrap()) {
                    Standing::Free => prop_assert!(at < granted),
                    Standing::Missing => prop_assert!(false),
                    Standing::Blocked { by, is_sole } => {
                        prop_assert!(at >= granted);
                        // With only the watched nodes ahead of it, it is not granted either.
                        let entry = |name: &str| ordered.iter().position(|n| n == name).unwrap();
                        prop_assert!(by.iter().all(|name| entry(name) < at));
                        let left: Vec<String> = ordered[..=at]
                            .iter()
                            .filter(|name| by.contains(&name.as_str()) || *name == own)
                            .cloned()
                            .collect();
                        prop_assert_eq!(queue(&left).last().copied(), Some(false));
                        if is_sole {
                            let left: Vec<String> = ordered[..=at]
                                .iter()
                                .filter(|name| !by.contains(&name.as_str()))
                                .cloned()
                                .collect();
                            prop_assert_eq!(queue(&left).last().copied(), Some(true));
                        }
                    }
                }
            }
        }
    }
}
