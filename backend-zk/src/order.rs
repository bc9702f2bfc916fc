//! Who stands in whose way: pure, from the names of a lock's nodes.
//!
//! The queue is the order of the sequence numbers, and nobody overtakes. A claim watches the
//! fewest nodes without whose end it cannot be granted, so that a release wakes who can win.

use std::borrow::Cow;
use std::sync::OnceLock;

use fencelock_core::Mode;

use crate::names::{NodeName, is_before, read};

/// Where a claim stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// Its node is not there.
    Missing,
    /// Nothing is in its way.
    Free,
    /// Not before one of these is gone.
    Blocked {
        watch: Vec<&'a str>,
        /// Nothing else is in its way: when it goes, the claim is granted without another look.
        is_sole: bool,
    },
}

/// The names of a lock's nodes as a server has listed them. They are read once for all claims that
/// share the list: in a crowd that queues at once, reading them for each would take longer than
/// everything else.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    names: Vec<String>,
    queue: OnceLock<Queue>,
}

/// The places in the queue of a lock, in order.
#[derive(Debug)]
struct Queue {
    entries: Vec<Entry>,
    /// All numbers are of one time, so that the order is the same seen from each of them. Servers
    /// give no others.
    is_sound: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The index of its name.
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

    /// Where the node `own`, one of the names, stands.
    pub(crate) fn standing(&self, own: &str, parsed: NodeName) -> Standing<'_> {
        let (ahead, same) = self.queue().split(parsed.sequence);
        if !same.iter().any(|entry| self.names[entry.at] == own) {
            return Standing::Missing;
        }
        self.behind(&ahead, parsed.mode)
    }

    /// Whether a claim in `mode` that comes last would be granted.
    pub(crate) fn is_free(&self, mode: Mode) -> bool {
        self.behind(&self.queue().entries, mode) == Standing::Free
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

    /// Where a claim in `mode` stands that has these ahead of it.
    fn behind(&self, ahead: &[Entry], mode: Mode) -> Standing<'_> {
        let name = |entry: &Entry| self.names[entry.at].as_str();
        let Mode::Permits(wanted) = mode else {
            // The nearest of those that it cannot be held beside.
            let is_in_the_way = |entry: &&Entry| !mode.is_compatible_with([entry.parsed.mode]);
            let mut in_the_way = ahead.iter().rev().filter(is_in_the_way);
            return match in_the_way.next() {
                None => Standing::Free,
                Some(nearest) => Standing::Blocked {
                    watch: vec![name(nearest)],
                    is_sole: in_the_way.next().is_none(),
                },
            };
        };
        let no_permits = |entry: &&Entry| !matches!(entry.parsed.mode, Mode::Permits(_));
        if let Some(nearest) = ahead.iter().rfind(no_permits) {
            // It may hide permits that are in the way as well.
            return Standing::Blocked { watch: vec![name(nearest)], is_sole: false };
        }
        let mut watch = blocking_permits(ahead, wanted.n(), wanted.limit());
        if watch.is_empty() {
            // There is room, but perhaps for somebody ahead who has not got it.
            let first = granted(ahead);
            let Some(waiter) = ahead.get(first) else { return Standing::Free };
            if let Mode::Permits(wanted) = waiter.parsed.mode {
                watch = blocking_permits(&ahead[..first], wanted.n(), wanted.limit());
            }
            watch.push(*waiter);
        }
        Standing::Blocked { watch: watch.iter().map(name).collect(), is_sole: false }
    }
}

impl Queue {
    fn of(mut entries: Vec<Entry>) -> Queue {
        let Some(base) = entries.first().map(|entry| entry.parsed.sequence) else {
            return Queue { entries, is_sound: true };
        };
        // Numbers of one time are near each other, on whichever side of the largest.
        let key = |entry: &Entry| entry.parsed.sequence.wrapping_sub(base);
        entries.sort_unstable_by_key(key);
        let spread = match &entries[..] {
            [first, .., last] => i64::from(key(last)) - i64::from(key(first)),
            _ => 0,
        };
        Queue { entries, is_sound: i32::try_from(spread).is_ok() }
    }

