//! A store among others: its name, its look in every chart, and the figures that decide.

use super::numbers::shortened;
use crate::compare::data::{Comparison, Load, Store, Timeline};

/// A store with its place, which chooses its colour and mark in every chart.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) store: &'a Store,
    pub(super) place: usize,
}

/// What a run under faults says about two holders at once, per 1,000 acquisitions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Overlaps {
    Seen(f64),
    /// There were none; the run's length allows for no more than this, at 95 %.
    AtMost(f64),
}

impl Overlaps {
    pub(super) fn per_1000(self) -> f64 {
        let (Overlaps::Seen(value) | Overlaps::AtMost(value)) = self;
        value
    }
}

pub(super) fn named(comparison: &Comparison) -> Vec<Named<'_>> {
    let stores = comparison.stores.iter().enumerate();
    stores.map(|(place, store)| Named { store, place }).collect()
}

impl<'a> Named<'a> {
    /// Short enough for a chart.
    pub(super) fn short(self) -> String {
        self.within(24)
    }

    /// The name in at most `letters` characters.
    pub(super) fn within(self, letters: usize) -> String {
        shortened(&self.store.store, letters)
    }

    /// The throughput of the largest number of clients with own locks: the store's as a whole.
    pub(super) fn fastest(self) -> Option<&'a Load> {
        self.store.own_locks.iter().max_by_key(|load| load.clients)
    }

    pub(super) fn overlaps(self) -> Option<Overlaps> {
        let faults = self.store.faults.as_ref()?;
        if faults.acquisitions == 0 {
            return None;
        }
        match (faults.overlaps, faults.overlaps_at_most) {
            (0, Some(bound)) => Some(Overlaps::AtMost(1000.0 * bound)),
            // The rule of three: with three in as many, one would have been seen with 95 %.
            (0, None) => Some(Overlaps::AtMost(3000.0 / faults.acquisitions as f64)),
            (overlaps, _) => {
                Some(Overlaps::Seen(1000.0 * overlaps as f64 / faults.acquisitions as f64))
            }
        }
    }

    /// The failure with the longest gap between grants.
    pub(super) fn slowest_return(self) -> Option<&'a Timeline> {
        let timelines = self.store.timelines.iter();
        timelines.max_by(|one, other| one.without_progress_s.total_cmp(&other.without_progress_s))
    }
}

/// The names of those for whom `measured` is false.
pub(super) fn without<'a>(
    stores: &[Named<'a>],
    measured: impl Fn(&'a Store) -> bool,
) -> Vec<String> {
    stores.iter().filter(|named| !measured(named.store)).map(|named| named.short()).collect()
}
