//! A store that answers what a test says, when the test says, and remembers what it was
//! asked: for races that random runs reach too seldom.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::pending;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, Error, ErrorKind, FencingToken,
    Liveness, LockName, Locks, Modes, Moment, Order, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Result, Settings, Snapshot, TokenOrder, TokioClock, Ttl,
    WaiterCheck, lease_end,
};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// What the backend does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Step<T> {
    Now(Result<T>),
    After(Duration, Result<T>),
    Never,
    Panic,
    /// Keeps its thread until the test lets it go, then answers.
    Blocks(Arc<Stall>, Result<T>),
}

/// What a backend does that blocks its thread.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    state: Mutex<Stalled>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stalled {
    begun: bool,
    over: bool,
}

impl Stall {
    pub(crate) fn block(&self) {
        let mut state = locked(&self.state);
        state.begun = true;
        while !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        locked(&self.state).begun
    }

    pub(crate) fn end(&self) {
        locked(&self.state).over = true;
        self.changed.notify_all();
    }
}

impl<T> Step<T> {
    async fn play(self) -> Result<T> {
        match self {
            Step::Now(answer) => answer,
            Step::After(delay, answer) => {
                sleep(delay).await;
                answer
            }
            Step::Never => pending().await,
            Step::Panic => panic!("the backend panics on the test's order"),
            Step::Blocks(stall, answer) => {
                stall.block();
                answer
            }
        }
    }
}

/// One request as the backend got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt(u64),
    /// Of a claim that had ended already, as it must be: `is_held` is false before the store can
    /// give the lock on.
    Release(u64),
    /// Of a claim that a client may still believe to hold.
    ReleaseTooEarly(u64),
    Renew(u64),
    /// The number of waiters.
    Check(usize),
    Close,
}

type Script<T, R> = Arc<dyn Fn(T, u64) -> R + Send + Sync>;
type Claims = Vec<Arc<Claim>>;
type Sharded = Arc<dyn Fn(&Claim) -> u64 + Send + Sync>;
type Begun = Arc<dyn Fn(&Claim) + Send + Sync>;

pub(crate) struct Scripted {
    clock: TokioClock,
    profile: Profile,
    begin: Mutex<Begun>,
    inspect: Mutex<Step<Snapshot>>,
    attempt: Mutex<Script<Arc<Claim>, Step<AttemptOutcome>>>,
    release: Mutex<Script<Arc<Claim>, Step<ReleaseOutcome>>>,
    renew: Mutex<Script<Arc<Claim>, Step<RenewOutcome>>>,
    check: Mutex<Script<Claims, Step<Vec<WaiterCheck>>>>,
    shard: Mutex<Sharded>,
    seen: Mutex<Seen>,
    changed: Notify,
}

#[derive(Default)]
struct Seen {
    calls: Vec<(Moment, Call)>,
    /// How many there were, by kind and claim.
    counts: BTreeMap<(u8, u64), u64>,
    claims: Vec<Arc<Claim>>,
}

