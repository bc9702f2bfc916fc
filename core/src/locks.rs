//! What a user calls: a connected store, from which the locks come.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{DistributedLock, ParticipantId, ReleaseOutcome, Snapshot};
use crate::claim::LockKind;
use crate::connect::Bound;
use crate::connected::{Connected, silent};
use crate::erased::{self, Store};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::keeper::Keeper;
use crate::lifecycle::Request;
use crate::link::Link;
use crate::lock::{Lock, RwLock};
use crate::mode::{Mode, Permits};
use crate::name::LockName;
use crate::observe::Meters;
use crate::options::{Settings, Ttl, in_words};
use crate::pace::Pace;
use crate::profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
use crate::scratch::Scratch;
use crate::seat::Yard;
use crate::validity::Moment;

/// A connected store. Clones share the connection and its background work.
///
/// Dropping the last clone, and the last guard, stops the background work but waits for nothing;
/// [`close`](Locks::close) does.
#[derive(Clone)]
pub struct Locks {
    pub(crate) link: Link,
}

/// What is known of a store that no connection has reached yet: it promises nothing.
static NOT_CONNECTED: Profile = Profile {
    store: "unknown",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Any,
    modes: Modes { shared: false, permits: false },
    tokens: TokenOrder::Process,
    exclusion_fails_when: Cow::Borrowed(&["the store is not connected yet"]),
};

