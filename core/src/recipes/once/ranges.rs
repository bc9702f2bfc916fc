//! A set of numbers as a few ranges.

use std::ops::RangeInclusive;

/// The most ranges: two such sets are 4 KiB. Beyond them the narrowest gap is closed, the oldest if several are: what
/// counts as done without having been is as little as can be, and never all that lies between the ticks of a
/// machine whose clock is hours ahead and those of the others. A gap next to the newest number stays: what has
/// just failed may be about to be repeated.
const MOST: usize = 128;

/// In order, with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<RangeInclusive<u64>>);

impl Ranges {
    pub(super) fn contains(&self, n: u64) -> bool {
        self.0.iter().any(|range| range.contains(&n))
    }

    /// The largest number.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last().map(|range| *range.end())
    }

    pub(super) fn add(&mut self, n: u64) {
        if self.contains(n) {
            return;
        }
        let at = self.0.partition_point(|range| *range.end() < n);
        self.0.insert(at, n..=n);
        // With the next one, then with the one before.
        for at in [at, at.wrapping_sub(1)] {
            self.merge(at, |one, next| one.end().checked_add(1) == Some(*next.start()));
        }
        while self.0.len() > MOST {
            self.merge(self.narrowest_gap(n), |_, _| true);
        }
    }

    /// The place of the range before it; not of one that ends or begins with the range of `newest`.
    fn narrowest_gap(&self, newest: u64) -> usize {
        let gaps = self.0.windows(2).enumerate();
        let others = gaps.filter(|(_, two)| two.iter().all(|range| !range.contains(&newest)));
        let widths = others.map(|(at, two)| (two[1].start() - two[0].end(), at));
        widths.min().map_or(0, |(_, at)| at)
    }

    /// Makes one of the ranges `at` and after it, if there are both and they are `near`.
    fn merge(
        &mut self,
        at: usize,
        near: impl Fn(&RangeInclusive<u64>, &RangeInclusive<u64>) -> bool,
    ) {
        if let Some([one, next]) = self.0.get(at..).and_then(|ranges| ranges.get(..2))
            && near(one, next)
        {
            let merged = *one.start()..=*next.end();
            self.0.splice(at..at + 2, [merged]);
        }
    }

    pub(super) fn write(&self, to: &mut Vec<u8>) {
        // At most MOST.
        to.push(self.0.len() as u8);
        for range in &self.0 {
            to.extend(range.start().to_be_bytes());
            to.extend(range.end().to_be_bytes());
        }
    }

    /// The ranges at the beginning of `bytes`, and the rest.
    pub(super) fn read(bytes: &[u8]) -> Option<(Ranges, &[u8])> {
        let (count, mut rest) = bytes.split_first()?;
        let mut ranges = Vec::new();
        for _ in 0..*count {
            let (start, left) = rest.split_first_chunk()?;
            let (end, left) = left.split_first_chunk()?;
            ranges.push(u64::from_be_bytes(*start)..=u64::from_be_bytes(*end));
            rest = left;
        }
        Some((Ranges(ranges), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_clock_that_is_hours_ahead_pushes_nothing_out() {
        let mut done = Ranges::default();
        // One node is three hours ahead of the others, each minute.
        for minute in 0..1_000 {
            done.add(minute);
            done.add(minute + 180);
        }
        assert!((0..1_180).all(|minute| done.contains(minute)));
        assert!(!done.contains(1_180));
    }

    /// What lies between its ticks and those of the others is to be run by the others.
    #[test]
    fn a_clock_that_is_hours_ahead_and_misses_ticks_makes_none_of_the_others_done() {
        let mut done = Ranges::default();
        for minute in 0..1_000 {
            done.add(minute);
            if minute % 5 > 1 {
                done.add(minute + 10_000);
            }
            assert!(!done.contains(minute + 1), "minute {minute}");
        }
        assert_eq!(done.0.len(), MOST);
    }

    /// Whichever machine asks for it next must find that it is not done.
    #[test]
    fn a_tick_that_has_just_failed_is_not_done() {
        let mut done = Ranges::default();
        for missed in 0..1_000 {
            done.add(10 * missed);
        }
        done.add(10_001);
        done.add(10_003);
        assert!(!done.contains(10_002));
        done.add(10_004);
        assert!(!done.contains(10_002));
        assert_eq!(done.0.len(), MOST);
    }

    #[test]
    fn what_is_forgotten_counts_as_done() {
        let mut done = Ranges::default();
        (0..200).for_each(|n| done.add(10 * n));
        assert_eq!(done.0.len(), MOST);
        assert!(done.contains(15), "long ago");
        assert!(!done.contains(1_985) && done.contains(1_980) && done.last() == Some(1_990));
    }

    proptest! {
        #[test]
        fn it_is_a_set(numbers in proptest::collection::vec(0_u64..60, 0..200)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for n in numbers {
                ranges.add(n);
                set.insert(n);
            }
            prop_assert!((0..61).all(|n| ranges.contains(n) == set.contains(&n)));
            let gaps = ranges.0.windows(2).all(|two| two[0].end() + 1 < *two[1].start());
            prop_assert!(gaps);
            let mut bytes = Vec::new();
            ranges.write(&mut bytes);
            bytes.extend(b"rest");
            prop_assert_eq!(Ranges::read(&bytes), Some((ranges, &b"rest"[..])));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Ranges::read(&bytes);
        }
    }

    #[test]
    fn the_largest_number_is_one_too() {
        let mut ranges = Ranges::default();
        [u64::MAX, 0, u64::MAX - 1].into_iter().for_each(|n| ranges.add(n));
        assert!(ranges.contains(u64::MAX) && ranges.0.len() == 2);
    }
}
