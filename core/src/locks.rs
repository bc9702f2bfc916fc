//! What a user calls: a connected store, a lock in it, and the options of one acquisition.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{DistributedLock, OccupantId, Removal, Snapshot};
use crate::claim::Family;
use crate::connected::Connected;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lifecycle::{Patience, Request, acquire};
use crate::mode::{Mode, Permits};
use crate::name::LockName;
use crate::observe::Meters;
use crate::options::{Settings, Ttl, hold_limit};
use crate::profile::Profile;
use crate::seat::Yard;
use crate::validity::Moment;

/// A connected store. Clones share the connection and its background work.
///
/// Dropping the last clone, and the last guard, stops the background work but waits for nothing;
/// [`close`](Locks::close) does.
#[derive(Clone)]
pub struct Locks {
    core: Arc<Connected>,
}

impl Locks {
    /// Locks in `store`, on the current tokio runtime; `shown` is the store's name in errors and
    /// must hold no secret. The runtime needs its I/O and time drivers (`enable_all`) and must be
    /// driven for as long as locks are held: it carries their renewals.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
    pub fn new(store: Arc<dyn DistributedLock>, shown: &str, settings: Settings) -> Result<Locks> {
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
        Ok(Locks { core: Arc::new(core) })
    }

    /// The lock `name`, to be held by one at a time. A name that cannot be is an error of the
    /// acquisition.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.in_mode(Family::Lock, name.as_ref(), Ok(Mode::Exclusive))
    }

    /// The lock `name`, for many readers or one writer.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { locks: self.clone(), name: name.as_ref().to_owned() }
    }

    /// The lock `name`, of which at most `limit` permits are out together. An acquisition takes
    /// one, unless [`permits`](Lock::permits) says otherwise.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        let mode = Permits::new(1, limit).map(Mode::Permits);
        self.in_mode(Family::Semaphore, name.as_ref(), mode)
    }

    fn in_mode(&self, family: Family, name: &str, mode: Result<Mode>) -> Lock {
        let settings = &self.core.settings;
        let request = LockName::with_prefix(&settings.prefix, name).and_then(|name| {
            Ok(Request {
                name,
                family,
                mode: mode?,
                ttl: settings.ttl.get(),
                renewed: true,
                hold_at_most: None,
                label: settings.label.clone(),
            })
        });
        Lock { core: self.core.clone(), request, wait: None }
    }

    /// Who holds `name` and who waits for it, as far as the store knows.
    ///
    /// # Errors
    /// As the store answers; [`ErrorKind::InvalidArgument`] for a name that cannot be.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let core = &self.core;
        let name = self.name(name.as_ref(), Operation::Inspect)?;
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
    pub async fn evict(&self, name: impl AsRef<str>, who: &OccupantId) -> Result<bool> {
        let core = &self.core;
        let name = self.name(name.as_ref(), Operation::Evict)?;
        let asked = core.ask(core.store.evict(&name, who)).await;
        let removal = asked.map_err(|error| core.explain(error, Operation::Evict, &name))?;
        Ok(removal != Removal::Absent)
    }

    fn name(&self, name: &str, doing: Operation) -> Result<LockName> {
        let name = LockName::with_prefix(&self.core.settings.prefix, name);
        name.map_err(|error| error.during(doing).with_store(&self.core.shown))
    }

    /// What the store promises.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        self.core.store.profile()
    }

    /// The present moment on the store's clock, to compare with
    /// [`Guard::valid_until`](crate::Guard::valid_until).
    #[must_use]
    pub fn now(&self) -> Moment {
        self.core.now()
    }

    /// Ends everything: new acquisitions and waiting ones get [`ErrorKind::Closed`], what is held
    /// is lost, then released, and the connection ends. Waits for releases under way, and then
    /// for the connection, each at most `unreachable_after`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when releases were not confirmed in time; their leases or the
    /// session free them.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn close(&self) -> Result<()> {
        let core = &self.core;
        core.closing.cancel();
        core.keeper.stop(core.now());
        core.yard.tasks.close();
        let drained = core.bounded(async {
            core.yard.tasks.wait().await;
            Ok(())
        });
        let drained = drained.await.map_err(|_| {
            let bound = crate::options::in_words(core.settings.unreachable_after);
            Error::new(
                ErrorKind::Unreachable,
                format!("releases were not confirmed within unreachable_after={bound}"),
            )
        });
        let closed = core.bounded(core.store.close()).await;
        let result = drained.and(closed);
        result.map_err(|error| error.during(Operation::Close).with_store(&core.shown))
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", &self.core.shown).finish_non_exhaustive()
    }
}

/// A lock for many readers or one writer. A waiting writer stops new readers.
#[derive(Clone, Debug)]
pub struct RwLock {
    locks: Locks,
    name: String,
}

