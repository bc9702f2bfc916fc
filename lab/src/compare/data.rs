//! What a comparison found: the file of `--json`, and all that a report is drawn from.
//!
//! Every field names its unit: `_us`, `_ms` and `_s` are times, `_bytes` sizes. A stage that was not
//! run, or failed, is absent; `failures` says why. docs/compare.example.json has every field.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One run of `fencelock compare`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// The version of this format: 1.
    pub(crate) format: u32,
    /// The version of fencelock that measured.
    pub(crate) fencelock: String,
    /// The command line, without passwords.
    pub(crate) command: String,
    /// When it started, for example `2026-01-31T12:00:00Z`.
    pub(crate) began: String,
    /// How long it took.
    pub(crate) took_s: f64,
    /// The seed of the order of the faults and of the clients' choices.
    pub(crate) seed: u64,
    /// How long each measurement of speed took.
    pub(crate) seconds: f64,
    /// How often each measurement of speed was made.
    pub(crate) repeats: u32,
    /// How many stores were broken at the same time.
    pub(crate) broken_together: usize,
    /// Absent: no network between clients and servers, which share one machine.
    pub(crate) network: Option<Network>,
    /// Whether it was stopped early; it then has what was complete by that time.
    pub(crate) was_stopped: bool,
    pub(crate) machine: Machine,
    /// In the order of the command line.
    pub(crate) stores: Vec<Store>,
    /// Requested or default stores that could not be run.
    pub(crate) left_out: Vec<LeftOut>,
}

/// The network that proxies stand for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Network {
    /// What `--rtt` asked for, half of it in each direction.
    pub(crate) round_trip_us: f64,
    /// What a round trip through such a proxy took longer than one without it, as measured before all else.
    pub(crate) measured_us: f64,
}

/// The machine that it ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's model name.
    pub(crate) processor: String,
    /// Hardware threads that this program may use.
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    /// The operating system, for example `Linux 6.1.0`.
    pub(crate) system: String,
    /// The file system of the temporary directory, where servers and lock files keep their data, for
    /// example `ext2/ext3`.
    pub(crate) file_system: String,
    /// The load average of the last minute, at the start: on a busy machine figures differ.
    pub(crate) load_at_start: f64,
}

/// A store that could not be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    pub(crate) store: String,
    /// Why, and what to do: a missing program with the command that installs it.
    pub(crate) why: String,
}

/// One store with its results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Store {
    /// Its name, for example `redis-aof`, or its URL's scheme and hosts.
    pub(crate) store: String,
    /// The servers' settings that matter for locks.
    pub(crate) settings: String,
    /// Versions of its servers, for example `Redis 7.0.15`. Empty without servers, or if they do not
    /// report it.
    pub(crate) servers: Vec<String>,
    /// What its user must run, for example `3 JVMs`. Absent for a store that was named by a URL.
    pub(crate) to_run: Option<String>,
    pub(crate) promises: Promises,
    /// Each client loops over a lock of its own.
    pub(crate) own_locks: Vec<Load>,
    /// All clients loop over one lock.
    pub(crate) one_lock: Vec<Load>,
    /// A fixed number of clients share more and more locks.
    pub(crate) shared_locks: Vec<Load>,
    pub(crate) fixed_rate: Option<FixedRate>,
    #[serde(rename = "hand_over")]
    pub(crate) hand_off: Option<HandOff>,
    pub(crate) timelines: Vec<Timeline>,
    pub(crate) faults: Option<UnderFaults>,
    pub(crate) cost: Option<Cost>,
    /// Only with `--workload flash-sale`.
    pub(crate) flash_sales: Vec<FlashSale>,
    /// Stages that could not be completed.
    pub(crate) failures: Vec<Failure>,
}

/// The profile of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Promises {
    /// The scope of its locks: `tasks of one process`, `processes of one machine`, `all clients of the
    /// servers`.
    pub(crate) excludes: String,
    /// How waiters are granted: `in order of arrival`, `in no order`.
    pub(crate) order: String,
    /// When the lock of a crashed holder is freed.
    pub(crate) dead_holder: String,
    /// How long fencing tokens rise.
    pub(crate) tokens: String,
    /// When exclusion fails; empty: never.
    pub(crate) exclusion_fails_when: Vec<String>,
    /// The faults, for example `master killed`, under which two clients may hold one lock although
    /// its servers are operated well. Absent if its servers cannot be broken here.
    pub(crate) overlaps_after: Option<Vec<String>>,
}

