//! What a comparison found: the file of `--json`, and all that a report is drawn from.
//!
//! Every field names its unit: `_us`, `_ms` and `_s` are times, `_bytes` sizes. A stage that was not
//! run, or failed, is absent; `failures` says why.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run of `fencelock compare`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Comparison {
    /// The version of this format: 1.
    pub(crate) format: u32,
    /// The version of fencelock that measured.
    pub(crate) fencelock: String,
    /// The command that was typed, without passwords.
    pub(crate) command: String,
    /// When it began, as `2026-01-31T12:00:00Z`.
    pub(crate) began: String,
    /// How long it took.
    pub(crate) took_s: f64,
    /// What decided which faults came in which order, and what clients did.
    pub(crate) seed: u64,
    /// How long each measurement of speed took.
    pub(crate) seconds: f64,
    /// How often each measurement of speed was made.
    pub(crate) repeats: u32,
    /// How many stores were broken at the same time.
    pub(crate) broken_together: usize,
    /// Whether it was stopped early: what is here was complete by then.
    pub(crate) was_stopped: bool,
    pub(crate) machine: Machine,
    /// In the order in which they were asked for.
    pub(crate) stores: Vec<Store>,
    /// Stores that were asked for, or usual, and could not be run.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Where it ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Machine {
    /// The processor, in its maker's words.
    pub(crate) processor: String,
    /// Hardware threads that this program may use.
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    /// As `Linux 6.1.0`.
    pub(crate) system: String,
    /// Of the temporary directory, where servers and lock files have their data, as `ext2/ext3`.
    pub(crate) file_system: String,
    /// The load average of the last minute, at the beginning: on a busy machine figures differ.
    pub(crate) load_at_start: f64,
}

/// A store that could not be run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LeftOut {
    pub(crate) store: String,
    /// Why, and what to do: a missing program with the command that installs it.
    pub(crate) why: String,
}

/// One store, and all that was found about it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Store {
    /// Its word, as `redis-aof`, or its URL's scheme and hosts.
    pub(crate) store: String,
    /// What its servers were told that matters for locks, in words.
    pub(crate) settings: String,
    /// Versions of its servers, as `Redis 7.0.15`. Empty where there is none, or it does not tell.
    pub(crate) servers: Vec<String>,
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

/// What a store says of itself.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Promises {
    /// Whom its locks exclude: `tasks of one process`, `processes of one machine`, `everybody who
    /// reaches the servers`.
    pub(crate) excludes: String,
    /// How waiters are granted: `in order of arrival`, `in no order`.
    pub(crate) order: String,
    /// When a dead holder's lock is free.
    pub(crate) dead_holder: String,
    /// How long fencing tokens rise.
    pub(crate) tokens: String,
    /// When exclusion fails; empty: never.
    pub(crate) exclusion_fails_when: Vec<String>,
    /// What can befall its servers in a good operator's hands, as `master killed`, under which two
    /// may hold one lock. Absent where its servers cannot be broken here, so nobody knows.
    pub(crate) overlaps_after: Option<Vec<String>>,
}

/// Repeated measurements of one figure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// A closed loop: each client acquires, releases, and asks again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Load {
    /// Tasks of one process, which share its connections.
    pub(crate) clients: u32,
    pub(crate) locks: u32,
    /// An acquisition and its release are a pair.
    pub(crate) pairs_per_s: Spread,
    /// From asking for the lock to having it.
    pub(crate) acquire_p50_us: Spread,
    pub(crate) acquire_p99_us: Spread,
}

/// An open loop: clients ask at fixed times, whether or not others still wait.
///
/// A client that was held up asks less often than it was meant to; HdrHistogram adds what those
/// would have seen that it did not ask (coordinated omission; Gil Tene, "How NOT to Measure
/// Latency").
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FixedRate {
    /// Half of the pairs per second that the most clients had of their own locks.
    pub(crate) asked_per_s: f64,
    pub(crate) done_per_s: f64,
    pub(crate) acquire_p50_us: f64,
    pub(crate) acquire_p99_us: f64,
    pub(crate) acquire_p999_us: f64,
    pub(crate) acquire_max_us: f64,
    /// The p99 of those that were asked: what an uncorrected measurement would say.
    pub(crate) uncorrected_p99_us: f64,
}

/// A lock handed on from holder to waiter, after holds of 2 ms: from the call of the release to the
/// next one's grant.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "HandOver")]
pub(crate) struct HandOff {
    /// Clients that hold or wait.
    pub(crate) clients: u32,
    pub(crate) grants: u64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    /// The distribution: pairs of a time in microseconds and the share of hand-offs that took at
    /// most that long, from 0 to 1, rising.
    pub(crate) distribution: Vec<(f64, f64)>,
    /// Jain's index over the clients' grants: 1 when all had the same, 1/clients when one had all.
    pub(crate) fairness: f64,
    /// Grants to somebody who had asked over a millisecond later than one who still waited.
    pub(crate) overtaken: u64,
}

