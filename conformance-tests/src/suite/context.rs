//! The environment of a behaviour: clients of one store, names, bounds for waiting, and a seed.
//!
//! Behaviours wait for events, each within [`Context::patience`], and name them, so that a hang is
//! a failure with a reason. The bound is generous: it is not a guarantee of the store, and only
//! distinguishes late on a busy machine from never.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{
    Error, ErrorKind, Guard, Liveness, Locks, Moment, Profile, Result, Snapshot, Ttl,
};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{Harness, Params, Store};
use crate::history::Event;
use crate::history::checker::{Rules, assert_clean, check};
use crate::network_fault::NetworkFault;
use crate::processes::peer::{Peer, this_program};
use crate::suite::waiting::{self, CHECK_EVERY, Waiter};
use crate::time::clock::{ServerClock, booted_earlier};
use crate::time::frozen_runtime::FrozenRuntime;

/// One behaviour's run on one store.
pub struct Context {
    harness: Arc<dyn Harness>,
    store: Arc<dyn Store>,
    base: Params,
    profile: Profile,
    patience: Duration,
    seed: u64,
    names: Mutex<BTreeSet<String>>,
    clients: Mutex<Vec<Locks>>,
    step: Mutex<String>,
    failed_finally: AtomicBool,
}

/// How many names are inspected at the same time.
const INSPECTED_AT_ONCE: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    pub(crate) async fn open(
        harness: Arc<dyn Harness>,
        patience: Duration,
        seed: u64,
    ) -> Result<Context> {
        // Not from the seed: two runs with one seed must not share names in a persistent store.
        let prefix = format!("{}{:016x}:", harness.stem(), crate::seed::fresh());
        let store: Arc<dyn Store> = Arc::from(harness.open(&prefix).await?);
        let base = Params::under(&prefix);
        let first = store.connect(&base).await?;
        Ok(Context {
            harness,
            profile: first.profile().clone(),
            store,
            base,
            patience,
            seed,
            names: Mutex::default(),
            clients: Mutex::new(vec![first]),
            step: Mutex::default(),
            failed_finally: AtomicBool::new(false),
        })
    }

    /// A client with the usual parameters. It stays connected until the behaviour's end.
    pub async fn client(&self) -> Locks {
        self.client_with(|_| {}).await
    }

    /// The name of a lock, and a client.
    pub(crate) async fn lock_of_one(&self) -> (String, Locks) {
        (self.name("lock"), self.client().await)
    }

    /// The name of a lock, and two clients.
    pub(crate) async fn lock_of_two(&self) -> (String, Locks, Locks) {
        (self.name("lock"), self.client().await, self.client().await)
    }

    /// As [`client`](Context::client), with other parameters.
    pub async fn client_with(&self, change: impl FnOnce(&mut Params)) -> Locks {
        let mut params = self.base.clone();
        change(&mut params);
        let locks = self.connect(&params).await;
        lock(&self.clients).push(locks.clone());
        locks
    }

    /// A client that is not closed at the behaviour's end.
    pub async fn connect(&self, params: &Params) -> Locks {
        let connected = self.soon("a client connects", self.store.connect(params)).await;
        connected.expect("the store connects")
    }

    /// A client that lives on `frozen_runtime`, and is frozen with it.
    pub async fn client_on(&self, frozen_runtime: &FrozenRuntime) -> Locks {
        let (store, params) = (self.store.clone(), self.base.clone());
        let connecting = frozen_runtime.run(async move { store.connect(&params).await });
        let connected = self.soon("a client connects on a frozen runtime", connecting).await;
        connected.expect("the store connects")
    }

    /// Another process that is a client of this store.
    pub async fn peer(&self) -> Peer {
        self.peer_as(Command::new(this_program().expect("a program"))).await
    }

    /// Another process, with a wall clock of its own.
    pub(crate) async fn peer_with_clock(&self) -> (Peer, ServerClock) {
        let clock = Peer::clock().expect("a clock of its own");
        (self.peer_as(Command::new(clock.program())).await, clock)
    }

    /// Another process, as on a machine that booted so much earlier.
    pub(crate) async fn peer_booted_earlier(&self, by: Duration) -> Peer {
        let mut command = booted_earlier(by).expect("a boot time of its own");
        command.arg(this_program().expect("a program"));
        self.peer_as(command).await
    }

    async fn peer_as(&self, program: Command) -> Peer {
        let address = self.store.peer_address();
        let starting = Peer::start_as(program, self.harness.name(), &address, &self.base);
        let started = self.soon("a peer process connects", starting).await;
        started.unwrap_or_else(|error| panic!("no peer process: {error}"))
    }

    /// The usual parameters, with this behaviour's prefix.
    #[must_use]
    pub fn params(&self) -> Params {
        self.base.clone()
    }

    /// The store under test, with its backdoors.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Applies `fault` to the connections of all clients.
    ///
    /// # Panics
    /// When the harness cannot.
    pub async fn inject_fault(&self, fault: NetworkFault) {
        self.store.inject_fault(fault).await.expect("the fault is injected");
    }

    /// Ends all network faults.
    ///
    /// # Panics
    /// When the harness cannot.
    pub async fn heal(&self) {
        self.store.heal().await.expect("healed");
    }

    /// The store's profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// A lock name for this behaviour. It must be free at the behaviour's end.
    pub fn name(&self, name: &str) -> String {
        lock(&self.names).insert(name.to_owned());
        name.to_owned()
    }

    /// The bound of an event that should happen at once.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// How long the store may keep the lock of a holder that stopped responding.
    #[must_use]
    pub fn silence_frees_within(&self, ttl: Duration) -> Duration {
        let promise = match self.profile.liveness {
            Liveness::Process => Duration::ZERO,
            Liveness::Lease => ttl,
            Liveness::Session(session) => session,
        };
        promise + self.patience
    }

    /// The longest TTL that the store accepts.
    #[must_use]
    pub fn longest_ttl(&self) -> Duration {
        self.profile.longest_ttl.min(Ttl::MAX)
    }

    /// A generator that repeats with the seed.
    #[must_use]
    pub fn random(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }

    /// The seed of this run's random choices.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Awaits an event that should happen at once.
    ///
    /// # Panics
    /// When it does not happen within [`patience`](Context::patience).
    pub async fn soon<T>(&self, what: &str, event: impl Future<Output = T>) -> T {
        self.within(self.patience, what, event).await
    }

    /// Awaits an event that should happen within `bound`.
    ///
    /// # Panics
    /// When it does not.
    pub async fn within<T>(
        &self,
        bound: Duration,
        what: &str,
        event: impl Future<Output = T>,
    ) -> T {
        self.step(what);
        waiting::within(bound, what, event).await
    }

    /// Awaits a condition that no event announces.
    ///
    /// # Panics
    /// When it is not met within [`patience`](Context::patience).
    pub async fn until(&self, what: &str, condition: impl AsyncFnMut() -> bool) {
        self.until_within(self.patience, what, condition).await;
    }

    /// As [`until`](Context::until), with another bound.
    ///
    /// # Panics
    /// When it is not met within `bound`.
    pub async fn until_within(
        &self,
        bound: Duration,
        what: &str,
        condition: impl AsyncFnMut() -> bool,
    ) {
        self.step(what);
        waiting::until_within(bound, what, condition).await;
    }

    /// Awaits that the store reports `count` waiters for `name`.
    ///
    /// # Panics
    /// When it does not.
    pub async fn until_queued(&self, locks: &Locks, name: &str, count: usize) {
        self.step(&format!("{count} claims wait for {name:?}"));
        waiting::until_queued_within(self.patience, locks, name, count).await;
    }

    /// Awaits that `name` is free: neither holder nor waiter.
    ///
    /// # Panics
    /// When it is not.
    pub async fn until_free(&self, locks: &Locks, name: &str) {
        self.step(&format!("{name:?} is free"));
        waiting::until_free_within(self.patience, locks, name).await;
    }

    /// Awaits that `locks` see this of `name`. A failed request is repeated.
    ///
    /// # Panics
    /// When they do not.
    pub async fn until_seen(
        &self,
        what: &str,
        locks: &Locks,
        name: &str,
        wanted: impl Fn(&Snapshot) -> bool,
    ) {
        self.step(what);
        waiting::until_seen(self.patience, what, locks, name, wanted).await;
    }

    /// Acquires `name` exclusively, at once.
    ///
    /// # Panics
    /// When that fails.
    pub async fn acquire(&self, locks: &Locks, name: &str) -> Guard {
        self.step(&format!("{name:?} is acquired"));
        waiting::acquire_within(self.patience, locks, name).await
    }

    /// Awaits the grant of a [waiter](waiting::spawn_waiter).
    ///
    /// # Panics
    /// When it is not granted.
    pub async fn until_granted(&self, what: &str, waiter: Waiter) -> Guard {
        self.step(what);
        waiting::until_granted_within(self.patience, what, waiter).await
    }

    /// Releases `guard`, at once.
    ///
    /// # Panics
    /// When that fails.
    pub async fn release(&self, guard: Guard) {
        self.step(&format!("{} is released", guard.name()));
        waiting::release_within(self.patience, guard).await;
    }

    /// Sleeps until `moment` on the clock of `locks`' store.
    pub async fn sleep_until(&self, locks: &Locks, moment: Moment) {
        self.step("time passes");
        loop {
            let now = locks.now();
            if now >= moment {
                return;
            }
            sleep(moment.duration_since(now)).await;
        }
    }

    /// Asserts a condition that no delay excuses, so that a failure is final.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_final(&self, is_kept: bool, what: impl FnOnce() -> String) {
        if !is_kept {
            self.failed_finally.store(true, Ordering::Relaxed);
            panic!("{}", what());
        }
    }

    pub(crate) fn has_failed_finally(&self) -> bool {
        self.failed_finally.load(Ordering::Relaxed)
    }

    /// Checks a history.
    ///
    /// # Panics
    /// When it violates the rules.
    pub fn assert_history(&self, events: Vec<Event>, rules: Rules) {
        let at_any_pace = Rules { granted_within: None, ..rules };
        if !check(events.clone(), at_any_pace).is_empty() {
            self.failed_finally.store(true, Ordering::Relaxed);
        }
        assert_clean(events, rules);
    }

    fn step(&self, what: &str) {
        what.clone_into(&mut lock(&self.step));
    }

    pub(crate) fn last_step(&self) -> String {
        lock(&self.step).clone()
    }

    /// After the behaviour: nothing may be left, by `inspect` and by the harness's own
    /// inspection.
    pub(crate) async fn audit(&self) -> Result<(), String> {
        let audited = timeout(self.patience * 2, self.nothing_left()).await;
        let left = audited.map_err(|_| "the store did not answer".to_owned());
        left.and_then(|left| left.map_err(|error| error.to_string()))
            .map_err(|error| format!("afterwards, looking for leftovers: {error}"))
    }

    async fn nothing_left(&self) -> Result<()> {
        let auditor = self.store.connect(&self.base).await?;
        let names = lock(&self.names).clone();
        let deadline = Instant::now() + self.patience;
        loop {
            let error = match self.left(&auditor, &names).await {
                Ok(left) if left.is_empty() => return auditor.close().await,
                Ok(left) => Error::new(ErrorKind::Busy, format!("{} still there", left.join(", "))),
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error),
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            sleep(CHECK_EVERY).await;
        }
    }

    async fn left(&self, auditor: &Locks, names: &BTreeSet<String>) -> Result<Vec<String>> {
        let mut left = Vec::new();
        // A thousand names, one after the other, would take a busy server too long.
        let requests = names.iter().map(async |name| Ok((name, auditor.inspect(name).await?)));
        let mut answers = stream::iter(requests).buffer_unordered(INSPECTED_AT_ONCE);
        while let Some((name, seen)) = answers.try_next().await? {
            left.extend(seen.holders.iter().map(|it| format!("a holder of {name:?}: {it:?}")));
            left.extend(seen.waiters.iter().map(|it| format!("a waiter for {name:?}: {it:?}")));
        }
        if self.store.backdoors().contains(&crate::Backdoor::Inspect) {
            left.extend(self.store.leftovers().await?);
        }
        Ok(left)
    }

    /// Closes the clients. Errors are ignored: a behaviour may have closed them.
    pub(crate) async fn close(&self) {
        let clients = std::mem::take(&mut *lock(&self.clients));
        for client in clients {
            let _ = timeout(self.patience, client.close()).await;
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("store", &self.profile.store)
            .field("seed", &self.seed)
            .field("step", &self.last_step())
            .finish_non_exhaustive()
    }
}