/// How long ending a connection may take when what is owed to the store took the whole bound.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Locks {
    /// Locks in `store`, on the current tokio runtime; `shown` is the store's name in errors and
    /// must hold no secret. The runtime needs its I/O and time drivers (`enable_all`) and must be
    /// driven for as long as locks are held: it carries their renewals.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
    pub fn new<S: DistributedLock>(
        store: Arc<S>,
        shown: &str,
        settings: Settings,
    ) -> Result<Locks> {
        Locks::over(erased::erase(store), shown, settings)
    }

    fn over(store: Arc<dyn Store>, shown: &str, settings: Settings) -> Result<Locks> {
        let runtime = Handle::try_current().map_err(|cause| {
            let message = "a store is connected inside a tokio runtime, which carries its \
                           renewals; there is none here";
            Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
        })?;
        let keeper = Arc::new(Keeper::default());
        let (rung, ringing) = tokio::sync::mpsc::unbounded_channel();
        let closing = CancellationToken::new();
        let running = keeper.clone().run(store.clone(), ringing, closing.clone());
        let keeper_task = runtime.spawn(running).abort_handle();
        let yard = Yard {
            store: store.clone(),
            runtime,
            tasks: TaskTracker::new(),
            unreachable_after: settings.unreachable_after,
        };
        let meters = Arc::new(Meters::new(store.profile().store, settings.metrics_by_lock));
        let core = Connected {
            store,
            shown: shown.into(),
            settings,
            keeper,
            rung,
            yard: Arc::new(yard),
            closing,
            meters,
            keeper_task,
        };
        Ok(Locks::of(Arc::new(core)))
    }

    pub(crate) fn of(core: Arc<Connected>) -> Locks {
        Locks { link: Link::Connected(core) }
    }

    pub(crate) async fn into_connected(self) -> Result<Arc<Connected>> {
        self.connected().await.cloned()
    }

    async fn connected(&self) -> Result<&Arc<Connected>> {
        let bound = self.link.settings().unreachable_after;
        self.link.wait(Bound::silence(bound)).await
    }

    /// Waits until the store is connected, at most `unreachable_after`. It is so from the
    /// beginning, unless it came from `connect_lazy`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when no attempt succeeded in time, with the last one's error as
    /// its cause; they go on. What another attempt would not mend, such as
    /// [`ErrorKind::Refused`], at once; who asks again has it tried again.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ready(&self) -> Result<()> {
        let connected = self.connected().await;
        let explain =
            |error: Error| error.during(Operation::Connect).with_store(self.link.redacted_url());
        connected.map(drop).map_err(explain)
    }

    /// The lock `name`, to be held by one at a time. A name that cannot be is an error of the
    /// acquisition.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.in_mode(LockKind::Lock, name.as_ref(), Ok(Mode::Exclusive))
    }

    /// The lock `name`, for many readers or one writer.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { locks: self.clone(), name: name.as_ref().to_owned() }
    }

    /// The lock `name`, of which at most `limit` permits are out together. An acquisition takes
    /// one, unless [`permits`](Lock::permits) says otherwise.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        let mode = Permits::new(1, limit).map(Mode::Permits);
        self.in_mode(LockKind::Semaphore, name.as_ref(), mode)
    }

    pub(crate) fn in_mode(&self, family: LockKind, name: &str, mode: Result<Mode>) -> Lock {
        let settings = self.link.settings();
        let request = LockName::with_prefix(&settings.prefix, name).and_then(|name| {
            Ok(Request {
                name,
                family,
                mode: mode?,
                ttl: settings.ttl.get(),
                renewed: true,
                hold_at_most: None,
                unreachable_after: settings.unreachable_after,
                label: settings.label.clone(),
            })
        });
        Lock { link: self.link.clone(), request, wait: None, since: None }
    }

    /// Who holds `name` and who waits for it, as far as the store knows.
    ///
    /// # Errors
    /// As the store answers; [`ErrorKind::InvalidArgument`] for a name that cannot be.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let name = self.name(name.as_ref(), Operation::Inspect)?;
        let core = self.for_a_person(Operation::Inspect, &name).await?;
        let asked = core.ask(core.store.inspect(&name)).await;
        let mut seen = asked.map_err(|error| core.explain(error, Operation::Inspect, &name))?;
        for token in seen.holders.iter_mut().filter_map(|holder| holder.token.as_mut()) {
            *token = token.in_epoch(core.settings.token_epoch);
        }
        Ok(seen)
    }

    /// Takes the lock, or the place in its queue, from `who` of an [`inspect`](Locks::inspect).
    /// A holder learns of it at its next renewal, or at once where the store can tell it.
    /// `false` when `who` was gone already.
    ///
    /// # Errors
    /// As the store answers.
    ///
    /// # Cancel safety
    /// Dropped half-way, it may or may not have happened.
    pub async fn evict(&self, name: impl AsRef<str>, who: &ParticipantId) -> Result<bool> {
        let name = self.name(name.as_ref(), Operation::Evict)?;
        let core = self.for_a_person(Operation::Evict, &name).await?;
        let asked = core.ask(core.store.evict(&name, who)).await;
        let removal = asked.map_err(|error| core.explain(error, Operation::Evict, &name))?;
        Ok(removal != ReleaseOutcome::Absent)
    }

    /// Removes what locks under the names of `scratch` have left in the store, within `limit`. For
    /// tools and tests, at their end: all clients that used the names must have ended.
    ///
    /// # Errors
    /// Why something stays; [`ErrorKind::Unsupported`] where the store cannot do this.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    #[doc(hidden)]
    pub async fn clear(&self, scratch: &Scratch, limit: Duration) -> Result<()> {
        let explain =
            |error: Error| error.during(Operation::Clear).with_store(self.link.redacted_url());
        let core = self.connected().await.map_err(explain)?;
        let mut trouble = None;
        let clearing = async {
            let mut pace = Pace::start();
            loop {
                match core.store.clear(scratch).await {
                    Err(error) if error.is_retryable() => trouble = Some(error),
                    cleared => return cleared,
                }
                let pause = pace.next(&core.settings.label, 0);
                core.store.clock().sleep_until(core.now() + pause).await;
            }
        };
        let cleared = core.until(core.now() + limit, clearing).await;
        let cleared = cleared.unwrap_or_else(|| {
            let message = format!("not everything was removed within {}", in_words(limit));
            let late = Error::new(ErrorKind::Unreachable, message);
            Err(match trouble {
                Some(cause) => late.caused_by(cause),
                None => late,
            })
        });
        cleared.map_err(explain)
    }

    fn name(&self, name: &str, doing: Operation) -> Result<LockName> {
        let name = LockName::with_prefix(&self.link.settings().prefix, name);
        name.map_err(|error| error.during(doing).with_store(self.link.redacted_url()))
    }

    async fn for_a_person(&self, doing: Operation, name: &LockName) -> Result<&Arc<Connected>> {
        let connected = self.connected().await;
        connected.map_err(|error| not_connected(error, doing, name, self.link.redacted_url()))
    }

    /// What the store promises: nothing, before the first connection of `connect_lazy`. To go by
    /// it, await [`ready`](Locks::ready) first.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        self.link.get().map_or(&NOT_CONNECTED, |core| core.store.profile())
    }

    /// The present moment on the store's clock, to compare with
    /// [`Guard::valid_until`](crate::Guard::valid_until). Zero before the first connection of
    /// `connect_lazy`, when there is no guard to compare it with.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.link.get().map_or(Moment::from_nanos(0), |core| core.now())
    }

    /// Ends everything: new acquisitions and waiting ones get [`ErrorKind::Closed`], what is held
    /// is lost, then released, and the connection ends, or the attempts to make one. Waits for
    /// releases under way and for the end of the connection, together at most `unreachable_after`
    /// and a second.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when releases were not confirmed in time; their leases or the
    /// session free them.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn close(&self) -> Result<()> {
        let Some(core) = self.link.close().await else { return Ok(()) };
        core.closing.cancel();
        core.keeper.stop(core.now());
        core.yard.tasks.close();
        let unreachable_after = core.settings.unreachable_after;
        let bound = core.now() + unreachable_after;
        let drained = core.until(bound, core.yard.tasks.wait()).await.ok_or_else(|| {
            let bound = in_words(unreachable_after);
            Error::new(
                ErrorKind::Unreachable,
                format!("releases were not confirmed within unreachable_after={bound}"),
            )
        });
        // A store that has been silent for so long is not waited for as long again.
        let bound = bound.max(core.now() + LAST_WORDS);
        let closed = core.until(bound, core.store.close()).await;
        let closed = closed.unwrap_or_else(|| Err(silent(unreachable_after, None)));
        let result = drained.and(closed);
        result.map_err(|error| error.during(Operation::Close).with_store(&core.shown))
    }
}

/// Why there is no connection to do it with. An attempt to connect that was refused says so by
/// itself.
pub(crate) fn not_connected(
    error: Error,
    doing: Operation,
    name: &LockName,
    store: &Arc<str>,
) -> Error {
    match error.operation() {
        Some(_) => error,
        None => error.during(doing).on(name.as_str()).with_store(store),
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", self.link.redacted_url()).finish_non_exhaustive()
    }
}
