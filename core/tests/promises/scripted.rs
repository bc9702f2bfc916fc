//! A store that answers as a test scripts, call by call, and records the calls with their times.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, CellDurability, Cells, Claim, Clock, DistributedLock, Error,
    ErrorKind, FencingToken, Liveness, LockName, Locks, Modes, Moment, Order, ParticipantId,
    Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Result, Scratch, Settings, Snapshot,
    TokenOrder, TokioClock, Ttl, WaiterCheck, lease_end,
};
use tokio::sync::Notify;
use tokio::time::timeout;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The TTL of every acquisition unless a test sets another, and how long a store may be silent.
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A clock that can jump past its own timers, as after a pause of the whole process.
#[derive(Default)]
pub(crate) struct Jumping {
    clock: TokioClock,
    ahead: AtomicU64,
}

impl Jumping {
    pub(crate) fn jump(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap();
        self.ahead.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        self.clock.now() + Duration::from_nanos(self.ahead.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.clock.sleep_until(at)
    }
}

/// One call to the store.
pub(crate) struct Asked<T> {
    /// The claim, or the claims of a check.
    pub(crate) of: T,
    /// The number of earlier calls of this kind, of any claim.
    pub(crate) n: usize,
    /// The number of earlier calls of this kind, of the same claim.
    pub(crate) nth: usize,
    /// When it was made.
    pub(crate) at: Moment,
}

pub(crate) type One = Asked<Arc<Claim>>;
pub(crate) type Many = Asked<Vec<Arc<Claim>>>;

/// A grant, valid from the call.
pub(crate) fn granted(asked: &One) -> Result<AttemptOutcome> {
    let valid_until = lease_end(asked.at, asked.of.ttl());
    Ok(AttemptOutcome::Granted { token: FencingToken::new(asked.of.id()), valid_until })
}

pub(crate) fn waiting(check_after: Duration) -> Result<AttemptOutcome> {
    Ok(AttemptOutcome::Waiting { check_after })
}

/// The claim is still held, as of the call.
pub(crate) fn renewed(asked: &One) -> Result<RenewOutcome> {
    Ok(RenewOutcome::Renewed { valid_until: lease_end(asked.at, asked.of.ttl()) })
}

/// No claim has to attempt for this long.
pub(crate) fn again(asked: &Many, check_after: Duration) -> Result<Vec<WaiterCheck>> {
    Ok(asked.of.iter().map(|_| WaiterCheck::Again(check_after)).collect())
}

pub(crate) fn refused_connection<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "connection refused"))
}

/// A call and, where it is about claims, their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt(u64),
    /// Of a claim that had ended already, as it must be: `is_held` is false before the store can
    /// give the lock on.
    Release(u64),
    /// Of a claim that a client may still believe to hold.
    ReleaseTooEarly(u64),
    Renew(u64),
    Check(Vec<u64>),
    Clear,
    Close,
}

pub(crate) fn is_attempt(call: &Call) -> bool {
    matches!(call, Call::Attempt(_))
}

pub(crate) fn is_release(call: &Call) -> bool {
    matches!(call, Call::Release(_))
}

pub(crate) fn is_renewal(call: &Call) -> bool {
    matches!(call, Call::Renew(_))
}

pub(crate) fn is_check(call: &Call) -> bool {
    matches!(call, Call::Check(_))
}

/// What `event` returns. On a paused clock that is months at most: a test that waits for what never
/// happens fails, and does not hang.
pub(crate) async fn in_the_end<T>(event: impl Future<Output = T>) -> T {
    timeout(10_000_000 * SECOND, event).await.expect("it never happens")
}

type Play<A, T> = Arc<dyn Fn(A) -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// A store's answers; by default it grants, renews and releases everything.
#[derive(Clone)]
pub(crate) struct Script {
    profile: Profile,
    cells: Option<Cells>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    begin: Arc<dyn Fn(&Claim) + Send + Sync>,
    shard: Arc<dyn Fn(&Claim) -> u64 + Send + Sync>,
    inspect: Play<(), Result<Snapshot>>,
    attempt: Play<One, Result<AttemptOutcome>>,
    release: Play<One, Result<ReleaseOutcome>>,
    renew: Play<One, Result<RenewOutcome>>,
    check: Play<Many, Result<Vec<WaiterCheck>>>,
    clear: Play<Asked<()>, Result<()>>,
    close: Play<Asked<()>, Result<()>>,
}

