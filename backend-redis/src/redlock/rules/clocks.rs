//! Which nodes' clocks agree. Pure: the model in `models` checks this code.
//!
//! The agreement is checked and not assumed: a token taken from a clock far ahead would be larger
//! than those of later grants, once that node is lost.

use std::time::Duration;

use super::votes::majority;

/// By how much a node's clock is ahead of ours, in microseconds: within the precision of one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offset {
    /// The lower bound: as if the node had read its clock when its reply arrived.
    pub at_least: i64,
    /// The upper bound: as if it had when the request was sent.
    pub at_most: i64,
}

impl Offset {
    /// The offset of a clock that read `server_us` between `sent_us` and `received_us` on ours.
    #[must_use]
    pub fn read(server_us: u64, sent_us: u64, received_us: u64) -> Offset {
        let ahead = |ours: u64| {
            let ahead = i128::from(server_us) - i128::from(ours);
            i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX })
        };
        Offset { at_least: ahead(received_us), at_most: ahead(sent_us) }
    }

    /// The largest possible difference of this clock and another.
    fn max_difference(self, other: Offset) -> u64 {
        let highest = self.at_most.max(other.at_most);
        highest.abs_diff(self.at_least.min(other.at_least))
    }
}

/// Whole microseconds; the largest number for a duration that is longer.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The nodes that may take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// By node, whether it may.
    pub members: Vec<bool>,
    /// By how much the furthest of their clocks is ahead of ours, in microseconds.
    pub lead: i64,
}

/// The largest set of nodes of which any two clocks are certain to be within `tolerance_us`; `None`
/// without a majority. `None` among `offsets` is an unknown clock.
#[must_use]
pub fn agreement(offsets: &[Option<Offset>], tolerance_us: u64) -> Option<Agreement> {
    let known = || offsets.iter().flatten().copied();
    let within = |first: Offset| {
        let agrees = move |offset: &Option<Offset>| {
            offset.is_some_and(|offset| {
                offset.at_least >= first.at_least && offset.max_difference(first) <= tolerance_us
            })
        };
        offsets.iter().map(agrees).collect::<Vec<bool>>()
    };
    // The clocks of such a set are within the tolerance above the lowest of them.
    let sets = known().map(within);
    let members = sets.max_by_key(|set| set.iter().filter(|member| **member).count())?;
    if members.iter().filter(|member| **member).count() < majority(offsets.len()) {
        return None;
    }
    let theirs = offsets.iter().zip(&members).filter(|(_, member)| **member);
    let lead = theirs.filter_map(|(offset, _)| offset.map(|offset| offset.at_least)).max()?;
    Some(Agreement { members, lead })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exactly(offset: i64) -> Option<Offset> {
        Some(Offset { at_least: offset, at_most: offset })
    }

    #[test]
    fn a_clock_that_does_not_agree_is_excluded() {
        let clocks = [exactly(100), exactly(0), exactly(5000)];
        let agreed = agreement(&clocks, 100).unwrap();
        assert_eq!(agreed.members, [true, true, false]);
        assert_eq!(agreed.lead, 100);
        assert_eq!(agreement(&clocks, 99), None, "no two agree");
        assert_eq!(agreement(&[exactly(0), None, None], 100), None, "one is not a majority");
        assert_eq!(agreement(&[None, None, None], 100), None);
    }

    #[test]
    fn the_uncertainty_of_a_slow_reply_counts_against_it() {
        let slow = Offset::read(1_000_000, 500_000, 700_000);
        assert_eq!(slow, Offset { at_least: 300_000, at_most: 500_000 });
        let clocks = [Some(slow), exactly(300_000), None];
        assert!(agreement(&clocks, 200_000).is_some());
        assert!(agreement(&clocks, 199_999).is_none());
    }

    proptest! {
        #[test]
        fn any_two_members_agree(
            offsets in prop::collection::vec(prop::option::of((-50i64..50, 0i64..20)), 1..8),
            tolerance in 0u64..60,
        ) {
            let offsets: Vec<_> = offsets.into_iter().map(|offset| {
                offset.map(|(at_least, width)| Offset { at_least, at_most: at_least + width })
            }).collect();
            if let Some(agreed) = agreement(&offsets, tolerance) {
                let members: Vec<Offset> = offsets.iter().zip(&agreed.members)
                    .filter_map(|(offset, member)| offset.filter(|_| *member)).collect();
                prop_assert!(members.len() >= majority(offsets.len()));
                for one in &members {
                    prop_assert!(members.iter().all(|other| one.max_difference(*other) <= tolerance));
                    prop_assert!(one.at_least <= agreed.lead);
                }
            }
        }
    }
}
