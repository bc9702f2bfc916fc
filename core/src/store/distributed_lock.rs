//! What a backend implements: the trait [`DistributedLock`] and its value types.
//!
//! A backend does atomic steps, each bounded in time, and nothing else: waiting, retrying, renewing
//! on time, cancelling and cleaning up are done once, in this crate, for every store. The trait
//! fits a token with a TTL and a session with an ephemeral queue node equally well.
//! docs/writing-a-backend.md explains how to write one.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::store::cell_store::Cells;
use crate::store::check::Check;
use crate::store::claim::Claim;
use crate::store::profile::Profile;
use crate::store::scratch::Scratch;
use crate::time::moment::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::options::Label;
use crate::types::token::FencingToken;

/// One connected store.
///
/// Every method that sends requests must bound them in time, and be idempotent by owner token: a
/// reply can always be lost, and a repeated request must find "already mine, same fencing token" or
/// "already gone". Its futures may be dropped at any await.
///
/// The methods that return a future are implemented as `async fn`.
pub trait DistributedLock: Send + Sync + 'static {
    /// One claim in this store.
    type Acquisition: Acquisition;

    /// What this store guarantees, and when it cannot.
    fn profile(&self) -> &Profile;

    /// The clock of every [`Moment`] that this backend returns or receives.
    fn clock(&self) -> &dyn Clock;

    /// Registers `claim`. Infallible and without I/O; from here on the core guarantees that it is
    /// released.
    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> Self::Acquisition;

    /// The part of the store that answers for `acquisition`, such as a server of a cluster, or a
    /// session. A slow part delays only the claims that belong to it. By default the store is one
    /// part.
    fn shard(&self, _acquisition: &Self::Acquisition) -> impl Eq + Hash + Send {}

    /// Renews the hold of `held`. The core calls this for everything that is due at the same time,
    /// for about 100 claims of a [`shard`](Self::shard) at once, so that a backend may send such
    /// requests together. A renewal without an answer is sent again, even before this call has ended.
    /// With [`RenewalPlan::None`](crate::RenewalPlan::None), only claims that were woken are renewed.
    ///
    /// # Errors
    /// Any; it means unknown: the core retries, and the old deadline stands.
    fn renew(&self, held: &Self::Acquisition) -> impl Future<Output = Result<RenewOutcome>> + Send;

    /// The safety check of claims that wait for `lock` and whose `check_after` has passed: has a
    /// wake-up been missed, has a holder expired? Returns one result for each of `waiting`, in the
    /// same order, with one request for all of them. Waiters whose `check_after` is a second or more
    /// are checked together, at whole seconds. `waiting` is never empty, and all of it belongs to one
    /// [`shard`](Self::shard).
    ///
    /// # Errors
    /// Any; it means unknown for all of `waiting`. The same is true of a missing result for its
    /// waiter.
    fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&Self::Acquisition],
    ) -> impl Future<Output = Result<Vec<WaiterCheck>>> + Send;

    /// The holders and waiters of `name`, as far as the store knows.
    ///
    /// # Errors
    /// Why the store gave no answer.
    fn inspect(&self, name: &LockName) -> impl Future<Output = Result<Snapshot>> + Send;

    /// [`inspect`](Self::inspect) without the waiters, of which each may ask who holds, once a second: it costs the
    /// same, however many wait. By default it is `inspect`, which costs more with each of them.
    ///
    /// # Errors
    /// Why the store gave no answer.
    fn inspect_holders(&self, name: &LockName) -> impl Future<Output = Result<Snapshot>> + Send {
        self.inspect(name)
    }

    /// Takes the lock, or the place in the queue, from `who` of a snapshot, for an operator.
    ///
    /// # Errors
    /// Why the store gave no answer.
    fn evict(
        &self,
        name: &LockName,
        who: &ParticipantId,
    ) -> impl Future<Output = Result<ReleaseOutcome>> + Send;

    /// The store's cells, if it has them: `Some(Cells::of(self.clone()))`.
    fn cells(self: &Arc<Self>) -> Option<Cells> {
        None
    }

    /// The statement by which a transaction of the user, on this store's own database, makes sure that
    /// the lock is held with `token` until its end; `within` is what is left of the validity. `None`
    /// where the store is no database of the user's data.
    fn check(&self, _name: &LockName, _token: FencingToken, _within: Duration) -> Option<Check> {
        None
    }

    /// Removes everything that locks under the names of `scratch` have left in the store, fencing
    /// tokens and what is still held included, and any container that this client made for locks, if
    /// it is empty then. The clients that used the names have ended, but their last requests may
    /// still arrive, so the backend repeats until it finds nothing more. The core bounds the time. Optional:
    /// `fencelock conformance` calls it at its end.
    ///
    /// # Errors
    /// Why something remains. The core retries after a retryable error. By default
    /// [`ErrorKind::Unsupported`].
    fn clear(&self, _scratch: &Scratch) -> impl Future<Output = Result<()>> + Send {
        let message = "this store cannot remove what locks have left in it";
        std::future::ready(Err(Error::new(ErrorKind::Unsupported, message)))
    }

    /// From now on no attempt is sent that still waits in this process. [`close`](crate::Locks::close) calls it before it
    /// releases what callers await, but do not poll: an attempt behind its own release would leave the lock held.
    fn stop_attempts(&self) {}

    /// Ends connections; may be called again. When the core calls it, every claim has been released,
    /// except those whose release the store did not confirm in time: the core still repeats these
    /// releases, which from now on return `Absent` or a final error.
    ///
    /// # Errors
    /// When a connection does not end in order.
    fn close(&self) -> impl Future<Output = Result<()>> + Send;
}

