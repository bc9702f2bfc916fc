//! One process that lives for an hour with churn and faults: what it uses, and what it leaves in the store, stays
//! flat. Torture starts processes anew all the time, and would not see a leak that takes an hour.

mod long {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use fencelock::{ErrorKind, Guard, Locks, Result};
    use fencelock_conformance::waiting::until_within;
    use fencelock_testkit::deployments::{Deployment, Fault, Kind, Library, Meter, Wiring};
    use rand::RngExt as _;
    use tokio::runtime::Handle;
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
    const LOCKS: usize = 50;
    /// Each period has one fault, time in which the store recovers, time in which each step must succeed, and
    /// then rest, in which what is used is counted.
    const FAULT: Duration = Duration::from_secs(4);
    const SETTLED: Duration = Duration::from_secs(14);
    /// Within which everything that a fault has left ends: leases and sessions of 2 s, and a busy machine.
    const REST: Duration = Duration::from_secs(120);

    macro_rules! soak {
        ($($name:ident($kind:ident);)+) => {$(
            #[test]
            #[ignore = "in ./test --long: takes an hour, or SOAK_MINUTES"]
            fn $name() {
                soak(Kind::$kind);
            }
        )+};
    }
    soak! {
        memory(Memory);
        file(File);
        postgres(Postgres);
        redis(RedisAof);
        redlock(Redlock3);
        zookeeper(ZooKeeper);
    }

    fn soak(kind: Kind) {
        let minutes =
            std::env::var("SOAK_MINUTES").map_or(60, |text| text.parse().expect("minutes"));
        let built =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        built.expect("a runtime").block_on(run(kind, Duration::from_secs(60 * minutes)));
    }

    /// How long after a fault a step may fail: leases and sessions of 2 s end, connections are made anew after
    /// pauses, and a node of a quorum that has restarted takes no part for its `restart_delay` of 5 s.
    fn recovery(kind: Kind) -> Duration {
        Duration::from_secs(if kind == Kind::Redlock3 { 20 } else { 10 })
    }

