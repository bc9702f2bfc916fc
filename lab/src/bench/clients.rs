//! The clients of one process: each loops over its lock, and notes what it saw.

use std::sync::Arc;
use std::time::Duration;

use fencelock::{Error, ErrorKind, Lock, Locks, Reach, Result, Settings};
use hdrhistogram::Histogram;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::figures::{new_histogram, now};
use super::limits::{LimitClient, Limits};
use super::options::Seen;

/// Clients that each loop over one of some locks.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Their numbers.
    pub(crate) clients: std::ops::Range<u32>,
    /// How many locks they share, each client always the same one.
    pub(crate) locks: u32,
    pub(crate) time: Duration,
    pub(crate) note: Note,
}

/// What clients note of each acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// How long it took, with its release.
    Pair,
    /// How long it took.
    Acquire,
    /// When it was asked for, granted and released, after a hold of 2 ms.
    Hold,
}

/// What is measured.
#[derive(Clone)]
pub(crate) enum LockSource {
    Store(Locks),
    /// No store at all: what the loop and tokio cost.
    TokioMutex(Arc<std::sync::Mutex<Mutexes>>),
    /// The store's own database without this library.
    Limits(Arc<Limits>),
}

type Mutexes = std::collections::HashMap<String, Arc<tokio::sync::Mutex<()>>>;

const TOKIO_MUTEX: &str = "baseline:tokio-mutex";

/// One client's lock.
enum Target {
    Store(Box<Lock>),
    TokioMutex(Arc<tokio::sync::Mutex<()>>),
    Limit(LimitClient),
}

enum Held<'a> {
    Store(fencelock::Guard),
    TokioMutex(#[expect(dead_code, reason = "held for its drop")] tokio::sync::OwnedMutexGuard<()>),
    Limit(&'a LimitClient),
}

impl LockSource {
    pub(super) async fn connect(url: &str, settings: Settings) -> Result<LockSource> {
        match url {
            TOKIO_MUTEX => Ok(LockSource::TokioMutex(Arc::default())),
            _ => Ok(LockSource::Store(fencelock::connect_with(url, settings).await?)),
        }
    }

    /// Several processes that each lock something of their own would measure nothing.
    pub(super) fn reaches_processes(&self) -> Result<()> {
        match self {
            LockSource::Store(locks) if locks.profile().reach != Reach::Process => Ok(()),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                "--processes needs a store that excludes processes; this one lives in one",
            )),
        }
    }

    fn target(&self, client: u32, locks: u32) -> Target {
        let name = format!("bench-{}", client % locks);
        match self {
            LockSource::Store(locks) => Target::Store(Box::new(locks.lock(name))),
            LockSource::TokioMutex(all) => {
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Target::TokioMutex(all.entry(name).or_default().clone())
            }
            LockSource::Limits(limits) => Target::Limit(limits.client(client)),
        }
    }

    /// Runs each client in a task of its own.
    pub(crate) async fn drive(&self, load: Load) -> Result<Seen> {
        let end = now() + u64::try_from(load.time.as_nanos()).unwrap_or(u64::MAX);
        let client = |client: u32| one_client(self.target(client, load.locks), load.note, end);
        let start = now();
        let spawn = |client| AbortOnDropHandle::new(tokio::spawn(client));
        let tasks: Vec<_> = load.clients.map(client).map(spawn).collect();
        let mut seen = Seen::default();
        let mut latencies = new_histogram();
        for task in tasks {
            let client = task.await.map_err(ended)??;
            seen.pairs.push(client.pairs);
            seen.holds.extend(client.holds);
            let added = latencies.add(client.latencies);
            debug_assert!(added.is_ok(), "histograms of one shape");
        }
        seen.elapsed = (now() - start) as f64 / 1e9;
        let recorded = latencies.iter_recorded();
        seen.latencies = recorded.map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
        Ok(seen)
    }

    pub(crate) async fn close(&self) -> Result<()> {
        match self {
            LockSource::Store(locks) => locks.close().await,
            LockSource::TokioMutex(_) => Ok(()),
            LockSource::Limits(limits) => limits.close().await,
        }
    }
}

/// Of a task that panicked.
fn ended(cause: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Refused, "a client's task ended").caused_by(cause)
}

struct OneClient {
    pairs: u64,
    latencies: Histogram<u64>,
    holds: Vec<[u64; 3]>,
}

async fn one_client(target: Target, note: Note, end: u64) -> Result<OneClient> {
    let mut seen = OneClient { pairs: 0, latencies: new_histogram(), holds: Vec::new() };
    loop {
        let asked = now();
        if asked >= end {
            return Ok(seen);
        }
        let held = target.acquire().await?;
        let granted = now();
        if note == Note::Hold {
            sleep(Duration::from_millis(2)).await;
        }
        let released = now();
        held.release().await?;
        seen.pairs += 1;
        match note {
            Note::Pair => seen.latencies.saturating_record(now() - asked),
            Note::Acquire => seen.latencies.saturating_record(granted - asked),
            Note::Hold => seen.holds.push([asked, granted, released]),
        }
    }
}

impl Target {
    async fn acquire(&self) -> Result<Held<'_>> {
        match self {
            Target::Store(lock) => Ok(Held::Store(lock.acquire().await?)),
            Target::TokioMutex(mutex) => Ok(Held::TokioMutex(mutex.clone().lock_owned().await)),
            Target::Limit(client) => client.acquire().await.map(|()| Held::Limit(client)),
        }
    }
}

impl Held<'_> {
    async fn release(self) -> Result<()> {
        match self {
            Held::Store(guard) => guard.release().await,
            Held::TokioMutex(_) => Ok(()),
            Held::Limit(client) => client.release().await,
        }
    }
}
