//! Who stands in whose way: pure, from the names of a lock's nodes.
//!
//! The queue is the order of the sequence numbers, and nobody overtakes. A claim watches the
//! fewest nodes without whose end it cannot be granted, so that a release wakes who can win.

use fencelock_core::Mode;

use crate::names::{Written, is_before, read};

/// Where a claim stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// Its node is not there.
    Missing,
    /// Nothing is in its way.
    Free,
    /// Not before one of these is gone.
    Behind {
        watch: Vec<&'a str>,
        /// Nothing else is in its way: when it goes, the claim is granted without another look.
        alone: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Node<'a> {
    name: &'a str,
    written: Written,
}

fn nodes(names: &[String]) -> impl Iterator<Item = Node<'_>> {
    names.iter().filter_map(|name| read(name).map(|written| Node { name, written }))
}

/// Where the node `own`, one of `names`, stands.
pub(crate) fn standing<'a>(names: &'a [String], own: &str, written: Written) -> Standing<'a> {
    if !names.iter().any(|name| name == own) {
        return Standing::Missing;
    }
    let ahead = nodes(names).filter(|node| is_before(node.written.sequence, written.sequence));
    behind(ahead, written.mode)
}

/// Whether a claim in `mode` that comes last would be granted.
pub(crate) fn is_free(names: &[String], mode: Mode) -> bool {
    behind(nodes(names), mode) == Standing::Free
}

/// The nodes in the order of the queue, each with whether it is granted.
pub(crate) fn queue(names: &[String]) -> Vec<(&str, Mode, bool)> {
    let all = in_order(nodes(names));
    let granted = granted(&all);
    all.iter().enumerate().map(|(at, node)| (node.name, node.written.mode, at < granted)).collect()
}

/// Where a claim in `mode` stands that has these ahead of it.
fn behind<'a>(ahead: impl Iterator<Item = Node<'a>>, mode: Mode) -> Standing<'a> {
    let Mode::Permits(wanted) = mode else {
        // The nearest of those that it cannot be held beside.
        let in_the_way = ahead.filter(|node| !mode.fits_beside([node.written.mode]));
        let (nearest, count) = in_the_way.fold((None, 0), |(nearest, count), node| {
            (Some(nearest.map_or(node, |other| later(other, node))), count + 1)
        });
        return match nearest {
            None => Standing::Free,
            Some(Node { name, .. }) => Standing::Behind { watch: vec![name], alone: count == 1 },
        };
    };
    let ahead = in_order(ahead);
    let no_permits = |node: &&Node<'_>| !matches!(node.written.mode, Mode::Permits(_));
    if let Some(Node { name, .. }) = ahead.iter().rfind(no_permits) {
        // It may hide permits that are in the way as well.
        return Standing::Behind { watch: vec![name], alone: false };
    }
    let mut watch = enough(&ahead, wanted.n(), wanted.limit());
    if watch.is_empty() {
        // There is room, but perhaps for somebody ahead who has not got it.
        let first = granted(&ahead);
        let Some(waiter) = ahead.get(first) else { return Standing::Free };
        if let Mode::Permits(wanted) = waiter.written.mode {
            watch = enough(&ahead[..first], wanted.n(), wanted.limit());
        }
        watch.push(waiter.name);
    }
    Standing::Behind { watch, alone: false }
}

/// The nearest of `ahead`, all permits, that leave no room for `n` of `limit` together; nothing
/// when there is room.
fn enough<'a>(ahead: &[Node<'a>], n: u32, limit: u32) -> Vec<&'a str> {
    let mut out = u64::from(n);
    let mut nearest = Vec::new();
    for node in ahead.iter().rev() {
        let Mode::Permits(taken) = node.written.mode else { continue };
        out += u64::from(taken.n());
        nearest.push(node.name);
        if out > u64::from(limit) {
            return nearest;
        }
    }
    Vec::new()
}

