//! `latch` and `count-downs`: what happens once, at one instant, is repeated in rounds.
//!
//! - `latch`: all clients wait for one latch; when all wait, one more client counts it down. Latencies are
//!   from that call to the return of each client's `wait`, across processes too.
//! - `count-downs`: at one instant of the clock that all processes share, each client counts one latch
//!   down by one. A latency is from that instant until the latch is open, and swaps are the writes that it
//!   took: the version of the latch's cell.
//!
//! A latch is removed after its round, so that the next one leaves nothing more in the store.

use std::time::Duration;

use fencelock::{Error, ErrorKind, Latch, Locks, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::clients::{LockSource, ended};
use super::figures::{in_us, new_histogram, now};
use super::options::{Options, Workload, json, store_word};
use super::worker::{Workers, broken_worker, read_line};

const LATCH: &str = "bench-latch";

/// From when all clients have called `wait` to when the store has their watches.
const SETTLES: Duration = Duration::from_millis(50);

/// From the order to start to the instant itself: by then all processes have got it.
const NOTICE: Duration = Duration::from_millis(20);

/// A wait that is not woken is an error, and not the end of the bench.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
pub(super) struct Line<'a> {
    store: &'a str,
    workload: Workload,
    clients: u32,
    processes: u32,
    rounds: u64,
    p50_us: f64,
    p99_us: f64,
    /// The longest, to a hundredth.
    max_us: f64,
    #[serde(flatten)]
    more: More,
}

#[derive(Serialize)]
#[serde(untagged)]
enum More {
    Latch {
        /// Until the last client was awake, in the median round.
        all_awake_us: f64,
        /// The median of the count-down that opened the latch.
        count_down_us: f64,
        /// The median of a read of the same latch, just before.
        round_trip_us: f64,
    },
    CountDowns {
        swaps_p50: u64,
        swaps_max: u64,
    },
}

/// What the processes are told at the start of a round.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Start {
    at: u64,
    /// What the latch is made with.
    count: u32,
}

/// When a client's call returned, and how many count-downs were left.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Returned {
    at: u64,
    left: u32,
}

type Task = AbortOnDropHandle<Result<Returned>>;

#[derive(Default)]
struct Figures {
    latencies: Vec<u64>,
    last: Vec<u64>,
    count_downs: Vec<u64>,
    round_trips: Vec<u64>,
    swaps: Vec<u64>,
}

impl Options {
    pub(super) fn in_rounds(&self) -> Result<Line<'_>> {
        fencelock_cli::runtime()?.block_on(async {
            let source = self.connect().await?;
            let locks = source.store()?;
            let latch = self.latch(locks, self.clients);
            // Of a run that was killed.
            latch.remove().await?;
            let mut workers = self.workers(&source)?;
            let mut figures = Figures::default();
            let started = now();
            loop {
                self.round(locks, &latch, workers.as_mut(), &mut figures).await?;
                latch.remove().await?;
                if u128::from(now() - started) >= self.seconds.as_nanos() {
                    break;
                }
            }
            if let Some(workers) = workers {
                workers.end()?;
            }
            source.close().await?;
            Ok(self.rounds_line(&figures))
        })
    }

    /// A worker process's part.
    pub(super) async fn work_in_rounds(&self, source: &LockSource) -> Result<()> {
        while read_line()?.is_some() {
            let tasks = self.begin(source.store()?).await?;
            println!("begun");
            let Some(start) = read_line()? else { break };
            let start = serde_json::from_str(&start).map_err(broken_worker)?;
            println!("{}", json(&self.finish(source.store()?, tasks, start).await?));
        }
        Ok(())
    }

    async fn round(
        &self,
        locks: &Locks,
        latch: &Latch,
        mut workers: Option<&mut Workers>,
        figures: &mut Figures,
    ) -> Result<()> {
        let mut tasks = Vec::new();
        match &mut workers {
            Some(workers) => {
                workers.tell("round")?;
                workers.lines()?;
            }
            None => tasks = self.begin(locks).await?,
        }
        sleep(SETTLES).await;
        let start = Start { at: now() + nanos(NOTICE), count: self.clients };
        if let Some(workers) = &mut workers {
            workers.tell(&json(&start))?;
        }
        let mut from = start.at;
        if self.workload == Workload::Latch {
            until(start.at).await?;
            let asked = now();
            latch.remaining().await?;
            from = now();
            latch.count_down().await?;
            figures.count_downs.push(now() - from);
            figures.round_trips.push(from - asked);
        }
        let returned: Vec<Returned> = match workers {
            Some(workers) => workers.answers::<Vec<_>>()?.into_iter().flatten().collect(),
            None => self.finish(locks, tasks, start).await?,
        };
        match self.workload {
            Workload::Latch => figures.woken(from, &returned),
            _ => {
                let content = locks.read_cell(LATCH).await?;
                let swaps = content.and_then(|content| content.writes()).unwrap_or(0);
                figures.opened(from, &returned, swaps)
            }
        }
    }

    fn latch(&self, locks: &Locks, clients: u32) -> Latch {
        let count = if self.workload == Workload::Latch { 1 } else { clients };
        locks.latch(LATCH, count).keep_for(Duration::from_secs(3_600)).wait_at_most(PATIENCE)
    }

    /// This process's clients, once they all wait; none yet of those that only count down.
    async fn begin(&self, locks: &Locks) -> Result<Vec<Task>> {
        if self.workload != Workload::Latch {
            return Ok(Vec::new());
        }
        let (calls, mut called) = mpsc::unbounded_channel();
        let wait = |_| {
            let (latch, calls) = (self.latch(locks, 1), calls.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                // Nobody listens when the round has failed.
                let _ = calls.send(());
                latch.wait().await?;
                Ok(Returned { at: now(), left: 0 })
            }))
        };
        let tasks = (0..self.clients).map(wait).collect();
        for _ in 0..self.clients {
            called.recv().await;
        }
        Ok(tasks)
    }

    /// The calls of this process's clients, when all have returned.
    async fn finish(
        &self,
        locks: &Locks,
        mut tasks: Vec<Task>,
        start: Start,
    ) -> Result<Vec<Returned>> {
        if self.workload != Workload::Latch {
            until(start.at).await?;
            let count_down = |_| {
                let latch = self.latch(locks, start.count);
                AbortOnDropHandle::new(tokio::spawn(async move {
                    let left = latch.count_down().await?;
                    Ok(Returned { at: now(), left })
                }))
            };
            tasks = (0..self.clients).map(count_down).collect();
        }
        let mut returned = Vec::with_capacity(tasks.len());
        for task in tasks {
            returned.push(task.await.map_err(ended)??);
        }
        Ok(returned)
    }

    fn rounds_line(&self, figures: &Figures) -> Line<'_> {
        let latencies = histogram(&figures.latencies);
        let median_us = |of: &[u64]| in_us(histogram(of).value_at_quantile(0.5));
        let swaps = histogram(&figures.swaps);
        Line {
            store: store_word(&self.url),
            workload: self.workload,
            clients: self.clients,
            processes: self.processes.min(self.clients),
            rounds: figures.last.len() as u64,
            p50_us: in_us(latencies.value_at_quantile(0.5)),
            p99_us: in_us(latencies.value_at_quantile(0.99)),
            max_us: in_us(latencies.max()),
            more: match self.workload {
                Workload::Latch => More::Latch {
                    all_awake_us: median_us(&figures.last),
                    count_down_us: median_us(&figures.count_downs),
                    round_trip_us: median_us(&figures.round_trips),
                },
                _ => More::CountDowns {
                    swaps_p50: swaps.value_at_quantile(0.5),
                    swaps_max: swaps.max(),
                },
            },
        }
    }
}