/// Grants of one lock around a failure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Timeline {
    /// What failed, as `holder killed`, `server restarted`, `master killed`, `cut off`.
    pub(crate) failure: String,
    /// Clients that loop over the lock, with holds of a few milliseconds.
    pub(crate) clients: u32,
    /// When it failed, from the beginning of the line.
    pub(crate) failed_at_ms: u64,
    /// When whatever was done to it was undone.
    pub(crate) healed_at_ms: u64,
    /// Grants in each tenth of a second, from the beginning.
    pub(crate) grants_per_100_ms: Vec<u32>,
    /// The longest time without a grant that touches the failure.
    pub(crate) without_progress_s: f64,
    /// Whether grants had come back by the end of the line.
    pub(crate) came_back: bool,
    /// Errors that clients were answered.
    pub(crate) errors: u64,
}

/// What an independent register saw while the store and its clients were broken and healed: two
/// registers in a process that no fault hits, one that checks fencing tokens and one that does not.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct UnderFaults {
    pub(crate) rounds: Vec<FaultRound>,
    pub(crate) seconds: f64,
    pub(crate) acquisitions: u64,
    /// Times that two held one lock together, each within its validity.
    pub(crate) overlaps: u64,
    /// Of these, those that the store's own profile admits.
    pub(crate) admitted_overlaps: u64,
    /// The most overlaps per acquisition that a run of this length in which there was none is
    /// compatible with, at a confidence of 95 %. Absent where there were some.
    pub(crate) overlaps_at_most: Option<f64>,
    /// Accesses with a stale token that the checking register refused.
    pub(crate) stale_refused: u64,
    /// Updates that the checking register lost. Anything but 0 is a bug.
    pub(crate) lost_with_fencing: u64,
    /// Updates that the register without a check lost.
    pub(crate) lost_without_fencing: u64,
    /// Other promises that were broken, in words. Anything here is a bug.
    pub(crate) violations: Vec<String>,
    /// The command that repeats it, longer.
    pub(crate) again: String,
}

/// One fault that came and went.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FaultRound {
    /// What was done, as `clients frozen`.
    pub(crate) faults: Vec<String>,
    pub(crate) acquisitions: u64,
    pub(crate) overlaps: u64,
    pub(crate) stale_refused: u64,
    pub(crate) lost_without_fencing: u64,
    /// After how long all locks had been granted again.
    pub(crate) recovered_ms: Option<u64>,
}

/// What a lock costs. Absent is what the store does not have, or tells nobody.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Cost {
    /// Requests of one client's acquisition and release, with nobody else there.
    pub(crate) requests_per_pair: Option<f64>,
    pub(crate) bytes_to_servers_per_pair: Option<f64>,
    pub(crate) bytes_from_servers_per_pair: Option<f64>,
    /// Commands that the servers count, with those inside of scripts.
    pub(crate) commands_per_pair: Option<f64>,
    /// Time of all servers' processors, with as many clients as `own_locks` has at its most.
    pub(crate) server_cpu_us_per_pair: Option<f64>,
    /// Time of this process's, with it the clients' work.
    pub(crate) client_cpu_us_per_pair: Option<f64>,
    pub(crate) idle: Option<IdleCost>,
}

/// What held locks cost while nothing happens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct IdleCost {
    /// How many were held for the traffic.
    pub(crate) locks: u32,
    /// Renewals are this often: a third of a TTL, or a session's heartbeat.
    pub(crate) ttl_s: f64,
    /// Of one lock, in a minute.
    pub(crate) requests_per_minute: Option<f64>,
    pub(crate) bytes_per_minute: Option<f64>,
    /// In the servers, for each held lock.
    pub(crate) server_memory_bytes: Option<f64>,
    /// In the process that holds them, for each held lock.
    pub(crate) client_memory_bytes: Option<f64>,
}

/// Buyers who each take one piece of a product, if there is one left.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FlashSale {
    pub(crate) buyers: u32,
    pub(crate) products: u32,
    /// Pieces of each product.
    pub(crate) pieces: u32,
    /// Buyers who are served at the same time.
    pub(crate) served_together: u32,
    pub(crate) with_lock: Sale,
    /// For contrast.
    pub(crate) without_lock: Sale,
}

/// What came of a sale.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Sale {
    /// Pieces that the stock says are left, of all products.
    pub(crate) left: u32,
    /// Pieces that buyers were promised.
    pub(crate) sold: u32,
    /// Pieces sold and left together, less those that there were: buyers who get nothing, or will.
    pub(crate) oversold: u32,
    /// Until the last buyer had been told.
    pub(crate) took_s: f64,
    /// Buyers who were answered an error.
    pub(crate) errors: u32,
}

/// A stage that could not be completed.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Failure {
    /// As `hand-off`.
    pub(crate) stage: String,
    pub(crate) why: String,
}