/// One claim as a backend sees it, from its first attempt to its release. The core never calls
/// `attempt` and `release` at the same time, and never `attempt` after `release`; `release` may run
/// at the same time as `renew` and `check_waiters`.
///
/// As in [`DistributedLock`], the methods that return a future are implemented as `async fn`.
pub trait Acquisition: Send + Sync + 'static {
    /// The claim.
    fn claim(&self) -> &Arc<Claim>;

    /// Acquires, queues, or confirms a grant, whichever comes next. Repeatable after an ambiguous
    /// reply; may be dropped at any await.
    ///
    /// # Errors
    /// Any; the core retries after a [retryable](crate::Error::is_retryable) one.
    fn attempt(&self) -> impl Future<Output = Result<AttemptOutcome>> + Send;

    /// Releases the lock, or leaves the queue. Repeatable; may be dropped at any await.
    ///
    /// # Errors
    /// Any; the core repeats the release in the background until it is `Removed` or `Absent`.
    fn release(&self) -> impl Future<Output = Result<ReleaseOutcome>> + Send;

    /// Makes an exclusive hold of an [`rw_lock`](crate::Locks::rw_lock) a shared one, with no moment
    /// in which it is neither, extends it as a renewal does, and lets the readers in that are next in
    /// the queue. Its token stays. Repeated, it finds its shared hold and extends that. It may be
    /// dropped at any await and may run at the same time as `renew`; from its first call on, `renew`
    /// and `release` have to find the hold in either form. Only stores whose profile says so have it.
    ///
    /// # Errors
    /// Any; it means unknown, and the core repeats it after a [retryable](crate::Error::is_retryable)
    /// one.
    fn downgrade(&self) -> impl Future<Output = Result<RenewOutcome>> + Send {
        let message = "this store cannot make a writer a reader";
        std::future::ready(Err(Error::new(ErrorKind::Unsupported, message)))
    }

    /// Explains why the last request is still unanswered, where the backend knows: the cause of the
    /// error when the core gives up. An error of kind [`Busy`](crate::ErrorKind::Busy) means that the
    /// store answers and other claims were ahead of this one all the time: the end of a wait limit is
    /// then reported as for a busy lock.
    fn unanswered(&self) -> Option<Error> {
        None
    }

    /// A descriptor that keeps a held lock held for as long as any process has a copy of it, such as
    /// a child that inherits it. Only stores that know when a process ends have one.
    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// The answer to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The claim holds the lock.
    Granted {
        /// The token of this grant: the same in every answer about it. The store's own number; the
        /// core adds the epoch.
        token: FencingToken,
        /// The end of the validity on the store's clock, counted from **before** the request was
        /// sent (see [`lease_end`](crate::lease_end)).
        valid_until: Moment,
    },
    /// The claim is queued in the store, and will be woken.
    Waiting {
        /// When to check for a missed wake-up; [`Duration::MAX`] for a store whose wake-ups are never
        /// missed.
        check_after: Duration,
    },
    /// The lock is not free and the claim asked not to wait.
    Busy {
        /// What it has left in the store.
        rest: Residue,
    },
}

