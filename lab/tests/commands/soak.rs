//! One process that lives for an hour with churn and faults: what it uses, and what it leaves in the store, stays
//! flat. Torture starts processes anew all the time, and would not see a leak that takes an hour.

mod long {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use fencelock::{Locks, Result};
    use fencelock_testkit::deployments::{Deployment, Kind, Library, Wiring};
    use rand::RngExt as _;
    use tokio::task::JoinSet;
    use tokio::time::{Instant, sleep, timeout};

    const LIBRARY: Library = Library {
        connect: |url| {
            let url = url.to_owned();
            Box::pin(async move { fencelock::connect(&url).await })
        },
        declare_new: |url| {
            let url = url.to_owned();
            Box::pin(async move { fencelock::redlock::init(&url).await.map(drop) })
        },
    };
    const WORKERS: usize = 16;
    const LOCKS: u32 = 50;
    /// One fault in each period, and then rest, in which what is used is counted.
    const PERIOD: Duration = Duration::from_secs(30);
    const FAULT: Duration = Duration::from_secs(4);
    /// Within which everything that a fault has left ends: leases of 2 s, sessions of 20 s, and a busy machine.
    const REST: Duration = Duration::from_secs(120);

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn memory() {
        soak(Kind::Memory);
    }

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn file() {
        soak(Kind::File);
    }

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn postgres() {
        soak(Kind::Postgres);
    }

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn redis() {
        soak(Kind::RedisAof);
    }

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn redlock() {
        soak(Kind::Redlock3);
    }

    #[test]
    #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
    fn zookeeper() {
        soak(Kind::ZooKeeper);
    }

    fn soak(kind: Kind) {
        let minutes =
            std::env::var("SOAK_MINUTES").map_or(60, |text| text.parse().expect("minutes"));
        let built =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        built.expect("a runtime").block_on(run(kind, Duration::from_secs(60 * minutes)));
    }

    async fn run(kind: Kind, whole: Duration) {
        let deployment = kind.start(LIBRARY, Wiring::Proxied).await.expect("the servers start");
        let locks = (LIBRARY.connect)(&deployment.url()).await.expect("connected");
        let (began, mut samples) = (Instant::now(), Vec::new());
        let faults = deployment.faults();
        while began.elapsed() < whole || samples.len() < 8 {
            let fault = faults.get(samples.len() % faults.len().max(1)).copied();
            let worked = period(&locks, async {
                if let Some(fault) = fault {
                    deployment.inflict(fault, FAULT).await.expect("a fault");
                }
            })
            .await;
            let sample = Sample::at_rest(&*deployment, worked).await;
            println!("{:5.1} min, {fault:?}: {sample:?}", began.elapsed().as_secs_f64() / 60.0);
            samples.push(sample);
        }
        assert_flat(&samples);
        timeout(REST, locks.close()).await.expect("it ends").expect("closed");
    }

    /// Lets all workers work for a period, during which `fault` happens. Returns how many grants they had.
    async fn period(locks: &Locks, fault: impl Future<Output = ()>) -> u64 {
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let (locks, stop, grants) = (locks.clone(), stop.clone(), grants.clone());
            workers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // Six stores live beside each other, and beside other tests.
                    let pause = rand::rng().random_range(0..200);
                    sleep(Duration::from_millis(pause)).await;
                    match step(&locks).await {
                        Ok(count) => grants.fetch_add(count, Ordering::Relaxed),
                        // The store is away for a while: no tight loop.
                        Err(_) => {
                            sleep(Duration::from_millis(20)).await;
                            0
                        }
                    };
                }
            });
        }
        let ends = Instant::now() + PERIOD;
        fault.await;
        tokio::time::sleep_until(ends).await;
        stop.store(true, Ordering::Relaxed);
        timeout(REST, workers.join_all()).await.expect("each step ends");
        grants.load(Ordering::Relaxed)
    }

    /// What services do: waits with a limit, tries, readers, permits, guards that are dropped, futures that are
    /// dropped; and, where the store has them, counters.
    async fn step(locks: &Locks) -> Result<u64> {
        let (name, what, hold) = {
            let mut random = rand::rng();
            (
                format!("lock-{}", random.random_range(0..LOCKS)),
                random.random_range(0..10),
                random.random_range(0..5),
            )
        };
        let limit = Duration::from_secs(2);
        let guard = match what {
            0 => locks.rw_lock(&name).read().wait_at_most(limit).acquire().await?,
            1 => locks.lock(&name).local_handoffs(16).wait_at_most(limit).acquire().await?,
            2 => match locks.lock(&name).try_acquire().await? {
                Some(guard) => guard,
                None => return Ok(0),
            },
            3 => {
                let dropped = locks.lock(&name);
                let _ = timeout(Duration::from_millis(1), dropped.acquire()).await;
                return Ok(0);
            }
            4 if locks.profile().cells.is_some() => {
                locks.counter("counted").add(1).await?;
                return Ok(1);
            }
            _ => locks.lock(&name).wait_at_most(limit).acquire().await?,
        };
        sleep(Duration::from_millis(hold)).await;
        match what {
            5 => drop(guard),
            _ => guard.release().await?,
        }
        Ok(1)
    }

    /// What this process and the servers use when nothing is asked for.
    #[derive(Debug)]
    struct Sample {
        grants: u64,
        memory_kib: u64,
        descriptors: usize,
        threads: usize,
        tasks: usize,
        store_bytes: u64,
    }

    impl Sample {
        async fn at_rest(deployment: &dyn Deployment, grants: u64) -> Sample {
            let deadline = Instant::now() + REST;
            loop {
                let left = deployment.leftovers().await.expect("the servers are asked");
                if left.is_empty() {
                    break;
                }
                assert!(Instant::now() < deadline, "left in the store at rest: {left:?}");
                sleep(Duration::from_millis(100)).await;
            }
            let entries = |path: &str| std::fs::read_dir(path).expect("proc").count();
            let status = std::fs::read_to_string("/proc/self/status").expect("proc");
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = resident.and_then(|line| line.trim().split(' ').next()?.parse().ok());
            Sample {
                grants,
                memory_kib: kib.expect("a number of KiB"),
                descriptors: entries("/proc/self/fd"),
                threads: entries("/proc/self/task"),
                tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
                store_bytes: deployment.meter().await.expect("a meter").memory_bytes.unwrap_or(0),
            }
        }
    }

    /// The last quarter uses no more than the second one did, and in each period something was granted.
    fn assert_flat(samples: &[Sample]) {
        let quarter = samples.len() / 4;
        let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
        let most = |of: &[Sample], figure: fn(&Sample) -> u64| {
            of.iter().map(figure).max().expect("samples")
        };
        let least = |of: &[Sample], figure: fn(&Sample) -> u64| {
            of.iter().map(figure).min().expect("samples")
        };
        // Allocators and servers keep some of what a fault made them need: a twentieth and 4 MiB are no leak of an
        // hour's 300,000 grants.
        let figures: [(&str, fn(&Sample) -> u64, u64); 5] = [
            ("memory, KiB", |it| it.memory_kib, 4_096),
            ("descriptors", |it| it.descriptors as u64, 2),
            ("threads", |it| it.threads as u64, 2),
            ("tasks", |it| it.tasks as u64, 4),
            ("bytes in the store", |it| it.store_bytes, 4 << 20),
        ];
        for (what, figure, slack) in figures {
            let (before, after) = (most(early, figure), least(late, figure));
            assert!(after <= before + before / 20 + slack, "{what} grew from {before} to {after}");
        }
        assert!(samples.iter().all(|it| it.grants > 0), "a period without a grant");
    }
}