/// Repeated measurements of one figure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one run.
    pub(crate) fn of(mut runs: Vec<f64>) -> Spread {
        runs.sort_by(f64::total_cmp);
        let middle = runs.len() / 2;
        let median = match runs.len() % 2 {
            0 => f64::midpoint(runs[middle - 1], runs[middle]),
            _ => runs[middle],
        };
        Spread { median, min: runs[0], max: runs[runs.len() - 1] }
    }

    /// Of each run's figure.
    pub(crate) fn map(self, each: impl Fn(f64) -> f64) -> Spread {
        Spread { median: each(self.median), min: each(self.min), max: each(self.max) }
    }
}

/// A closed loop: each client acquires, releases, and acquires again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Tasks of one process, which share its connections.
    pub(crate) clients: u32,
    pub(crate) locks: u32,
    /// An acquisition and its release are a pair.
    pub(crate) pairs_per_s: Spread,
    /// From the request to the grant.
    pub(crate) acquire_p50_us: Spread,
    pub(crate) acquire_p99_us: Spread,
}

/// An open loop: clients ask at fixed times, whether or not others still wait.
///
/// A delayed client sends fewer requests than it should; HdrHistogram adds the latencies of those that
/// it did not send (coordinated omission; Gil Tene, "How NOT to Measure Latency").
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FixedRate {
    /// Half of the pairs per second of the largest number of clients with their own locks.
    pub(crate) asked_per_s: f64,
    pub(crate) done_per_s: f64,
    pub(crate) acquire_p50_us: f64,
    pub(crate) acquire_p99_us: f64,
    pub(crate) acquire_p999_us: f64,
    pub(crate) acquire_max_us: f64,
    /// The p99 of the requests that were sent: the result of an uncorrected measurement.
    pub(crate) uncorrected_p99_us: f64,
}

/// Hand-offs of a lock from holder to waiter, after holds of 2 ms: from the call of the release to the
/// next grant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandOff {
    /// Clients that hold or wait.
    pub(crate) clients: u32,
    pub(crate) grants: u64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    /// The p99 of each run on its own; `p99_us` is that of all runs together.
    pub(crate) p99_runs_us: Option<Spread>,
    pub(crate) max_us: f64,
    /// The distribution: pairs of a time in microseconds and the share of hand-offs that took at
    /// most that long, from 0 to 1, rising.
    pub(crate) distribution: Vec<(f64, f64)>,
    /// Jain's index over the clients' grants: 1 if all had as many, 1/clients if one had all.
    pub(crate) fairness: f64,
    /// Grants to a client that asked over a millisecond later than one that was still waiting.
    pub(crate) overtaken: u64,
}

/// Grants of one lock around a failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Timeline {
    /// What failed, for example `holder killed`, `server restarted`, `master killed`, `cut off`.
    pub(crate) failure: String,
    /// Clients that loop over the lock, with holds of a few milliseconds.
    pub(crate) clients: u32,
    /// When it failed, from the start of the timeline.
    pub(crate) failed_at_ms: u64,
    /// When the failure was repaired.
    pub(crate) healed_at_ms: u64,
    /// Grants in each tenth of a second, from the start.
    pub(crate) grants_per_100_ms: Vec<u32>,
    /// The TTL of the lock, and the timeout of a session: no lock of a dead holder is free before.
    #[serde(default = "usual_ttl_s")]
    pub(crate) ttl_s: f64,
    /// The longest gap between grants around the failure.
    pub(crate) without_progress_s: f64,
    /// That gap in each of several runs, of which this is the first; absent after one run.
    pub(crate) without_progress_runs_s: Option<Spread>,
    /// Whether grants resumed before the end of the timeline.
    pub(crate) came_back: bool,
    /// Errors that clients received.
    pub(crate) errors: u64,
}

/// Of every timeline before figures had it.
fn usual_ttl_s() -> f64 {
    2.0
}

/// What independent registers recorded while faults were injected into the store and its clients: two
/// registers in a process that no fault hits, one that checks fencing tokens and one that does not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnderFaults {
    pub(crate) rounds: Vec<FaultRound>,
    pub(crate) seconds: f64,
    pub(crate) acquisitions: u64,
    /// Overlaps: two clients held one lock at the same time, each within its validity.
    pub(crate) overlaps: u64,
    /// Of these, those that the store's own profile admits.
    pub(crate) admitted_overlaps: u64,
    /// The upper bound of the overlaps per acquisition, at a confidence of 95 %, if a run of this
    /// length shows none. Absent if there were overlaps.
    pub(crate) overlaps_at_most: Option<f64>,
    /// Accesses with a stale token that the checking register refused.
    pub(crate) stale_refused: u64,
    /// Updates that the checking register lost. Anything but 0 is a bug.
    pub(crate) lost_with_fencing: u64,
    /// Updates that the register without a check lost.
    pub(crate) lost_without_fencing: u64,
    /// Descriptions of other violated guarantees. Any entry is a bug.
    pub(crate) violations: Vec<String>,
    /// The command that repeats it, longer.
    pub(crate) again: String,
}

