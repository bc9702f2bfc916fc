//! What a store must do: the trait [`DistributedLock`] and its value types.
//!
//! A driver does atomic steps, each bounded in time, and nothing else: waiting, retrying, renewing
//! on time, cancelling and cleaning up are done once, in this crate, for every store. The trait
//! fits a token with a TTL and a session with an ephemeral queue node equally well.
//! docs/writing-a-backend.md is the way to a new one.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::Claim;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::Label;
use crate::profile::Profile;
use crate::scratch::Scratch;
use crate::token::FencingToken;
use crate::validity::{Clock, Moment};

/// One connected store.
///
/// Every method that asks the store must bound its requests in time, and be idempotent by owner
/// token: a reply can always be lost, and asking again must find "already mine, same fencing
/// token" or "already gone". Its futures may be dropped at any await.
///
/// The methods that return a future are written as `async fn`.
pub trait DistributedLock: Send + Sync + 'static {
    /// One claim in this store.
    type Acquisition: Acquisition;

    /// What this store promises, and when it cannot.
    fn profile(&self) -> &Profile;

    /// The clock of every [`Moment`] this driver gives or takes.
    fn clock(&self) -> &dyn Clock;

    /// Takes a seat for `claim`. No I/O, no failure: from here on somebody owns the clean-up.
    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> Self::Contender;

    /// Which part of the store answers for `contender`: a server of a cluster, a session. A part
    /// that is slow holds back nobody who belongs to another one. By default the store is one part.
    fn shard(&self, _contender: &Self::Contender) -> impl Eq + Hash + Send {}

    /// Renews what `held` has. Core asks about everything that is due at the same time, about 100
    /// of a [`shard`](Self::shard) at once, so that a driver may send such requests together. With
    /// [`RenewalPlan::None`](crate::RenewalPlan::None) only a held claim that was rung is asked
    /// about.
    ///
    /// # Errors
    /// Unknown: it is asked again, and the old deadline stands.
    fn renew(&self, held: &Self::Contender) -> impl Future<Output = Result<RenewOutcome>> + Send;

    /// The safety look for claims that wait for `lock` and whose `check_after` has passed: has a
    /// wake-up been missed, has a holder expired? One answer for each of `waiting`, in its order,
    /// by one request for all of them. Waiters whose `check_after` is a second or more look together,
    /// at whole seconds. They are never none, and all of one [`shard`](Self::shard).
    ///
    /// # Errors
    /// Unknown for all of them.
    fn look(
        &self,
        lock: &LockName,
        waiting: &[&Self::Contender],
    ) -> impl Future<Output = Result<Vec<WaiterCheck>>> + Send;

    /// Who holds `name` and who waits for it, as far as the store knows.
    ///
    /// # Errors
    /// When the store cannot be asked.
    fn inspect(&self, name: &LockName) -> impl Future<Output = Result<Snapshot>> + Send;

    /// Takes the lock, or the place in the queue, from `who` of a snapshot, on a person's order.
    ///
    /// # Errors
    /// When the store cannot be asked.
    fn evict(
        &self,
        name: &LockName,
        who: &ParticipantId,
    ) -> impl Future<Output = Result<ReleaseOutcome>> + Send;

    /// Removes all that locks under the names of `scratch` have left in the store, their fencing
    /// tokens and what is still held included, and what this client made to hold locks at all, if
    /// nothing else lies in it. The clients that used the names have ended, but their last requests
    /// may still arrive: it looks until it finds nothing more. Core bounds the time. Optional:
    /// `fencelock conformance` calls it at its end.
    ///
    /// # Errors
    /// Why something stays. Core repeats it after a retryable one. By default
    /// [`ErrorKind::Unsupported`].
    fn clear(&self, _scratch: &Scratch) -> impl Future<Output = Result<()>> + Send {
        let message = "this store cannot remove what locks have left in it";
        std::future::ready(Err(Error::new(ErrorKind::Unsupported, message)))
    }

    /// Ends connections; may be called again. No claim is left when core calls it, but for those
    /// that the store did not confirm as released in time: their releases go on to be asked for,
    /// and answer `Absent` or a final error from now on.
    ///
    /// # Errors
    /// When the connections do not end in order.
    fn close(&self) -> impl Future<Output = Result<()>> + Send;
}

