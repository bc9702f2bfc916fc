//! `fencelock bench`: measures a store on this machine; prints one line of JSON.
//!
//! The workloads are closed loops: each client acquires, holds, releases, and asks again.
//! Latencies of `uncontended` are of acquire and release together, of `contended` of acquire
//! alone, and of `handover` from the call of one holder's release, after a hold of 2 ms, to the
//! next holder's grant, across processes too. `held` is not a loop: it measures what keeping that many
//! locks costs this process.

mod clients;
mod worker;

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

use fencelock::{Error, ErrorKind, Result, Settings};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) use clients::{Load, LockSource, Note};
use worker::{Worker, broken_worker};

/// Measures a store with one workload; prints one line of JSON.
///
/// The locks are named `bench-0` and so on, after the URL's prefix, like a service's own.
/// What a free lock leaves for a while in any store stays: in Redis the key of the last fencing
/// token, for an hour to a day; in ZooKeeper an empty node, for minutes; in files a directory.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The store; `baseline:tokio-mutex` is tokio's own Mutex in the same loop
    url: String,
    /// Own locks, one contended lock, one lock handed off after holds of 2 ms, or CLIENTS idle held
    /// locks
    #[arg(value_enum)]
    workload: Workload,
    /// Number of clients
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Duration in seconds
    #[arg(value_parser = seconds)]
    seconds: Duration,
    /// Spread the clients over this many processes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    processes: u32,
    /// Up to this many acquisitions of a process take turns on one grant
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    local_handoffs: Option<u32>,
    /// This is one of those processes: its first client's number
    #[arg(long, hide = true)]
    worker: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Workload {
    Uncontended,
    Contended,
    Handover,
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

#[derive(Serialize)]
struct Line<'a> {
    store: &'a str,
    workload: Workload,
    clients: u32,
    processes: u32,
    pairs_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// The longest, to a hundredth.
    max_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_handoffs: Option<u32>,
    /// Jain's index over the clients' pairs: 1 when all got the same.
    fairness: f64,
    /// With several processes: the pairs of each, in the order in which they were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs_by_process: Option<Vec<u64>>,
    /// By how much the one that is furthest from their mean differs from it, in percent of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_deviation_percent: Option<f64>,
    /// Of `handover`: grants to a client that had asked over a millisecond after one still waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    overtaken: Option<usize>,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        self.takes_no_handoffs_from_the_url()?;
        if let Some(first) = self.worker {
            return self.work(first);
        }
        if self.workload == Workload::Held {
            println!("{}", json(&self.hold()?));
            return Ok(ExitCode::SUCCESS);
        }
        let seen = match self.processes {
            1 => vec![self.measure(0, || Ok(()))?],
            _ => self.measure_in_processes()?,
        };
        println!("{}", json(&self.line(&seen)));
        Ok(ExitCode::SUCCESS)
    }

    /// They would replace the option's, and the printed line would not show them.
    fn takes_no_handoffs_from_the_url(&self) -> Result<()> {
        let parameters = self.url.split(['?', '&']).skip(1);
        match parameters.filter_map(|it| it.strip_prefix("local_handoffs=")).last() {
            None => Ok(()),
            Some(most) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the URL has local_handoffs={most}: leave it out, and give --local-handoffs {most}, \
                     which the result shows"
                ),
            )),
        }
    }

    /// Holds many locks and does nothing else.
    fn hold(&self) -> Result<HeldLine<'_>> {
        fencelock_cli::runtime()?.block_on(async {
            let locks = fencelock::connect(&self.url).await?;
            let mut guards = Vec::new();
            for n in 0..self.clients {
                guards.push(locks.lock(format!("bench-held-{n}")).acquire().await?);
            }
            let (start, used) = (now(), cpu_time());
            tokio::time::sleep(self.seconds).await;
            let (elapsed, used) = (now() - start, cpu_time() - used);
            let lost = guards.iter().filter(|guard| !guard.is_held()).count();
            drop(guards);
            locks.close().await?;
            Ok(HeldLine {
                store: store_word(&self.url),
                workload: self.workload,
                locks: self.clients,
                lost,
                cpu_percent: (1e4 * used as f64 / elapsed as f64).round() / 1e2,
            })
        })
    }

    /// The worker process's part: reports when it is connected, and starts on request.
    fn work(&self, first: u32) -> Result<ExitCode> {
        let seen = self.measure(first, || {
            println!("ready");
            let mut go = String::new();
            std::io::stdin().lock().read_line(&mut go).map_err(broken_worker)?;
            Ok(())
        })?;
        println!("{}", json(&seen));
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, first: u32, start: impl FnOnce() -> Result<()>) -> Result<Seen> {
        fencelock_cli::runtime()?.block_on(async {
            let source = self.connect().await?;
            start()?;
            let seen = source.drive(self.load(first)).await?;
            source.close().await?;
            Ok(seen)
        })
    }

    async fn connect(&self) -> Result<LockSource> {
        let settings = Settings::default().local_handoffs(self.local_handoffs.unwrap_or(1))?;
        LockSource::connect(&self.url, settings).await
    }

    fn load(&self, first: u32) -> Load {
        let (locks, note) = match self.workload {
            Workload::Uncontended => (u32::MAX, Note::Pair),
            Workload::Contended => (1, Note::Acquire),
            _ => (1, Note::Hold),
        };
        Load { clients: first..first + self.clients, locks, time: self.seconds, note }
    }

    fn measure_in_processes(&self) -> Result<Vec<Seen>> {
        fencelock_cli::runtime()?.block_on(self.connect())?.reaches_processes()?;
        let processes = self.processes.min(self.clients);
        let mut workers = Vec::new();
        let mut first = 0;
        for index in 0..processes {
            let clients = self.clients / processes + u32::from(index < self.clients % processes);
            workers.push(Worker::start(self, first, clients)?);
            first += clients;
        }
        for worker in &mut workers {
            worker.line()?;
        }
        for worker in &mut workers {
            worker.go()?;
        }
        workers.iter_mut().map(Worker::seen).collect()
    }

    fn line(&self, seen: &[Seen]) -> Line<'_> {
        let elapsed = seen.iter().map(|s| s.elapsed).fold(0.0, f64::max);
        let pairs: Vec<u64> = seen.iter().flat_map(|s| s.pairs.iter().copied()).collect();
        let by_process: Vec<u64> = seen.iter().map(|s| s.pairs.iter().sum()).collect();
        let by_process = (by_process.len() > 1).then_some(by_process);
        let mut latencies = histogram(seen);
        let handed_off = handed_off(seen.iter().flat_map(|s| s.holds.iter().copied()));
        if self.workload == Workload::Handover {
            latencies = handed_off.took;
        }
        Line {
            store: store_word(&self.url),
            workload: self.workload,
            clients: self.clients,
            processes: self.processes.min(self.clients),
            pairs_per_s: tenth(pairs.iter().sum::<u64>() as f64 / elapsed),
            p50_us: tenth(latencies.value_at_quantile(0.5) as f64 / 1e3),
            p99_us: tenth(latencies.value_at_quantile(0.99) as f64 / 1e3),
            max_us: tenth(latencies.max() as f64 / 1e3),
            local_handoffs: self.local_handoffs,
            fairness: (1e3 * fairness(&pairs)).round() / 1e3,
            largest_deviation_percent: by_process.as_deref().map(largest_deviation_percent),
            pairs_by_process: by_process,
            overtaken: (self.workload == Workload::Handover).then_some(handed_off.overtaken),
        }
    }
}

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
fn largest_deviation_percent(pairs: &[u64]) -> f64 {
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

#[derive(Serialize)]
struct HeldLine<'a> {
    store: &'a str,
    workload: Workload,
    locks: u32,
    lost: usize,
    /// Of one core, in this process, while nothing happened but renewals.
    cpu_percent: f64,
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

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn store_word(url: &str) -> &str {
    url.split_once(':').map_or(url, |(scheme, _)| scheme)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| unreachable!("plain numbers and strings"))
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

    fn options(url: &str) -> Options {
        Options {
            url: url.to_owned(),
            workload: Workload::Handover,
            clients: 3,
            seconds: Duration::from_millis(50),
            processes: 1,
            local_handoffs: Some(2),
            worker: None,
        }
    }

    #[test]
    fn hand_offs_are_an_option_and_no_parameter() {
        let error = options("mem://?ttl=5s&local_handoffs=8").run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("give --local-handoffs 8"), "{error}");
    }

    #[test]
    fn the_share_of_each_process_is_shown() {
        let shares = [&[50, 60][..], &[100], &[40, 50]];
        let seen = shares.map(|pairs| Seen { pairs: pairs.to_vec(), ..Seen::default() });
        let line = |seen| serde_json::to_value(options("file://").line(seen)).unwrap();
        assert_eq!(line(&seen)["pairs_by_process"], serde_json::json!([110, 100, 90]));
        assert_eq!(line(&seen)["largest_deviation_percent"], 10.0);
        assert_eq!(largest_deviation_percent(&[0, 0]), 0.0);
        for only_of_several in ["pairs_by_process", "largest_deviation_percent"] {
            assert!(line(&seen[..1]).get(only_of_several).is_none());
        }
    }

    #[test]
    fn one_line_has_what_a_comparison_needs() {
        let options = options("mem://");
        let seen = vec![options.measure(0, || Ok(())).unwrap()];
        let line: serde_json::Value = serde_json::from_str(&json(&options.line(&seen))).unwrap();
        for key in ["pairs_per_s", "p50_us", "p99_us", "fairness"] {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
        }
        assert_eq!(line["overtaken"], 0);
    }
}