/// What `event` returns. On a paused clock that is months at most: a test that waits for what never
/// happens fails, and does not hang.
pub(crate) async fn in_the_end<T>(event: impl Future<Output = T>) -> T {
    timeout(10_000_000 * SECOND, event).await.expect("it never happens")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Of every lock of a scripted store, unless a test says otherwise: renewed each second.
pub(crate) const TTL: Duration = Duration::from_secs(3);

pub(crate) fn unreachable() -> Error {
    Error::new(ErrorKind::Unreachable, "the reply was lost")
}

impl Scripted {
    /// A store that grants, renews and releases whatever it is asked to.
    pub(crate) fn new(liveness: Liveness, renewal: RenewalPlan) -> Arc<Scripted> {
        let profile = Profile {
            store: "scripted",
            reach: Reach::Network,
            liveness,
            renewal,
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            downgrade: false,
            tokens: TokenOrder::Data,
            max_local_handoffs: 1,
            cells: None,
            exclusion_fails_when: Cow::Borrowed(&[]),
        };
        let store = Arc::new(Scripted {
            clock: TokioClock::new(),
            profile,
            begin: Mutex::new(Arc::new(|_| {})),
            inspect: Mutex::new(Step::Now(Ok(Snapshot::default()))),
            attempt: Mutex::new(Arc::new(|_, _| Step::Never)),
            release: Mutex::new(Arc::new(|_, _| Step::Now(Ok(ReleaseOutcome::Removed)))),
            renew: Mutex::new(Arc::new(|_, _| Step::Never)),
            check: Mutex::new(Arc::new(|waiting, _| {
                Step::Now(Ok(vec![WaiterCheck::Again(SECOND); waiting.len()]))
            })),
            shard: Mutex::new(Arc::new(|_| 0)),
            seen: Mutex::default(),
            changed: Notify::new(),
        });
        store.on_attempt(|store, claim, _| Step::Now(Ok(store.grant(&claim))));
        store.on_renew(|store, claim, _| Step::Now(Ok(store.renewed(&claim))));
        store
    }

    pub(crate) fn leases() -> Arc<Scripted> {
        Scripted::new(Liveness::Lease, RenewalPlan::ThirdOfTtl)
    }

    pub(crate) fn locks(self: &Arc<Self>) -> Locks {
        let ttl = Ttl::new(TTL).expect("a sensible TTL");
        let settings = Settings::default().ttl(ttl).unreachable_after(5 * SECOND);
        let settings = settings.expect("a sensible bound");
        Locks::new(self.clone(), "scripted://", settings).expect("inside a runtime")
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A grant asked for now.
    pub(crate) fn grant(&self, claim: &Claim) -> AttemptOutcome {
        let valid_until = lease_end(self.now(), claim.ttl());
        AttemptOutcome::Granted { token: FencingToken::new(claim.id()), valid_until }
    }

    /// A renewal asked for now.
    pub(crate) fn renewed(&self, claim: &Claim) -> RenewOutcome {
        RenewOutcome::Renewed { valid_until: lease_end(self.now(), claim.ttl()) }
    }

    /// What happens while a claim begins.
    pub(crate) fn on_begin(&self, script: impl Fn(&Claim) + Send + Sync + 'static) {
        *locked(&self.begin) = Arc::new(script);
    }

    /// What every inspection gets.
    pub(crate) fn on_inspect(&self, step: Step<Snapshot>) {
        *locked(&self.inspect) = step;
    }

    /// What the `n`-th attempt of a claim gets, from 0.
    pub(crate) fn on_attempt(
        self: &Arc<Self>,
        script: impl Fn(&Scripted, Arc<Claim>, u64) -> Step<AttemptOutcome> + Send + Sync + 'static,
    ) {
        let store = Arc::downgrade(self);
        *locked(&self.attempt) = Arc::new(move |claim, n| match store.upgrade() {
            Some(store) => script(&store, claim, n),
            None => Step::Never,
        });
    }

    /// What the `n`-th release of a claim gets, from 0.
    pub(crate) fn on_release(
        &self,
        script: impl Fn(u64) -> Step<ReleaseOutcome> + Send + Sync + 'static,
    ) {
        *locked(&self.release) = Arc::new(move |_, n| script(n));
    }

    /// What the `n`-th renewal of any claim gets, from 0.
    pub(crate) fn on_renew(
        self: &Arc<Self>,
        script: impl Fn(&Scripted, Arc<Claim>, u64) -> Step<RenewOutcome> + Send + Sync + 'static,
    ) {
        let store = Arc::downgrade(self);
        *locked(&self.renew) = Arc::new(move |claim, n| match store.upgrade() {
            Some(store) => script(&store, claim, n),
            None => Step::Never,
        });
    }

    /// What the `n`-th check of waiters gets, from 0.
    pub(crate) fn on_check(
        &self,
        script: impl Fn(&[Arc<Claim>], u64) -> Step<Vec<WaiterCheck>> + Send + Sync + 'static,
    ) {
        *locked(&self.check) = Arc::new(move |waiting, n| script(&waiting, n));
    }

    /// The shard to which each claim belongs.
    pub(crate) fn on_shard(&self, script: impl Fn(&Claim) -> u64 + Send + Sync + 'static) {
        *locked(&self.shard) = Arc::new(script);
    }

    /// The `n`-th claim that began, from 0.
    pub(crate) fn claim(&self, n: usize) -> Arc<Claim> {
        locked(&self.seen).claims[n].clone()
    }

    /// Forgets the claims, which would keep each other alive.
    pub(crate) fn forget_claims(&self) {
        locked(&self.seen).claims.clear();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        locked(&self.seen).calls.iter().map(|(_, call)| *call).collect()
    }

    /// When each call that `which` picks came.
    pub(crate) fn times(&self, which: impl Fn(Call) -> bool) -> Vec<Moment> {
        let seen = locked(&self.seen);
        seen.calls.iter().filter(|(_, call)| which(*call)).map(|(at, _)| *at).collect()
    }

    pub(crate) fn count(&self, which: impl Fn(Call) -> bool) -> usize {
        self.times(which).len()
    }

    /// Waits until there have been `n` calls that `which` picks.
    pub(crate) async fn until(&self, n: usize, which: impl Fn(Call) -> bool) {
        let called = async {
            loop {
                let changed = self.changed.notified();
                if self.count(&which) >= n {
                    return;
                }
                changed.await;
            }
        };
        in_the_end(called).await;
    }

    /// Writes a call down; how many like it there have been before.
    fn record(&self, call: Call) -> u64 {
        let key = match call {
            Call::Attempt(id) => (0, id),
            Call::Release(id) | Call::ReleaseTooEarly(id) => (1, id),
            Call::Renew(_) => (2, 0),
            Call::Check(_) => (3, 0),
            Call::Close => (4, 0),
        };
        let mut seen = locked(&self.seen);
        seen.calls.push((self.clock.now(), call));
        let count = seen.counts.entry(key).or_default();
        *count += 1;
        let before = *count - 1;
        self.changed.notify_waiters();
        before
    }
}

impl DistributedLock for Scripted {
    type Acquisition = ScriptedAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> ScriptedAcquisition {
        let script = locked(&self.begin).clone();
        script(&claim);
        locked(&self.seen).claims.push(claim.clone());
        ScriptedAcquisition { store: self.clone(), claim }
    }

    fn shard(&self, acquisition: &ScriptedAcquisition) -> impl Eq + Hash + Send {
        let script = locked(&self.shard).clone();
        script(&acquisition.claim)
    }

    async fn renew(&self, held: &ScriptedAcquisition) -> Result<RenewOutcome> {
        let n = self.record(Call::Renew(held.claim.id()));
        let script = locked(&self.renew).clone();
        let step = script(held.claim.clone(), n);
        step.play().await
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&ScriptedAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let n = self.record(Call::Check(waiting.len()));
        let script = locked(&self.check).clone();
        let step = script(waiting.iter().map(|waiter| waiter.claim.clone()).collect(), n);
        step.play().await
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        let step = locked(&self.inspect).clone();
        step.play().await
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent)
    }

    async fn close(&self) -> Result<()> {
        self.record(Call::Close);
        Ok(())
    }
}

pub(crate) struct ScriptedAcquisition {
    store: Arc<Scripted>,
    claim: Arc<Claim>,
}

impl Acquisition for ScriptedAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let n = self.store.record(Call::Attempt(self.claim.id()));
        let script = locked(&self.store.attempt).clone();
        let step = script(self.claim.clone(), n);
        step.play().await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let call = match self.claim.is_over() {
            true => Call::Release(self.claim.id()),
            false => Call::ReleaseTooEarly(self.claim.id()),
        };
        let n = self.store.record(call);
        let script = locked(&self.store.release).clone();
        let step = script(self.claim.clone(), n);
        step.play().await
    }
}
