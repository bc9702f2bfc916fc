//! What is computed from what clients saw, and the clocks that they read.

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::options::Seen;

/// What all saw together.
pub(crate) fn histogram(seen: &[Seen]) -> Histogram<u64> {
    let mut histogram = new_histogram();
    for (value, count) in seen.iter().flat_map(|seen| &seen.latencies) {
        histogram.saturating_record_n(*value, *count);
    }
    histogram
}

/// Jain's index: 1 when all got the same.
pub(crate) fn fairness(pairs: &[u64]) -> f64 {
    let pairs = pairs.iter().map(|n| *n as f64);
    let (sum, squares): (f64, f64) = (pairs.clone().sum(), pairs.clone().map(|n| n * n).sum());
    // All clients got the same.
    if sum == 0.0 { 1.0 } else { sum * sum / (pairs.len() as f64 * squares) }
}

/// By how much the one that is furthest from the mean differs from it.
pub(super) fn largest_deviation_percent(pairs: &[u64]) -> f64 {
    let mean = pairs.iter().sum::<u64>() as f64 / pairs.len() as f64;
    // All got the same: nothing.
    if mean == 0.0 {
        return 0.0;
    }
    let deviations = pairs.iter().map(|n| (*n as f64 - mean).abs());
    tenth(100.0 * deviations.fold(0.0, f64::max) / mean)
}

/// One lock's way from holder to holder.
pub(crate) struct HandedOff {
    /// From the call of the release to the next grant, if there was a waiter by then.
    pub(crate) took: Histogram<u64>,
    pub(crate) overtaken: usize,
}

/// From what all clients noted: asked, granted and release called.
pub(crate) fn handed_off(holds: impl Iterator<Item = [u64; 3]>) -> HandedOff {
    let mut holds: Vec<[u64; 3]> = holds.collect();
    holds.sort_by_key(|[_, granted, _]| *granted);
    let mut took = new_histogram();
    for pair in holds.windows(2) {
        let ([_, _, released], [asked, granted, _]) = (pair[0], pair[1]);
        if asked < released {
            took.saturating_record(granted.saturating_sub(released));
        }
    }
    HandedOff { took, overtaken: overtaken(&holds) }
}

/// The number of sorted grants to a client that had asked clearly later than one granted after it.
fn overtaken(holds: &[[u64; 3]]) -> usize {
    let mut earliest_left = u64::MAX;
    let mut count = 0;
    for [asked, ..] in holds.iter().rev() {
        count += usize::from(earliest_left.saturating_add(1_000_000) < *asked);
        earliest_left = earliest_left.min(*asked);
    }
    count
}

/// `CLOCK_MONOTONIC`, which the processes of a machine share, in nanoseconds.
pub(crate) fn now() -> u64 {
    nanos(ClockId::Monotonic)
}

/// What this process has used of all processors, in nanoseconds.
pub(crate) fn cpu_time() -> u64 {
    nanos(ClockId::ProcessCPUTime)
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// From 1 ns to a day, to a hundredth. A thousand clients have one each.
pub(crate) fn new_histogram() -> Histogram<u64> {
    const DAY: u64 = 86_400_000_000_000;
    Histogram::new_with_bounds(1, DAY, 2).unwrap_or_else(|_| unreachable!("constant bounds"))
}

pub(super) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Nanoseconds as microseconds, to a tenth.
pub(super) fn in_us(nanos: u64) -> f64 {
    tenth(nanos as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_overtaken_clients() {
        const MS: u64 = 1_000_000;
        let in_order = [[0, 10 * MS, 12 * MS], [5 * MS, 13 * MS, 15 * MS]];
        assert_eq!(overtaken(&in_order), 0);
        let overtaking = [[5 * MS, 10 * MS, 12 * MS], [0, 13 * MS, 15 * MS]];
        assert_eq!(overtaken(&overtaking), 1);
    }

    #[test]
    fn a_deviation_is_a_share_of_the_mean() {
        assert_eq!(largest_deviation_percent(&[110, 100, 90]), 10.0);
        assert_eq!(largest_deviation_percent(&[0, 0]), 0.0);
    }
}