/// What a refused claim may have left in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// Nothing, certainly.
    Nothing,
    /// Possibly something: the core releases it in the background.
    Perhaps,
}

/// The answer to one renewal. An error means unknown: the core retries, and the old deadline
/// stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Still held.
    Renewed {
        /// As in [`AttemptOutcome::Granted`]. The core never relies on a fixed lease
        /// for longer than its TTL, whatever this says.
        valid_until: Moment,
    },
    /// The store reports that this claim does not hold the lock, or no longer.
    Lost,
}

/// The result of a check for one waiting claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterCheck {
    /// Attempt now.
    Attempt,
    /// Nothing has changed; check again after this long.
    Again(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The claim was there, and this call removed it.
    Removed,
    /// The claim was not there.
    Absent,
    /// Removed from some nodes and unknown on others, such as on a quorum with a silent node.
    Partly {
        /// Whether the nodes that removed it held it.
        was_held: bool,
    },
}

/// The holders and waiters of a lock at one moment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let _guard = locks.lock("orders/42").label("the importer").acquire().await?;
/// let seen = locks.inspect("orders/42").await?;
/// println!("{} holders, {} waiters", seen.holders.len(), seen.waiters.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Holders, in the order of their grants where the store knows it.
    pub holders: Vec<Participant>,
    /// Waiters, in queue order where there is one.
    pub waiters: Vec<Participant>,
}

impl Snapshot {
    /// A snapshot of these holders and waiters.
    #[must_use]
    pub fn new(holders: Vec<Participant>, waiters: Vec<Participant>) -> Snapshot {
        Snapshot { holders, waiters }
    }
}

/// One holder or waiter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let _guard = locks.lock("orders/42").label("the importer").acquire().await?;
/// for holder in locks.inspect("orders/42").await?.holders {
///     let label = holder.label.map_or("a client of another library".into(), |label| label.to_string());
///     println!("{label} has held it for {:?}, with token {:?}", holder.since, holder.token);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// Identifies it in [`DistributedLock::evict`].
    pub id: ParticipantId,
    /// The mode in which it holds the lock, or waits for it.
    pub mode: Mode,
    /// Its label; clients of other libraries have none.
    pub label: Option<Label>,
    /// How long it has held or waited, if the store knows.
    pub since: Option<Duration>,
    /// Its fencing token, if it holds and the store knows. Without the epoch.
    pub token: Option<FencingToken>,
}

impl Participant {
    /// A participant of which nothing else is known.
    #[must_use]
    pub fn new(id: ParticipantId, mode: Mode) -> Participant {
        Participant { id, mode, label: None, since: None, token: None }
    }

    /// Sets the label.
    #[must_use]
    pub fn labelled(mut self, label: Label) -> Participant {
        self.label = Some(label);
        self
    }

    /// Sets how long it has held or waited.
    #[must_use]
    pub fn since(mut self, since: Duration) -> Participant {
        self.since = Some(since);
        self
    }

    /// Sets the fencing token.
    #[must_use]
    pub fn token(mut self, token: FencingToken) -> Participant {
        self.token = Some(token);
        self
    }
}

/// Identifies one participant of one lock within a store. Never the owner token, which proves
/// ownership.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let _guard = locks.lock("orders/42").acquire().await?;
/// let holder = locks.inspect("orders/42").await?.holders.remove(0);
/// assert!(locks.evict("orders/42", &holder.id).await?, "it was still there");
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ParticipantId(String);

impl ParticipantId {
    /// An id in the store's own form.
    pub fn new(id: impl Into<String>) -> ParticipantId {
        ParticipantId(id.into())
    }

    /// The store's own form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
