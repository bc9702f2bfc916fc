//! A store that does what a test scripts, call by call, and remembers what it was asked and when.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, Error, ErrorKind, FencingToken,
    Liveness, LockName, Locks, Modes, Moment, Order, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Result, Scratch, Settings, Snapshot, TokenOrder, TokioClock, Ttl,
    WaiterCheck, lease_end,
};
use tokio::sync::Notify;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// What every acquisition has unless a test says otherwise, and how long a store may be silent.
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One call to the store.
pub(crate) struct Asked<T> {
    /// The claim, or the claims of a look.
    pub(crate) of: T,
    /// How many calls like it came before, of whatever claim.
    pub(crate) n: usize,
    /// When it came.
    pub(crate) at: Moment,
}

pub(crate) type One = Asked<Arc<Claim>>;
pub(crate) type Many = Asked<Vec<Arc<Claim>>>;

/// The lock is the claim's, as of the call.
pub(crate) fn granted(asked: &One) -> Result<AttemptOutcome> {
    let valid_until = lease_end(asked.at, asked.of.ttl());
    Ok(AttemptOutcome::Granted { token: FencingToken::new(asked.of.id()), valid_until })
}

pub(crate) fn waiting(check_after: Duration) -> Result<AttemptOutcome> {
    Ok(AttemptOutcome::Waiting { check_after })
}

/// It is still held, as of the call.
pub(crate) fn renewed(asked: &One) -> Result<RenewOutcome> {
    Ok(RenewOutcome::Renewed { valid_until: lease_end(asked.at, asked.of.ttl()) })
}

/// Nobody of them needs to do anything for this long.
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
    /// For the claims with these ids.
    Look(Vec<u64>),
    Clear,
    Close,
}

type Play<A, T> = Box<dyn Fn(A) -> Pin<Box<dyn Future<Output = T> + Send>> + Send + Sync>;

/// What a store will do; one that grants, renews and releases whatever it is asked to at first.
pub(crate) struct Script {
    profile: Profile,
    settings: Settings,
    clock: Arc<dyn Clock>,
    attempt: Play<One, Result<AttemptOutcome>>,
    release: Play<One, Result<ReleaseOutcome>>,
    renew: Play<One, Result<RenewOutcome>>,
    look: Play<Many, Result<Vec<WaiterCheck>>>,
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
                tokens: TokenOrder::Data,
                exclusion_fails_when: Cow::Borrowed(&[]),
            },
            settings: Settings::default(),
            clock: Arc::new(TokioClock::new()),
            attempt: Box::new(|asked| Box::pin(async move { granted(&asked) })),
            release: Box::new(|_| Box::pin(async { Ok(ReleaseOutcome::Removed) })),
            renew: Box::new(|asked| Box::pin(async move { renewed(&asked) })),
            look: Box::new(|asked| Box::pin(async move { again(&asked, SECOND) })),
            clear: Box::new(|_| Box::pin(async { Ok(()) })),
            close: Box::new(|_| Box::pin(async { Ok(()) })),
        }
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

    pub(crate) fn looks<F: Future<Output = Result<Vec<WaiterCheck>>> + Send + 'static>(
        mut self,
        play: impl Fn(Many) -> F + Send + Sync + 'static,
    ) -> Script {
        self.look = Box::new(move |asked| Box::pin(play(asked)));
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

    /// A session that is renewed this often, whatever the TTL of what it carries.
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scripted {
    pub(crate) fn now(&self) -> Moment {
        self.script.clock.now()
    }

    /// Every claim that took a seat, in order.
    pub(crate) fn claims(&self) -> Vec<Arc<Claim>> {
        locked(&self.claims).clone()
    }

    pub(crate) fn calls(&self) -> Vec<(Moment, Call)> {
        locked(&self.calls).clone()
    }

    pub(crate) fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        locked(&self.calls).iter().filter(|(_, call)| which(call)).count()
    }

    /// Waits until there have been `n` calls that `which` picks.
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
        let mut calls = locked(&self.calls);
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
    type Acquisition = ScriptedSeat;

    fn profile(&self) -> &Profile {
        &self.script.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.script.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> ScriptedSeat {
        locked(&self.claims).push(claim.clone());
        ScriptedSeat { store: self.clone(), claim }
    }

    async fn renew(&self, held: &ScriptedSeat) -> Result<RenewOutcome> {
        let asked = self.record(Call::Renew, held.claim.clone());
        (self.script.renew)(asked).await
    }

    async fn look(&self, _: &LockName, waiting: &[&ScriptedSeat]) -> Result<Vec<WaiterCheck>> {
        let waiting: Vec<_> = waiting.iter().map(|waiter| waiter.claim.clone()).collect();
        let ids = waiting.iter().map(|claim| claim.id()).collect();
        let asked = self.record(Call::Look(ids), waiting);
        (self.script.look)(asked).await
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        Ok(Snapshot::default())
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent)
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

pub(crate) struct ScriptedSeat {
    store: Arc<Scripted>,
    claim: Arc<Claim>,
}

impl Acquisition for ScriptedSeat {
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