impl RwLock {
    /// To be held together with other readers.
    pub fn read(&self) -> Lock {
        self.locks.in_mode(Family::ReadWrite, &self.name, Ok(Mode::Shared))
    }

    /// To be held alone.
    pub fn write(&self) -> Lock {
        self.locks.in_mode(Family::ReadWrite, &self.name, Ok(Mode::Exclusive))
    }
}

/// A lock and how it is to be acquired. It can be acquired any number of times; each acquisition
/// is an owner of its own, also against others from this value.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    core: Arc<Connected>,
    /// The first thing that cannot be, told when it is acquired.
    request: Result<Request>,
    wait: Option<Duration>,
}

impl Lock {
    fn set(mut self, change: impl FnOnce(&mut Request) -> Result<()>) -> Lock {
        self.request = self.request.and_then(|mut request| change(&mut request).map(|()| request));
        self
    }

    /// Waits no longer than `limit`; zero means not at all. Without it [`acquire`](Lock::acquire)
    /// waits for ever and [`try_acquire`](Lock::try_acquire) not at all.
    pub fn wait_at_most(mut self, limit: Duration) -> Lock {
        self.wait = Some(limit);
        self
    }

    /// How long a lease store keeps the lock if this process goes silent: 100 ms to 24 h. It is
    /// renewed at a third of that. Default: the store's `ttl`, 30 s. Stores that know when a
    /// process or session ends need none.
    pub fn ttl(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            Ok(())
        })
    }

    /// Loses the lock `limit` after the grant, whatever is renewed: 1 ms to 365 days.
    pub fn hold_at_most(self, limit: Duration) -> Lock {
        self.set(|request| {
            request.hold_at_most = Some(hold_limit(limit)?);
            Ok(())
        })
    }

    /// Holds for `ttl`, 100 ms to 24 h, without any renewal.
    pub fn fixed_lease(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            request.renewed = false;
            Ok(())
        })
    }

    /// Takes `n` permits at once, all or none. Only for a [`semaphore`](Locks::semaphore).
    pub fn permits(self, n: u32) -> Lock {
        self.set(|request| match request.mode {
            Mode::Permits(permits) => {
                request.mode = Mode::Permits(Permits::new(n, permits.limit())?);
                Ok(())
            }
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a lock in {other} mode has no permits; expected one of semaphore()"),
            )),
        })
    }

    /// Words for people who look who holds or waits, behind host and process. At most 120 bytes
    /// together.
    pub fn label(self, text: &str) -> Lock {
        self.set(|request| {
            request.label = request.label.with(text);
            Ok(())
        })
    }

    /// Waits for the lock and holds it.
    ///
    /// # Errors
    /// - [`ErrorKind::WaitTimedOut`]: the wait limit ended; [`ErrorKind::Busy`] when it is zero.
    /// - [`ErrorKind::Unreachable`]: the store gave no useful answer for `unreachable_after`, or
    ///   within the wait limit.
    /// - [`ErrorKind::Lost`]: granted, but too late to be believed in.
    /// - [`ErrorKind::InvalidArgument`], [`ErrorKind::Refused`], [`ErrorKind::Unsupported`],
    ///   [`ErrorKind::Foreign`], [`ErrorKind::Closed`]: at once. [`ErrorKind::Refused`] after
    ///   `unreachable_after` when the store refuses what it had accepted, such as a password.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind: neither a place in the queue nor a lock. The
    /// clean-up runs in the background. A place in the queue is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// println!("write with token {}", guard.fencing_token());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self) -> Result<Guard> {
        let patience = match self.wait {
            None => Patience::Unlimited,
            Some(Duration::ZERO) => Patience::None,
            Some(limit) => Patience::AtMost(limit),
        };
        self.acquire_with(patience).await
    }

    /// The lock, or `None` when it is not free: at once, or after
    /// [`wait_at_most`](Lock::wait_at_most).
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire), without the first.
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// if let Some(guard) = locks.lock("job").try_acquire().await? {
    ///     // The guard must live as long as the work: `.is_some()` would drop it at once.
    ///     guard.run(async { println!("nobody else does it") }).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        let patience = match self.wait {
            None | Some(Duration::ZERO) => Patience::None,
            Some(limit) => Patience::AtMost(limit),
        };
        match self.acquire_with(patience).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) => match error.kind() {
                ErrorKind::Busy | ErrorKind::WaitTimedOut => Ok(None),
                _ => Err(error),
            },
        }
    }

    async fn acquire_with(&self, patience: Patience) -> Result<Guard> {
        match &self.request {
            Ok(request) => acquire(&self.core, request, patience).await,
            Err(error) => {
                Err(error.clone().during(Operation::Acquire).with_store(&self.core.shown))
            }
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("store", &self.core.shown)
            .field("request", &self.request)
            .field("wait", &self.wait)
            .finish()
    }
}