/// One claim's seat in a store. Core calls `attempt` and `release` never at the same time and
/// `attempt` never after `release`; `release` may run beside `renew` and `look`.
///
/// As in [`DistributedLock`], the methods that return a future are written as `async fn`.
pub trait Acquisition: Send + Sync + 'static {
    /// The claim this seat is for.
    fn claim(&self) -> &Arc<Claim>;

    /// Acquires, queues, or confirms a grant: whatever comes next. Repeatable after an ambiguous
    /// reply; may be dropped at any await.
    ///
    /// # Errors
    /// Anything; only [retryable](crate::Error::is_retryable) ones are tried again.
    fn attempt(&self) -> impl Future<Output = Result<AttemptOutcome>> + Send;

    /// Gives the lock back, or leaves the queue. Repeatable; may be dropped at any await.
    ///
    /// # Errors
    /// Anything; core repeats it until it is `Removed` or `Absent`, in the background.
    fn release(&self) -> impl Future<Output = Result<ReleaseOutcome>> + Send;

    /// Why the last request is still unanswered, where the driver knows more than that: the cause
    /// of the error when core gives it up. An error of the kind [`Busy`](crate::ErrorKind::Busy)
    /// says that the store answers, and others were before this claim all the time: the end of a
    /// wait limit is then that of a wait for a busy lock.
    fn unanswered(&self) -> Option<Error> {
        None
    }

    /// A descriptor that keeps a held lock held for as long as any process has a copy of it, as
    /// a child that inherits it; only stores that know when a process ends have one.
    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// The answer to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The lock is the claim's.
    Granted {
        /// The token of this grant: the same however often it is asked for.
        token: FencingToken,
        /// Until when the holder may believe it, on the store's clock, counted from **before**
        /// the request was sent (see [`lease_end`](crate::lease_end)).
        valid_until: Moment,
    },
    /// The claim is queued in the store, and its bell will be rung.
    Waiting {
        /// When to look whether the bell was missed; [`Duration::MAX`] for a store whose bell
        /// cannot be.
        check_after: Duration,
    },
    /// The claim was not to queue, and the lock is not free for it.
    Busy {
        /// What it left behind.
        rest: Residue,
    },
}

/// What a refused claim may have left in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// Certainly nothing.
    Nothing,
    /// Perhaps something: core releases it in the background.
    Perhaps,
}

/// What became of one renewal. An error means unknown: it is retried, and the old deadline
/// stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Still held.
    Renewed {
        /// As in [`AttemptOutcome::Granted`].
        valid_until: Moment,
    },
    /// The store says that the lock is not, or no longer, this claim's.
    Lost,
}

/// What a safety look found for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaiterCheck {
    /// It should attempt now.
    Attempt,
    /// Nothing; look again after this long.
    Again(Duration),
}

/// What a release saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// It was there, and this call removed it.
    Removed,
    /// It was not there.
    Absent,
    /// It is gone from some places and unknown at others, as on a quorum with a silent node.
    Partly {
        /// Whether it was held where it was removed.
        was_held: bool,
    },
}

/// Who holds a lock and who waits for it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Holders, in the order of their grants where the store knows it.
    pub holders: Vec<Participant>,
    /// Waiters, in queue order where there is one.
    pub waiters: Vec<Participant>,
}

impl Snapshot {
    /// Of these holders and waiters.
    #[must_use]
    pub fn new(holders: Vec<Participant>, waiters: Vec<Participant>) -> Snapshot {
        Snapshot { holders, waiters }
    }
}

/// One holder or waiter, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// Names it in [`DistributedLock::evict`].
    pub id: ParticipantId,
    /// How it holds, or wants to.
    pub mode: Mode,
    /// Its own words; foreign clients have none.
    pub label: Option<Label>,
    /// How long it has held, or waited, if the store knows.
    pub since: Option<Duration>,
    /// Its fencing token, if it holds and the store knows. Without the epoch.
    pub token: Option<FencingToken>,
}

impl Participant {
    /// A participant of which only this much is known.
    #[must_use]
    pub fn new(id: ParticipantId, mode: Mode) -> Participant {
        Participant { id, mode, label: None, since: None, token: None }
    }

    /// The same with its label.
    #[must_use]
    pub fn labelled(mut self, label: Label) -> Participant {
        self.label = Some(label);
        self
    }

    /// The same with how long it has held or waited.
    #[must_use]
    pub fn since(mut self, since: Duration) -> Participant {
        self.since = Some(since);
        self
    }

    /// The same with its fencing token.
    #[must_use]
    pub fn token(mut self, token: FencingToken) -> Participant {
        self.token = Some(token);
        self
    }
}

/// Names one participant of one lock within a store. Never the owner token, which proves ownership.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ParticipantId(String);

impl ParticipantId {
    /// `id`, in the store's own form.
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