/// One fault and its repair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FaultRound {
    /// The fault, for example `clients frozen`.
    pub(crate) faults: Vec<String>,
    pub(crate) acquisitions: u64,
    pub(crate) overlaps: u64,
    pub(crate) stale_refused: u64,
    pub(crate) lost_without_fencing: u64,
    /// The time until all locks had been granted again.
    pub(crate) recovered_ms: Option<u64>,
}

/// What a lock costs. A figure is absent if the store does not have it or does not report it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Requests of one client's acquisition and release, without other clients.
    pub(crate) requests_per_pair: Option<f64>,
    pub(crate) bytes_to_servers_per_pair: Option<f64>,
    pub(crate) bytes_from_servers_per_pair: Option<f64>,
    /// Commands that the servers count, including those inside scripts.
    pub(crate) commands_per_pair: Option<f64>,
    /// CPU time of all servers, with the largest number of clients of `own_locks`.
    pub(crate) server_cpu_us_per_pair: Option<f64>,
    /// CPU time of this process, including the clients' work.
    pub(crate) client_cpu_us_per_pair: Option<f64>,
    pub(crate) idle: Option<IdleCost>,
}

/// The idle cost of held locks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IdleCost {
    /// How many locks were held to measure the traffic.
    pub(crate) locks: u32,
    /// The interval of renewals: a third of a TTL, or a session's heartbeat.
    pub(crate) ttl_s: f64,
    /// Traffic of one lock in a minute.
    pub(crate) requests_per_minute: Option<f64>,
    pub(crate) bytes_per_minute: Option<f64>,
    /// The same in each of several runs; absent after one run.
    pub(crate) bytes_per_minute_runs: Option<Spread>,
    /// In the servers, for each held lock.
    pub(crate) server_memory_bytes: Option<f64>,
    /// In the process that holds them, for each held lock.
    pub(crate) client_memory_bytes: Option<f64>,
}

/// A flash sale: each buyer takes one piece of a product, if any is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlashSale {
    pub(crate) buyers: u32,
    pub(crate) products: u32,
    /// Pieces of each product.
    pub(crate) pieces: u32,
    /// Buyers that are served at the same time.
    pub(crate) served_together: u32,
    pub(crate) with_lock: Sale,
    /// The same sale without a lock, for contrast.
    pub(crate) without_lock: Sale,
}

/// The result of a sale.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sale {
    /// Pieces left in stock, of all products.
    pub(crate) left: u32,
    /// Pieces sold to buyers.
    pub(crate) sold: u32,
    /// Pieces sold and left together, minus the initial ones: buyers that will get nothing.
    pub(crate) oversold: u32,
    /// Until the last buyer had an answer.
    pub(crate) took_s: f64,
    /// Buyers that received an error.
    pub(crate) errors: u32,
}

/// A stage that could not be completed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// For example `hand-off`.
    pub(crate) stage: String,
    pub(crate) why: String,
}

pub(crate) fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl Comparison {
    /// Ten stores, with figures for tests.
    pub(crate) fn sample() -> Comparison {
        let text = include_str!("../../tests/commands/compare/sample.json");
        serde_json::from_str(text).expect("a comparison")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Whether no figure is absent, and no list empty but that of violations.
    fn is_whole(value: &Value) -> bool {
        match value {
            Value::Null => false,
            Value::Array(all) => !all.is_empty() && all.iter().all(is_whole),
            Value::Object(fields) => {
                fields.iter().all(|(name, value)| name == "violations" || is_whole(value))
            }
            _ => true,
        }
    }

    #[test]
    fn the_example_in_the_docs_has_every_field_of_its_type_and_no_other() {
        let text = include_str!("../../../docs/compare.example.json");
        let example: Value = serde_json::from_str(text).expect("JSON");
        let read: Comparison = serde_json::from_value(example.clone()).expect("figures");
        let written = serde_json::to_value(read).expect("JSON");
        assert_eq!(written, example, "what is read of docs/compare.example.json is all of it");
        assert!(
            is_whole(&example),
            "a list in docs/compare.example.json is empty, or a figure absent"
        );
    }

    #[test]
    fn a_spread_has_the_middle_of_its_runs() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
    }
}