/// Methods that say what the store answers to each call of a kind.
macro_rules! plays {
    ($($method:ident: $field:ident($asked:ty) -> $answer:ty;)*) => {$(
        pub(crate) fn $method<F: Future<Output = $answer> + Send + 'static>(
            mut self,
            play: impl Fn($asked) -> F + Send + Sync + 'static,
        ) -> Script {
            self.$field = Arc::new(move |asked| Box::pin(play(asked)));
            self
        }
    )*};
}

impl Script {
    pub(crate) fn new() -> Script {
        Script {
            profile: Profile {
                store: "scripted",
                reach: Reach::Network,
                liveness: Liveness::Lease,
                renewal: RenewalPlan::ThirdOfTtl,
                longest_ttl: Ttl::MAX,
                order: Order::Arrival,
                modes: Modes::ALL,
                downgrade: false,
                tokens: TokenOrder::Data,
                max_local_handoffs: 1,
                cells: None,
                exclusion_fails_when: Cow::Borrowed(&[]),
            },
            cells: None,
            settings: Settings::default(),
            clock: Arc::new(TokioClock::new()),
            begin: Arc::new(|_| {}),
            shard: Arc::new(|_| 0),
            inspect: Arc::new(|()| Box::pin(async { Ok(Snapshot::default()) })),
            attempt: Arc::new(|asked| Box::pin(async move { granted(&asked) })),
            release: Arc::new(|_| Box::pin(async { Ok(ReleaseOutcome::Removed) })),
            renew: Arc::new(|asked| Box::pin(async move { renewed(&asked) })),
            check: Arc::new(|asked| Box::pin(async move { again(&asked, SECOND) })),
            clear: Arc::new(|_| Box::pin(async { Ok(()) })),
            close: Arc::new(|_| Box::pin(async { Ok(()) })),
        }
    }

    pub(crate) fn local_handoffs(mut self, most: u32) -> Script {
        self.profile.max_local_handoffs = most;
        self
    }

    pub(crate) fn cells(mut self, cells: Cells) -> Script {
        self.profile.cells = Some(CellDurability::Data);
        self.cells = Some(cells);
        self
    }

    /// What happens while a claim begins.
    pub(crate) fn begins(mut self, play: impl Fn(&Claim) + Send + Sync + 'static) -> Script {
        self.begin = Arc::new(play);
        self
    }

    /// The shard to which each claim belongs.
    pub(crate) fn shards(mut self, play: impl Fn(&Claim) -> u64 + Send + Sync + 'static) -> Script {
        self.shard = Arc::new(play);
        self
    }

    plays! {
        inspections: inspect(()) -> Result<Snapshot>;
        attempts: attempt(One) -> Result<AttemptOutcome>;
        releases: release(One) -> Result<ReleaseOutcome>;
        renewals: renew(One) -> Result<RenewOutcome>;
        checks: check(Many) -> Result<Vec<WaiterCheck>>;
        closes: close(Asked<()>) -> Result<()>;
        clears: clear(Asked<()>) -> Result<()>;
    }

    pub(crate) fn liveness(mut self, liveness: Liveness, renewal: RenewalPlan) -> Script {
        self.profile.liveness = liveness;
        self.profile.renewal = renewal;
        self
    }

    pub(crate) fn ttl(mut self, ttl: Duration) -> Script {
        self.settings = self.settings.ttl(Ttl::new(ttl).unwrap());
        self
    }

    pub(crate) fn clock(mut self, clock: Arc<dyn Clock>) -> Script {
        self.clock = clock;
        self
    }

    pub(crate) fn unreachable_after(mut self, bound: Duration) -> Script {
        self.settings = self.settings.unreachable_after(bound).unwrap();
        self
    }