impl Figures {
    /// A round of `latch`, which was counted down at `called`.
    fn woken(&mut self, called: u64, returned: &[Returned]) -> Result<()> {
        if returned.iter().any(|returned| returned.at < called) {
            return Err(wrong("a client's wait returned before the latch was counted down".into()));
        }
        self.latencies.extend(returned.iter().map(|returned| returned.at - called));
        self.last.extend(returned.iter().map(|returned| returned.at - called).max());
        Ok(())
    }

    /// A round of `count-downs`, which began at `start`.
    fn opened(&mut self, start: u64, returned: &[Returned], swaps: u64) -> Result<()> {
        let mut left: Vec<u32> = returned.iter().map(|returned| returned.left).collect();
        left.sort_unstable();
        if !left.iter().copied().eq((0..).take(returned.len())) {
            let message = format!("{} count-downs were answered with {left:?}", returned.len());
            return Err(wrong(message));
        }
        let opened = returned.iter().find(|returned| returned.left == 0);
        let took = opened.map(|opened| opened.at.saturating_sub(start));
        self.latencies.extend(took);
        self.last.extend(took);
        self.swaps.push(swaps);
        Ok(())
    }
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Refused, message + ", unless another bench used the latch meanwhile")
}

fn histogram(values: &[u64]) -> Histogram<u64> {
    let mut histogram = new_histogram();
    values.iter().for_each(|value| histogram.saturating_record(*value));
    histogram
}

/// Sleeps on a thread: tokio's timers are to a millisecond, each process's on its own beat.
async fn until(instant: u64) -> Result<()> {
    let sleep = move || std::thread::sleep(Duration::from_nanos(instant.saturating_sub(now())));
    tokio::task::spawn_blocking(sleep).await.map_err(ended)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::*;

    fn line(workload: Workload) -> serde_json::Value {
        serde_json::to_value(options("mem://", workload).in_rounds().unwrap()).unwrap()
    }

    #[test]
    fn waiters_are_woken_in_each_round() {
        let line = line(Workload::Latch);
        for key in ["rounds", "p50_us", "max_us", "all_awake_us", "count_down_us", "round_trip_us"]
        {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
        }
        assert!(line.get("swaps_max").is_none(), "{line}");
    }

    #[test]
    fn the_writes_of_a_latch_are_counted() {
        let line = line(Workload::CountDowns);
        assert_eq!(line["workload"], "count-downs");
        // One by the first client, at least; three if none were combined.
        assert!((1..=3).contains(&line["swaps_max"].as_u64().unwrap()), "{line}");
        assert!(line.get("round_trip_us").is_none(), "{line}");
    }

    fn returned(all: &[(u64, u32)]) -> Vec<Returned> {
        all.iter().map(|(at, left)| Returned { at: *at, left: *left }).collect()
    }

    #[test]
    fn an_early_return_and_a_wrong_count_are_errors() {
        let mut figures = Figures::default();
        figures.woken(10, &returned(&[(10, 0), (17, 0)])).unwrap();
        assert!(figures.woken(10, &returned(&[(9, 0), (17, 0)])).is_err());
        figures.opened(10, &returned(&[(12, 0), (13, 1)]), 1).unwrap();
        for wrong in [&[(12, 0), (13, 0)][..], &[(12, 1), (13, 2)], &[(12, 1)]] {
            let error = figures.opened(10, &returned(wrong), 1).unwrap_err();
            assert!(error.to_string().contains("were answered with"), "{error}");
        }
        assert_eq!((figures.last, figures.swaps), (vec![7, 2], vec![1]));
    }
}
