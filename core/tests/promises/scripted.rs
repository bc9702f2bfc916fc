//! A store that answers as a test scripts, call by call, and records the calls with their times.

use std::borrow::Cow;
use std::future::Future;
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt,
    Release,
    Renew,
    /// The ids of the claims.
    Check(Vec<u64>),
    Clear,
    Close,
}

type Play<A, T> = Box<dyn Fn(A) -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// A store's answers; by default it grants, renews and releases everything.
pub(crate) struct Script {
    profile: Profile,
    cells: Option<Cells>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    attempt: Play<One, Result<AttemptOutcome>>,
    release: Play<One, Result<ReleaseOutcome>>,
    renew: Play<One, Result<RenewOutcome>>,
    check: Play<Many, Result<Vec<WaiterCheck>>>,
    clear: Play<Asked<()>, Result<()>>,
    close: Play<Asked<()>, Result<()>>,
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
            attempt: Box::new(|asked| Box::pin(async move { granted(&asked) })),
            release: Box::new(|_| Box::pin(async { Ok(ReleaseOutcome::Removed) })),
            renew: Box::new(|asked| Box::pin(async move { renewed(&asked) })),
            check: Box::new(|asked| Box::pin(async move { again(&asked, SECOND) })),
            clear: Box::new(|_| Box::pin(async { Ok(()) })),
            close: Box::new(|_| Box::pin(async { Ok(()) })),
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

    pub(crate) fn attempts<F: Future<Output = Result<AttemptOutcome>> + Send + 'static>(
        mut self,
        play: impl Fn(One) -> F + Send + Sync + 'static,
    ) -> Script {
        self.attempt = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    pub(crate) fn releases<F: Future<Output = Result<ReleaseOutcome>> + Send + 'static>(
        mut self,
        play: impl Fn(One) -> F + Send + Sync + 'static,
    ) -> Script {
        self.release = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    pub(crate) fn renewals<F: Future<Output = Result<RenewOutcome>> + Send + 'static>(
        mut self,
        play: impl Fn(One) -> F + Send + Sync + 'static,
    ) -> Script {
        self.renew = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    pub(crate) fn checks<F: Future<Output = Result<Vec<WaiterCheck>>> + Send + 'static>(
        mut self,
        play: impl Fn(Many) -> F + Send + Sync + 'static,
    ) -> Script {
        self.check = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    pub(crate) fn closes<F: Future<Output = Result<()>> + Send + 'static>(
        mut self,
        play: impl Fn(Asked<()>) -> F + Send + Sync + 'static,
    ) -> Script {
        self.close = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    pub(crate) fn clears<F: Future<Output = Result<()>> + Send + 'static>(
        mut self,
        play: impl Fn(Asked<()>) -> F + Send + Sync + 'static,
    ) -> Script {
        self.clear = Box::new(move |asked| Box::pin(play(asked)));
        self
    }

    /// A session that is renewed at this interval, whatever the TTL of its locks.
    pub(crate) fn session(mut self, heartbeat: Duration) -> Script {
        self.profile.liveness = Liveness::Session(10 * heartbeat);
        self.profile.renewal = RenewalPlan::Every(heartbeat);
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

    pub(crate) fn connect(self) -> (Arc<Scripted>, Locks) {
        let settings = self.settings.clone();
        let store = Arc::new(Scripted {
            script: self,
            calls: Mutex::default(),
            claims: Mutex::default(),
            changed: Notify::new(),
        });
        let locks = Locks::new(store.clone(), "scripted://", settings).unwrap();
        (store, locks)
    }
}

pub(crate) struct Scripted {
    script: Script,
    calls: Mutex<Vec<(Moment, Call)>>,
    claims: Mutex<Vec<Arc<Claim>>>,
    changed: Notify,
}

impl Scripted {
    pub(crate) fn now(&self) -> Moment {
        self.script.clock.now()
    }

    /// Every claim, in the order of their beginning.
    pub(crate) fn claims(&self) -> Vec<Arc<Claim>> {
        self.claims.lock().clone()
    }

    pub(crate) fn calls(&self) -> Vec<(Moment, Call)> {
        self.calls.lock().clone()
    }

    pub(crate) fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.calls.lock().iter().filter(|(_, call)| which(call)).count()
    }

    /// Waits until there have been `n` calls that match `which`.
    pub(crate) async fn until(&self, n: usize, which: impl Fn(&Call) -> bool) {
        loop {
            let changed = self.changed.notified();
            if self.count(&which) >= n {
                return;
            }
            changed.await;
        }
    }

    fn record<T>(&self, call: Call, of: T) -> Asked<T> {
        let at = self.now();
        let mut calls = self.calls.lock();
        let alike = |(_, other): &&(Moment, Call)| {
            std::mem::discriminant(other) == std::mem::discriminant(&call)
        };
        let n = calls.iter().filter(alike).count();
        calls.push((at, call));
        drop(calls);
        self.changed.notify_waiters();
        Asked { of, n, at }
    }
}

impl DistributedLock for Scripted {
    type Acquisition = ScriptedAcquisition;

    fn profile(&self) -> &Profile {
        &self.script.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.script.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> ScriptedAcquisition {
        self.claims.lock().push(claim.clone());
        ScriptedAcquisition { store: self.clone(), claim }
    }

    async fn renew(&self, held: &ScriptedAcquisition) -> Result<RenewOutcome> {
        let asked = self.record(Call::Renew, held.claim.clone());
        (self.script.renew)(asked).await
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&ScriptedAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let waiting: Vec<_> = waiting.iter().map(|waiter| waiter.claim.clone()).collect();
        let ids = waiting.iter().map(|claim| claim.id()).collect();
        let asked = self.record(Call::Check(ids), waiting);
        (self.script.check)(asked).await
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        Ok(Snapshot::default())
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent)
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        self.script.cells.clone()
    }

    async fn clear(&self, _: &Scratch) -> Result<()> {
        let asked = self.record(Call::Clear, ());
        (self.script.clear)(asked).await
    }

    async fn close(&self) -> Result<()> {
        let asked = self.record(Call::Close, ());
        (self.script.close)(asked).await
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
        let asked = self.store.record(Call::Attempt, self.claim.clone());
        (self.store.script.attempt)(asked).await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let asked = self.store.record(Call::Release, self.claim.clone());
        (self.store.script.release)(asked).await
    }
}