    async fn run(kind: Kind, whole: Duration) {
        let deployment = kind.start(LIBRARY, Wiring::Proxied).await.expect("the servers start");
        // The connections that made the nodes of a quorum new have ended.
        sleep(Duration::from_secs(2)).await;
        let tasks_before = alive_tasks();
        let locks = (LIBRARY.connect)(&deployment.url()).await.expect("connected");
        let (began, mut samples) = (Instant::now(), Vec::new());
        let faults = deployment.faults();
        while began.elapsed() < whole || samples.len() < 8 {
            let fault = faults.get(samples.len() % faults.len().max(1)).copied();
            let period = period(kind, &*deployment, &locks, fault).await;
            let sample = Sample::at_rest(&*deployment, &period).await;
            println!("{:5.1} min, {fault:?}: {sample:?}", began.elapsed().as_secs_f64() / 60.0);
            samples.push(sample);
        }
        // A directory keeps for each lock the pipes of its most crowded moment.
        let kept_keys = if kind == Kind::File { LOCKS as u64 } else { 0 };
        assert_flat(&samples, kept_keys);
        timeout(REST, locks.close()).await.expect("it ends").expect("closed");
        nothing_is_left(&*deployment).await;
        // The task that renews ends with the last clone.
        drop(locks);
        // A ZooKeeper that is about to serve may never notice that a client has gone, and the proxy waits for it.
        if faults.contains(&Fault::ConnectionsReset) {
            let reset = deployment.inflict(Fault::ConnectionsReset, Duration::ZERO);
            reset.await.expect("a fault");
        }
        let deadline = Instant::now() + REST;
        while alive_tasks() > tasks_before {
            assert!(Instant::now() < deadline, "{} tasks, not {tasks_before}", alive_tasks());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets all workers work while `fault` happens and for some time after it.
    async fn period(
        kind: Kind,
        deployment: &dyn Deployment,
        locks: &Locks,
        fault: Option<Fault>,
    ) -> Arc<Period> {
        let period = Arc::new(Period {
            locks: locks.clone(),
            may_overlap: fault.is_some_and(|fault| deployment.may_overlap(fault)),
            is_settled: AtomicBool::default(),
            is_over: AtomicBool::default(),
            grants: AtomicU64::default(),
            additions: AtomicU64::default(),
            failed: AtomicU64::default(),
            last: std::array::from_fn(|_| Mutex::default()),
        });
        let workers: JoinSet<()> = (0..WORKERS).map(|_| period.clone().work()).collect();
        match fault {
            Some(fault) => deployment.inflict(fault, FAULT).await.expect("a fault"),
            None => sleep(FAULT).await,
        }
        sleep(recovery(kind)).await;
        let counted = || [&period.grants, &period.additions].map(|it| it.load(Ordering::Relaxed));
        let before = counted();
        period.is_settled.store(true, Ordering::Relaxed);
        sleep(SETTLED).await;
        let may_add = locks.profile().cells.is_some();
        let works = async || {
            let after = counted();
            after[0] > before[0] && (after[1] > before[1] || !may_add)
        };
        until_within(REST, &format!("grants and additions after {fault:?}"), works).await;
        period.is_over.store(true, Ordering::Relaxed);
        timeout(REST, workers.join_all()).await.expect("each step ends");
        // A disk that other tests keep busy stops a server that syncs each write for seconds.
        let failed = period.failed.load(Ordering::Relaxed);
        let granted = counted()[0] - before[0];
        assert!(
            failed <= granted / 4,
            "{failed} steps failed long after {fault:?}, {granted} did not"
        );
        // Each lock leaves what it leaves, whether a worker drew it or not since the fault.
        for lock in 0..LOCKS {
            let guard = locks.lock(name_of(lock)).wait_at_most(REST).acquire().await;
            guard.expect("the lock is free").release().await.expect("released");
        }
        period
    }

    fn name_of(lock: usize) -> String {
        format!("lock-{lock}")
    }

    /// What the workers of one period share.
    struct Period {
        locks: Locks,
        may_overlap: bool,
        is_settled: AtomicBool,
        is_over: AtomicBool,
        grants: AtomicU64,
        additions: AtomicU64,
        /// The number of steps that began long after the fault, and failed.
        failed: AtomicU64,
        /// The number of each lock's last exclusive grant.
        last: [Mutex<u64>; LOCKS],
    }

    impl Period {
        async fn work(self: Arc<Period>) {
            while !self.is_over.load(Ordering::Relaxed) {
                // Six stores live beside each other, and beside other tests.
                let pause = rand::rng().random_range(0..200);
                sleep(Duration::from_millis(pause)).await;
                let is_settled = self.is_settled.load(Ordering::Relaxed);
                match self.step().await {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::WaitTimedOut => {}
                    Err(error) => {
                        let is_late =
                            [ErrorKind::Unreachable, ErrorKind::Lost].contains(&error.kind());
                        assert!(is_late || !is_settled, "long after the fault: {error:?}");
                        self.failed.fetch_add(u64::from(is_settled), Ordering::Relaxed);
                        // The store is away for a while: no tight loop.
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }

        /// What services do: waits with a limit, tries, readers, guards that are dropped, futures that are
        /// dropped; and, where the store has them, counters.
        async fn step(&self) -> Result<()> {
            let (lock, what, hold) = {
                let mut random = rand::rng();
                let lock = random.random_range(0..LOCKS);
                (lock, random.random_range(0..10), random.random_range(0..5))
            };
            let (locks, name) = (&self.locks, name_of(lock));
            let limit = Duration::from_secs(2);
            let guard = match what {
                0 => locks.rw_lock(&name).read().wait_at_most(limit).acquire().await?,
                1 => locks.lock(&name).local_handoffs(16).wait_at_most(limit).acquire().await?,
                2 => match locks.lock(&name).try_acquire().await? {
                    Some(guard) => guard,
                    None => return Ok(()),
                },
                3 => {
                    let dropped = locks.lock(&name);
                    let _ = timeout(Duration::from_millis(1), dropped.acquire()).await;
                    return Ok(());
                }
                4 if locks.profile().cells.is_some() => {
                    locks.counter("counted").add(1).await?;
                    self.additions.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                _ => locks.lock(&name).wait_at_most(limit).acquire().await?,
            };
            let grant = self.grants.fetch_add(1, Ordering::Relaxed) + 1;
            let is_exclusive = what != 0;
            if is_exclusive {
                self.note(lock, grant, &guard);
            }
            sleep(Duration::from_millis(hold)).await;
            if is_exclusive {
                self.check(lock, grant, &guard);
            }
            match what {
                5 => drop(guard),
                // A busy machine may be late for a lease of 2 s.
                _ => match guard.release().await {
                    Err(error) if error.kind() == ErrorKind::NotHeld => {}
                    released => released?,
                },
            }
            Ok(())
        }

        /// Notes a grant, unless its guard is lost already: then another client may hold the lock.
        fn note(&self, lock: usize, grant: u64, guard: &Guard) {
            let mut last = self.last[lock].lock().expect("no panic");
            let before = std::mem::replace(&mut *last, grant);
            if !guard.is_held() {
                *last = before;
            }
        }

        /// Fails if another grant was noted while this guard was held. A guard that is lost says nothing.
        fn check(&self, lock: usize, grant: u64, guard: &Guard) {
            let last = *self.last[lock].lock().expect("no panic");
            let is_alone = last == grant || !guard.is_held() || self.may_overlap;
            assert!(is_alone, "{} was granted while it was held: {grant}, {last}", name_of(lock));
        }
    }

    fn alive_tasks() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    async fn nothing_is_left(deployment: &dyn Deployment) {
        let deadline = Instant::now() + REST;
        loop {
            let left = deployment.leftovers().await.expect("the servers are asked");
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left in the store at rest: {left:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What this process and the servers use when nothing is asked for.
    #[derive(Debug)]
    struct Sample {
        grants: u64,
        memory_kib: u64,
        descriptors: u64,
        threads: u64,
        tasks: u64,
        store: Meter,
    }

    impl Sample {
        async fn at_rest(deployment: &dyn Deployment, period: &Period) -> Sample {
            nothing_is_left(deployment).await;
            // The threads of the file store end after a second without work.
            sleep(Duration::from_secs(3)).await;
            let entries = |path: &str| std::fs::read_dir(path).expect("proc").count() as u64;
            let status = std::fs::read_to_string("/proc/self/status").expect("proc");
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = resident.and_then(|line| line.trim().split(' ').next()?.parse().ok());
            Sample {
                grants: period.grants.load(Ordering::Relaxed),
                memory_kib: kib.expect("a number of KiB"),
                descriptors: entries("/proc/self/fd"),
                threads: entries("/proc/self/task"),
                tasks: alive_tasks() as u64,
                store: deployment.meter().await.expect("a meter"),
            }
        }
    }

    /// The last quarter's least is no more than that of the second one. What a fault or a moment needed more
    /// shows in single samples, what leaks in all.
    fn assert_flat(samples: &[Sample], kept_keys: u64) {
        let quarter = samples.len() / 4;
        let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
        let grown = |figure: fn(&Sample) -> u64| {
            let least = |of: &[Sample]| of.iter().map(figure).min().expect("samples");
            (least(early), least(late))
        };
        let assert = |what: &str, (before, after): (u64, u64), slack: u64| {
            println!("{what}: {before}, then {after}");
            assert!(after <= before + slack, "{what} grew from {before} to {after}");
        };
        assert("descriptors", grown(|it| it.descriptors), 0);
        assert("threads", grown(|it| it.threads), 0);
        assert("tasks", grown(|it| it.tasks), 0);
        assert("keys in the store", grown(|it| it.store.keys.unwrap_or(0)), kept_keys);
        if samples.len() < 16 {
            println!("memory is not compared: the quarters have too few different faults");
            return;
        }
        let grants: u64 =
            samples[2 * quarter..=samples.len() - quarter].iter().map(|it| it.grants).sum();
        // Less than the smallest allocation for each grant. The constant, since an allocator's arenas and tables
        // that double do not grow evenly.
        assert("memory, KiB", grown(|it| it.memory_kib), 1_024 + grants * 16 / 1_024);
        // Servers keep some of what a fault made them need, and tables the room of dead rows.
        assert("bytes in the store", grown(|it| it.store.memory_bytes.unwrap_or(0)), 4 << 20);
    }
}