    pub(crate) fn store(self) -> Arc<Scripted> {
        Arc::new(Scripted {
            profile: self.profile.clone(),
            clock: self.clock.clone(),
            script: Mutex::new(self),
            seen: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// The same with a clock that jumps.
    pub(crate) fn jumping(self) -> (Arc<Scripted>, Locks, Arc<Jumping>) {
        let clock = Arc::new(Jumping::default());
        let (store, locks) = self.clock(clock.clone()).connect();
        (store, locks, clock)
    }

    pub(crate) fn connect(self) -> (Arc<Scripted>, Locks) {
        let store = self.store();
        let locks = store.locks();
        (store, locks)
    }
}

pub(crate) struct Scripted {
    profile: Profile,
    clock: Arc<dyn Clock>,
    script: Mutex<Script>,
    seen: Mutex<Seen>,
    changed: Notify,
}

#[derive(Default)]
struct Seen {
    calls: Vec<(Moment, Call)>,
    /// How many there were of each kind, in all and by claim.
    counts: BTreeMap<(&'static str, Option<u64>), usize>,
    claims: Vec<Arc<Claim>>,
}

impl Scripted {
    pub(crate) fn locks(self: &Arc<Self>) -> Locks {
        Locks::new(self.clone(), "scripted://", self.script().settings).unwrap()
    }

    fn script(&self) -> Script {
        self.script.lock().clone()
    }

    /// What the store answers from now on.
    pub(crate) fn change(&self, change: impl FnOnce(Script) -> Script) {
        let changed = change(self.script());
        *self.script.lock() = changed;
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Every claim, in the order of their beginning.
    pub(crate) fn claims(&self) -> Vec<Arc<Claim>> {
        self.seen.lock().claims.clone()
    }

    /// The `n`-th claim that began, from 0.
    pub(crate) fn claim(&self, n: usize) -> Arc<Claim> {
        self.seen.lock().claims[n].clone()
    }

    /// Forgets the claims, which would keep each other alive.
    pub(crate) fn forget_claims(&self) {
        self.seen.lock().claims.clear();
    }

    pub(crate) fn timed_calls(&self) -> Vec<(Moment, Call)> {
        self.seen.lock().calls.clone()
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.timed_calls().into_iter().map(|(_, call)| call).collect()
    }

    /// When each call that matches `which` came.
    pub(crate) fn times(&self, which: impl Fn(&Call) -> bool) -> Vec<Moment> {
        let seen = self.seen.lock();
        seen.calls.iter().filter(|(_, call)| which(call)).map(|(at, _)| *at).collect()
    }

    pub(crate) fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.times(which).len()
    }

    /// Waits until there have been `n` calls that match `which`.
    pub(crate) async fn until(&self, n: usize, which: impl Fn(&Call) -> bool) {
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

    fn record<T>(&self, call: Call, of: T) -> Asked<T> {
        let at = self.now();
        let (kind, id) = match &call {
            Call::Attempt(id) => ("attempt", *id),
            Call::Release(id) | Call::ReleaseTooEarly(id) => ("release", *id),
            Call::Renew(id) => ("renew", *id),
            Call::Check(_) => ("check", 0),
            Call::Clear => ("clear", 0),
            Call::Close => ("close", 0),
        };
        let mut seen = self.seen.lock();
        seen.calls.push((at, call));
        let [n, nth] = [None, Some(id)].map(|id| {
            let count = seen.counts.entry((kind, id)).or_default();
            *count += 1;
            *count - 1
        });
        drop(seen);
        self.changed.notify_waiters();
        Asked { of, n, nth, at }
    }
}

impl DistributedLock for Scripted {
    type Acquisition = ScriptedAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> ScriptedAcquisition {
        let begin = self.script().begin;
        begin(&claim);
        self.seen.lock().claims.push(claim.clone());
        ScriptedAcquisition { store: self.clone(), claim }
    }

    fn shard(&self, acquisition: &ScriptedAcquisition) -> impl Eq + Hash + Send {
        let shard = self.script().shard;
        shard(&acquisition.claim)
    }

    async fn renew(&self, held: &ScriptedAcquisition) -> Result<RenewOutcome> {
        let asked = self.record(Call::Renew(held.claim.id()), held.claim.clone());
        (self.script().renew)(asked).await
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&ScriptedAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let waiting: Vec<_> = waiting.iter().map(|waiter| waiter.claim.clone()).collect();
        let ids = waiting.iter().map(|claim| claim.id()).collect();
        let asked = self.record(Call::Check(ids), waiting);
        (self.script().check)(asked).await
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        (self.script().inspect)(()).await
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        (self.script().inspect)(()).await.map(|_| ReleaseOutcome::Absent)
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        self.script().cells
    }

    async fn clear(&self, _: &Scratch) -> Result<()> {
        let asked = self.record(Call::Clear, ());
        (self.script().clear)(asked).await
    }

    async fn close(&self) -> Result<()> {
        let asked = self.record(Call::Close, ());
        (self.script().close)(asked).await
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
        let asked = self.store.record(Call::Attempt(self.claim.id()), self.claim.clone());
        (self.store.script().attempt)(asked).await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let id = self.claim.id();
        let call = if self.claim.is_over() { Call::Release(id) } else { Call::ReleaseTooEarly(id) };
        let asked = self.store.record(call, self.claim.clone());
        (self.store.script().release)(asked).await
    }
}
