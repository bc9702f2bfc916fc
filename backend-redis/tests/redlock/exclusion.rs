//! Majorities of nodes that lose their data, again and again, under clients that hold and renew: no two
//! clients may ever hold one lock.
//!
//! `FENCELOCK_ACQUISITIONS=10000` is the run that the promise rests on; `REDLOCK_SEED` repeats the
//! choice of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_conformance::How;
use fencelock_conformance::checker::{Rules, check};
use fencelock_conformance::history::{Event, What, Worker};
use fencelock_core::{Error, ErrorKind, Locks};
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::support::*;

const NODES: usize = 5;
const LOCKS: usize = 64;
const CLIENTS: usize = 4;
/// In addition to the delay, so that locks are held again when the next majority restarts.
const QUIET: Duration = ms(2000);

fn seed() -> u64 {
    let seed = std::env::var("REDLOCK_SEED").ok().map(|text| text.parse().unwrap());
    let seed = seed.unwrap_or_else(rand::random);
    println!("REDLOCK_SEED={seed}");
    seed
}

/// The result of a run.
struct Run {
    events: Vec<Event>,
    cycles: usize,
    /// The longest time of a cycle until the last node of the majority was back.
    slowest: Duration,
    errors: BTreeMap<String, u64>,
    took: Duration,
}

impl Run {
    fn grants(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.what, What::Granted { .. })).count()
    }

    /// The smallest difference of two consecutive tokens of one lock.
    fn smallest_step(&self) -> i128 {
        let mut events: Vec<&Event> = self.events.iter().collect();
        events.sort_by_key(|event| event.at);
        let (mut last, mut smallest) = (BTreeMap::new(), i128::MAX);
        for event in events {
            if let What::Granted { token, .. } = event.what
                && let Some(before) = last.insert(&event.lock, token)
            {
                smallest = smallest.min(i128::from(token) - i128::from(before));
            }
        }
        smallest
    }
}

/// Acquires, holds for one to three seconds, and releases, until the run is over.
async fn work(
    locks: Locks,
    name: String,
    seed: u64,
    count: Arc<Count>,
) -> (Vec<Event>, BTreeMap<String, u64>) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut worker = Worker::new();
    let mut errors = BTreeMap::new();
    while !count.is_over() {
        // Waiters also give up and start again, instead of only being notified.
        let lock = locks.lock(&name).wait_at_most(ms(random.random_range(300..900)));
        let (guard, claim) = match worker.acquire_lock(&lock, &name, How::Exclusive).await {
            Ok(granted) => granted,
            Err(error) => {
                if error.kind() != ErrorKind::WaitTimedOut {
                    *errors.entry(reason(&error)).or_default() += 1;
                    sleep(ms(random.random_range(20..100))).await;
                }
                continue;
            }
        };
        count.grants.fetch_add(1, Ordering::Relaxed);
        let ends = Instant::now() + ms(random.random_range(1000..3000));
        while worker.observe(&guard, &claim) && Instant::now() < ends && !count.is_over() {
            tokio::select! {
                _ = guard.lost() => {}
                () = sleep(ms(50)) => {}
            }
        }
        if let Err(error) = worker.release(guard, &claim).await {
            *errors.entry(format!("release: {}", error.kind().message())).or_default() += 1;
        }
    }
    (worker.into_events(), errors)
}

/// Why it was not acquired.
fn reason(error: &Error) -> String {
    let words = error_chain(error);
    for reason in ["the clocks of a majority", "apart", "lost its data or is new", "connection"] {
        if words.contains(reason) {
            return format!("acquire: {}: {reason}", error.kind().message());
        }
    }
    format!("acquire: {}", error.kind().message())
}

#[derive(Default)]
struct Count {
    grants: AtomicU64,
    is_over: AtomicBool,
}

impl Count {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Restarts majorities until there were as many acquisitions.
async fn run(quorum: &TestQuorum, clients: Vec<Locks>, wanted: u64) -> Run {
    let seed = seed();
    let started = Instant::now();
    let count = Arc::new(Count::default());
    let workers = (0..LOCKS).flat_map(|lock| {
        // Two for each lock, of different clients.
        [lock % CLIENTS, (lock + 1 + lock / CLIENTS % (CLIENTS - 1)) % CLIENTS].map(|client| {
            let (locks, name) = (clients[client].clone(), format!("lock-{lock}"));
            let seed = seed ^ (lock * CLIENTS + client) as u64;
            tokio::spawn(work(locks, name, seed, count.clone()))
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut random = StdRng::seed_from_u64(seed);
    let (mut cycles, mut slowest) = (0, Duration::ZERO);
    // Until all clients hold a lock.
    sleep(ms(500)).await;
    while count.grants.load(Ordering::Relaxed) < wanted {
        let nodes = (0..NODES).sample(&mut random, NODES / 2 + 1);
        let restarting = Instant::now();
        // All are down before the first is back: only a minority has the data left.
        nodes.iter().for_each(|node| quorum.nodes[*node].kill().unwrap());
        let back = join_all(nodes.iter().map(|node| quorum.nodes[*node].restart())).await;
        back.into_iter().for_each(|started| started.expect("it starts again"));
        slowest = slowest.max(restarting.elapsed());
        cycles += 1;
        sleep(QUICK_DELAY + QUIET).await;
    }
    count.is_over.store(true, Ordering::Relaxed);
    let (mut events, mut errors) = (Vec::new(), BTreeMap::new());
    for worker in workers {
        let (theirs, trouble) = within(ms(60_000), "a worker ends", worker).await.unwrap();
        events.extend(theirs);
        for (kind, count) in trouble {
            *errors.entry(kind).or_default() += count;
        }
    }
    Run { events, cycles, slowest, errors, took: started.elapsed() }
}

/// `restarts` and `rules` show each rule by one timeline; this is for those that no test states.
mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "in ./test --long: majorities restart for a minute"]
    async fn no_two_hold_while_majorities_forget() {
        const MANY: u64 = 1000;
        let wanted = std::env::var("FENCELOCK_ACQUISITIONS");
        let wanted = wanted.map_or(MANY, |text| text.parse().unwrap());
        let quorum = TestQuorum::new(NODES, QUICK).await;
        let clients = join_all((0..CLIENTS).map(|_| quorum.direct(QUICK))).await;
        let run = run(&quorum, clients, wanted).await;
        let (grants, cycles, step) = (run.grants(), run.cycles, run.smallest_step());
        let violations = check(run.events, Rules::default());
        println!(
            "{grants} acquisitions in {:?}, {} violations, smallest step of a token {step}, {cycles} \
             majorities restarted, each within {:?}, errors: {:?}",
            run.took,
            violations.len(),
            run.slowest,
            run.errors
        );
        assert!(violations.is_empty(), "{}", violations[0]);
        assert!(step > 0 && cycles > 1);
        quorum.drained().await;
    }
}
