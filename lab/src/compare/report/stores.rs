//! A store among others: its name, its look in every chart, and the figures that decide.

use super::numbers::{exact_us, shortened, time_us};
use crate::compare::data::{Comparison, IdleCost, Load, Spread, Store, Timeline};

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

impl Comparison {
    /// How often each figure of speed was measured, and what is drawn of it.
    pub(super) fn runs(&self) -> String {
        match self.repeats {
            0 | 1 => "one run".to_owned(),
            2 => "two runs: marks between them, whiskers at both".to_owned(),
            runs => format!("medians of {runs} runs, whiskers from the least to the most"),
        }
    }

    /// What is between clients and servers.
    pub(super) fn between(&self) -> String {
        match self.network {
            None => "Clients and servers share one machine: no network between them".to_owned(),
            Some(network) => format!(
                "Proxies stand for a network with round trips of {} between clients and servers \
                 (measured: {})",
                exact_us(network.round_trip_us),
                time_us(network.measured_us)
            ),
        }
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

    /// The failure after which it was longest without a grant, not counting the TTL.
    pub(super) fn slowest_return(self) -> Option<&'a Timeline> {
        let beyond = |timeline: &Timeline| timeline.without_progress_s - timeline.ttl_s;
        let timelines = self.store.timelines.iter();
        timelines.max_by(|one, other| beyond(one).total_cmp(&beyond(other)))
    }

    /// How long that was, beyond the TTL; absent if it did not come back after one of them.
    pub(super) fn beyond_ttl_s(self) -> Option<f64> {
        let came_back = self.store.timelines.iter().all(|timeline| timeline.came_back);
        let slowest = self.slowest_return().filter(|_| came_back)?;
        Some((slowest.without_progress_s - slowest.ttl_s).max(0.0))
    }

    /// What a held lock sends and receives in a minute.
    pub(super) fn idle_bytes(self) -> Option<f64> {
        let idle = self.idle()?;
        idle.bytes_per_minute.map(|bytes| at_the_usual_ttl(idle, bytes))
    }

    /// The same, of each run.
    pub(super) fn idle_bytes_runs(self) -> Option<Spread> {
        let idle = self.idle()?;
        Some(idle.bytes_per_minute_runs?.map(|bytes| at_the_usual_ttl(idle, bytes)))
    }

    pub(super) fn idle(self) -> Option<&'a IdleCost> {
        self.store.cost.as_ref()?.idle.as_ref()
    }
}

/// The TTL of a lock, and the timeout of a session, unless the user says otherwise.
pub(super) const USUAL_TTL_S: f64 = 30.0;

/// Renewals and heartbeats come in each third of a TTL: a figure per minute at another TTL.
pub(super) fn at_the_usual_ttl(idle: &IdleCost, per_minute: f64) -> f64 {
    per_minute * idle.ttl_s / USUAL_TTL_S
}

/// The names of those for whom `measured` is false.
pub(super) fn without<'a>(
    stores: &[Named<'a>],
    measured: impl Fn(&'a Store) -> bool,
) -> Vec<String> {
    stores.iter().filter(|named| !measured(named.store)).map(|named| named.short()).collect()
}
