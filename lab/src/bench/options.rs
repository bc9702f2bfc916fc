//! What a run of `bench` is told, and what one of its processes saw.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Measures a store with one workload; prints one line of JSON.
///
/// The locks are named `bench-0` and so on, after the URL's prefix, like a service's own.
/// What a free lock leaves for a while in any store stays: in Redis the key of the last fencing
/// token, for an hour to a day; in ZooKeeper an empty node, for minutes; in files a directory.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The store; `baseline:tokio-mutex` is tokio's own Mutex in the same loop
    pub(super) url: String,
    /// What the clients do
    #[arg(value_enum)]
    pub(super) workload: Workload,
    /// Number of clients
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) clients: u32,
    /// Duration in seconds
    #[arg(value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Spread the clients over this many processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) processes: u32,
    /// Up to this many acquisitions of a process take turns on one grant
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(super) local_handoffs: Option<u32>,
    /// Then also what the store's own database does without this library, with as many clients: `uncontended`
    /// of postgres:// alone. A table named fencelock_bench_limits is made there and dropped
    #[arg(long)]
    pub(super) limits: bool,
    /// This is one of those processes: its first client's number
    #[arg(long, hide = true)]
    pub(super) worker: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Workload {
    /// Each client acquires and releases a lock of its own
    Uncontended,
    /// All acquire and release one lock
    Contended,
    /// All acquire one lock, and hold it for 2 ms
    Handover,
    /// CLIENTS locks are held, and nothing else happens
    Held,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds from 0.01 to 86400".to_owned()),
    }
}

/// What one process saw, on the clock that all processes of a machine share.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Pairs of each client.
    pub(crate) pairs: Vec<u64>,
    /// Latencies in nanoseconds, each with how often it was seen.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// Of `handover`: asked, granted and release called, in nanoseconds.
    pub(crate) holds: Vec<[u64; 3]>,
    pub(crate) elapsed: f64,
}

impl Workload {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

pub(super) fn store_word(url: &str) -> &str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| unreachable!("plain numbers and strings"))
}