/// How many at the head of the queue are granted.
fn granted(queue: &[Node<'_>]) -> usize {
    let modes = |count: usize| queue[..count].iter().map(|node| node.written.mode);
    let fits = |at: &usize| queue[*at].written.mode.fits_beside(modes(*at));
    (0..queue.len()).take_while(fits).count()
}

fn later<'a>(one: Node<'a>, other: Node<'a>) -> Node<'a> {
    if is_before(one.written.sequence, other.written.sequence) { other } else { one }
}

fn in_order<'a>(nodes: impl Iterator<Item = Node<'a>>) -> Vec<Node<'a>> {
    let mut all: Vec<_> = nodes.collect();
    if let Some(first) = all.first().map(|node| node.written.sequence) {
        // Numbers of one time are near each other, on whichever side of the largest.
        all.sort_unstable_by_key(|node| node.written.sequence.wrapping_sub(first));
    }
    all
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

    fn standing_of(all: &[String], at: usize) -> Standing<'_> {
        standing(all, &all[at], read(&all[at]).unwrap())
    }

    fn watches(all: &[String], at: usize) -> Vec<&str> {
        match standing_of(all, at) {
            Standing::Behind { watch, .. } => watch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_watches_whom() {
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        let all = names(0, &[x, x, s, s, x, s]);
        assert_eq!(standing_of(&all, 0), Standing::Free);
        assert_eq!(standing_of(&all, 1), Standing::Behind { watch: vec![&all[0]], alone: true });
        assert_eq!(standing_of(&all, 2), Standing::Behind { watch: vec![&all[1]], alone: false });
        assert_eq!(watches(&all, 3), [&all[1]]);
        assert_eq!(watches(&all, 4), [&all[3]]);
        assert_eq!(watches(&all, 5), [&all[4]]);
        let readers = names(0, &[s, s, s, x]);
        assert!((0..3).all(|at| standing_of(&readers, at) == Standing::Free));
        assert_eq!(watches(&readers, 3), [&readers[2]]);
    }

    #[test]
    fn permits_wait_for_any_of_enough() {
        let all = names(0, &[permits(1, 3), permits(1, 3), permits(1, 3), permits(1, 3)]);
        assert!((0..3).all(|at| standing_of(&all, at) == Standing::Free));
        assert_eq!(watches(&all, 3), [&all[2], &all[1], &all[0]]);
        let all = names(0, &[permits(1, 2), permits(1, 2), permits(1, 2), permits(1, 2)]);
        assert_eq!(watches(&all, 3), [&all[2], &all[1]], "the nearest are enough");
        let all = names(0, &[permits(1, 1), permits(1, 1), permits(1, 5)]);
        assert_eq!(watches(&all, 2), [&all[0], &all[1]], "room, but nobody overtakes");
        let all = names(0, &[permits(1, 5), Mode::Shared, permits(1, 5)]);
        assert_eq!(watches(&all, 1), [&all[0]]);
        assert_eq!(watches(&all, 2), [&all[1]]);
    }

    #[test]
    fn a_node_that_is_gone_is_missing() {
        let all = names(0, &[Mode::Exclusive]);
        let own = name(Mode::Exclusive, 5);
        assert_eq!(standing(&all, &own, read(&own).unwrap()), Standing::Missing);
        assert!(is_free(&[], Mode::Exclusive) && !is_free(&all, Mode::Exclusive));
        assert!(is_free(&["config".to_owned()], Mode::Exclusive), "no number, no place");
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
                .take_while(|at| modes[*at].fits_beside(modes[..*at].iter().copied()))
                .count();
            let seen: Vec<_> = queue(&all).into_iter().map(|(name, _, is)| (name, is)).collect();
            let wanted: Vec<_> =
                ordered.iter().enumerate().map(|(at, name)| (name.as_str(), at < granted)).collect();
            prop_assert_eq!(seen, wanted);
            for (at, own) in ordered.iter().enumerate() {
                let standing = standing(&all, own, read(own).unwrap());
                match standing {
                    Standing::Free => prop_assert!(at < granted),
                    Standing::Missing => prop_assert!(false),
                    Standing::Behind { watch, alone } => {
                        prop_assert!(at >= granted);
                        // With the watched alone ahead of it, it is not granted either.
                        let place = |name: &str| ordered.iter().position(|n| n == name).unwrap();
                        prop_assert!(watch.iter().all(|name| place(name) < at));
                        let left: Vec<String> = ordered[..=at]
                            .iter()
                            .filter(|name| watch.contains(&name.as_str()) || *name == own)
                            .cloned()
                            .collect();
                        let is_last_granted = queue(&left).last().map(|(_, _, is)| *is);
                        prop_assert_eq!(is_last_granted, Some(false));
                        if alone {
                            let left: Vec<String> = ordered[..=at]
                                .iter()
                                .filter(|name| !watch.contains(&name.as_str()))
                                .cloned()
                                .collect();
                            let free = queue(&left).last().map(|(_, _, is)| *is);
                            prop_assert_eq!(free, Some(true));
                        }
                    }
                }
            }
        }
    }
}