    /// The places ahead of a number, in order, and those that have it.
    fn split(&self, sequence: i32) -> (Cow<'_, [Entry]>, Cow<'_, [Entry]>) {
        let is_ahead = |entry: &Entry| is_before(entry.parsed.sequence, sequence);
        let is_same = |entry: &Entry| entry.parsed.sequence == sequence;
        if !self.is_sound {
            let of = |wanted: &dyn Fn(&Entry) -> bool| -> Vec<Entry> {
                self.entries.iter().copied().filter(|entry| wanted(entry)).collect()
            };
            let mut ahead = of(&is_ahead);
            ahead.sort_unstable_by_key(|entry| entry.parsed.sequence.wrapping_sub(sequence));
            return (ahead.into(), of(&is_same).into());
        }
        let (ahead, rest) = self.entries.split_at(self.entries.partition_point(is_ahead));
        let same = &rest[..rest.partition_point(is_same)];
        (ahead.into(), same.into())
    }
}

/// The nearest of `ahead`, all permits, that leave no room for `n` of `limit` together; nothing
/// when there is room.
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
            Standing::Blocked { watch, .. } => watch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_watches_whom() {
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        let all = listed(0, &[x, x, s, s, x, s]);
        assert_eq!(standing_of(&all, 0), Standing::Free);
        assert_eq!(
            standing_of(&all, 1),
            Standing::Blocked { watch: vec![&all.names()[0]], is_sole: true }
        );
        assert_eq!(
            standing_of(&all, 2),
            Standing::Blocked { watch: vec![&all.names()[1]], is_sole: false }
        );
        assert_eq!(watches(&all, 3), [&all.names()[1]]);
        assert_eq!(watches(&all, 4), [&all.names()[3]]);
        assert_eq!(watches(&all, 5), [&all.names()[4]]);
        let readers = listed(0, &[s, s, s, x]);
        assert!((0..3).all(|at| standing_of(&readers, at) == Standing::Free));
        assert_eq!(watches(&readers, 3), [&readers.names()[2]]);
    }

    #[test]
    fn permits_wait_for_any_of_enough() {
        let all = listed(0, &[permits(1, 3), permits(1, 3), permits(1, 3), permits(1, 3)]);
        assert!((0..3).all(|at| standing_of(&all, at) == Standing::Free));
        assert_eq!(watches(&all, 3), [&all.names()[2], &all.names()[1], &all.names()[0]]);
        let all = listed(0, &[permits(1, 2), permits(1, 2), permits(1, 2), permits(1, 2)]);
        assert_eq!(watches(&all, 3), [&all.names()[2], &all.names()[1]], "the nearest are enough");
        let all = listed(0, &[permits(1, 1), permits(1, 1), permits(1, 5)]);
        assert_eq!(
            watches(&all, 2),
            [&all.names()[0], &all.names()[1]],
            "room, but nobody overtakes"
        );
        let all = listed(0, &[permits(1, 5), Mode::Shared, permits(1, 5)]);
        assert_eq!(watches(&all, 1), [&all.names()[0]]);
        assert_eq!(watches(&all, 2), [&all.names()[1]]);
    }

    #[test]
    fn a_node_that_is_gone_is_missing() {
        let all = listed(0, &[Mode::Exclusive]);
        let own = name(Mode::Exclusive, 5);
        assert_eq!(all.standing(&own, read(&own).unwrap()), Standing::Missing);
        let other = name(Mode::Shared, 0);
        let standing = all.standing(&other, read(&other).unwrap());
        assert_eq!(standing, Standing::Missing, "the number of another node");
        assert!(listed(0, &[]).is_free(Mode::Exclusive) && !all.is_free(Mode::Exclusive));
        let others = Listing::new(vec!["config".to_owned()]);
        assert!(others.is_free(Mode::Exclusive), "no number, no place");
    }

    #[test]
    fn numbers_of_no_one_time_are_ordered_as_each_of_them_sees_them() {
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
        fn whoever_is_free_is_granted_and_the_watched_are_in_the_way(
            modes in proptest::collection::vec(any_mode(), 1..9),
            near in -9i32..9,
            seed: u64,
        ) {
            let first = i32::MAX.wrapping_add(near);
            let mut all = names(first, &modes);
            let ordered = all.clone();
            // A server lists in no order.
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
                    Standing::Blocked { watch, is_sole } => {
                        prop_assert!(at >= granted);
                        // With the watched alone ahead of it, it is not granted either.
                        let entry = |name: &str| ordered.iter().position(|n| n == name).unwrap();
                        prop_assert!(watch.iter().all(|name| entry(name) < at));
                        let left: Vec<String> = ordered[..=at]
                            .iter()
                            .filter(|name| watch.contains(&name.as_str()) || *name == own)
                            .cloned()
                            .collect();
                        prop_assert_eq!(queue(&left).last().copied(), Some(false));
                        if is_sole {
                            let left: Vec<String> = ordered[..=at]
                                .iter()
                                .filter(|name| !watch.contains(&name.as_str()))
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
