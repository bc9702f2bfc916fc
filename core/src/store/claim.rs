//! One request for a lock, shared by the core and the backend.
//!
//! The backend [wakes](Claim::wake) a claim when something may have changed. A wake-up is a hint: it
//! may come from any thread, too often or too late, and only an attempt or a renewal decides.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

use super::batching::Priority;
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::options::Label;

/// The proof of ownership: fresh for every acquisition, and never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    pub(crate) fn fresh() -> OwnerToken {
        OwnerToken(Uuid::new_v4())
    }

    /// The one whose [value](OwnerToken::reveal) has these bytes, for the backend that reads it in the store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> OwnerToken {
        OwnerToken(Uuid::from_bytes(bytes))
    }

    /// The value, for the backend to write into the store.
    #[must_use]
    pub fn reveal(&self) -> Uuid {
        self.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(…)")
    }
}

/// What to do when the lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfBusy {
    /// Answer busy and leave nothing in the store.
    Refuse,
    /// Join the store's queue.
    Queue,
}

/// The call that made a claim. All kinds are one lock on every store; a backend whose names in the
/// store are shared with other libraries writes each kind as they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// [`Locks::lock`](crate::Locks::lock).
    Lock,
    /// [`Locks::rw_lock`](crate::Locks::rw_lock).
    ReadWrite,
    /// [`Locks::semaphore`](crate::Locks::semaphore).
    Semaphore,
}

/// The options of one acquisition.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) name: LockName,
    pub(crate) kind: LockKind,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) hold_at_most: Option<Duration>,
    /// How long the store may stay silent.
    pub(crate) unreachable_after: Duration,
    pub(crate) label: Label,
    /// How many acquisitions of this process may share one grant.
    pub(crate) local_handoffs: u32,
    /// They are the client's default, which gives way where there can be none.
    pub(crate) handoffs_by_default: bool,
    /// For an [`Owner`](crate::Owner).
    pub(crate) is_owned: bool,
}

/// One request for a lock: its options, its owner token, and how to wake it.
pub struct Claim {
    pub(crate) id: u64,
    pub(crate) request: AcquireRequest,
    owner: OwnerToken,
    if_busy: IfBusy,
    stage: AtomicU8,
    /// The store says so, since its last attempt.
    is_granted: AtomicBool,
    /// Its caller waits for the answer to its next check.
    pub(crate) is_awaited: AtomicBool,
    pub(crate) notify: Notify,
    runtime: Handle,
    /// Notifies the renewal worker of a held claim that was woken.
    woken: UnboundedSender<u64>,
}

const TRYING: u8 = 0;
const HELD: u8 = 1;
const OVER: u8 = 2;

impl Claim {
    pub(crate) fn new(
        id: u64,
        request: AcquireRequest,
        if_busy: IfBusy,
        runtime: Handle,
        woken: UnboundedSender<u64>,
    ) -> Claim {
        Claim {
            id,
            request,
            owner: OwnerToken::fresh(),
            if_busy,
            stage: AtomicU8::new(TRYING),
            is_granted: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            notify: Notify::new(),
            runtime,
            woken,
        }
    }

    /// Unique among the claims of one client.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.request.name
    }

    /// The call that made it.
    #[must_use]
    pub fn kind(&self) -> LockKind {
        self.request.kind
    }

    /// How it is requested.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.request.mode
    }

    /// The proof of ownership.
    #[must_use]
    pub fn owner(&self) -> &OwnerToken {
        &self.owner
    }

    /// How long a lease store keeps the lock without a renewal.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.request.ttl
    }

    /// Whether its lease is never extended: a renewal, which is sent only after a wake-up, then just
    /// asks whether the lock is still held.
    #[must_use]
    pub fn is_fixed_lease(&self) -> bool {
        !self.request.renewed
    }

    /// How many tokens a grant reserves: the claim may use the one that the store answers and the
    /// next `local_handoffs() - 1`. Every earlier grant has smaller tokens and every later one larger
    /// ones. 1 unless the profile's [`max_local_handoffs`](crate::Profile::max_local_handoffs) allows more.
    #[must_use]
    pub fn local_handoffs(&self) -> u32 {
        self.request.local_handoffs
    }

    /// Whether to queue when the lock is not free.
    #[must_use]
    pub fn if_busy(&self) -> IfBusy {
        self.if_busy
    }

    /// The human-readable label of the client.
    #[must_use]
    pub fn label(&self) -> &Label {
        &self.request.label
    }

    /// Notifies the core that something may have changed: a waiting claim attempts, a held one is
    /// renewed now. Never blocks; any thread may call it.
    ///
    /// `false` means that the claim is over: if the store has just granted it, the grant is a stray
    /// that the backend must release.
    pub fn wake(&self) -> bool {
        if self.stage.load(Ordering::SeqCst) == TRYING {
            self.notify.notify_one();
        }
        // Checked again: a claim that became held meanwhile may have checked its notifier just before
        // this notification, and would never see it.
        match self.stage.load(Ordering::SeqCst) {
            HELD => {
                // Fails only when the worker has ended, and with it every hold.
                let _ = self.woken.send(self.id);
                true
            }
            stage => stage == TRYING,
        }
    }

    /// Wakes the claim when `event` completes, such as a watch that fires or a pipe that is closed.
    /// The task has only a weak reference to the claim; dropping the handle ends it.
    pub fn wake_when(
        self: &Arc<Self>,
        event: impl Future<Output = ()> + Send + 'static,
    ) -> WatchHandle {
        let claim = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            event.await;
            if let Some(claim) = claim.upgrade() {
                claim.wake();
            }
        });
        WatchHandle::of(&task)
    }

    /// [Wakes](Claim::wake) it for a message that names it, and so may tell of its grant: its next attempt goes ahead of
    /// those that only may find one.
    pub fn wake_for_grant(&self) -> bool {
        self.is_granted.store(true, Ordering::SeqCst);
        self.wake()
    }

    /// Whether it holds the lock, as far as the core knows.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == HELD
    }

    /// The priority of its next attempt.
    #[must_use]
    pub fn priority(&self) -> Priority {
        if self.is_granted.swap(false, Ordering::SeqCst) {
            Priority::Held
        } else {
            Priority::Attempt
        }
    }

    /// The priority of a check of `waiting`: an attempt's if a caller waits for the answer, at the end of a wait limit.
    pub fn check_priority<'a>(mut waiting: impl Iterator<Item = &'a Arc<Claim>>) -> Priority {
        match waiting.any(|claim| claim.is_awaited.swap(false, Ordering::Relaxed)) {
            true => Priority::Attempt,
            false => Priority::Look,
        }
    }

    /// Whether the claim is over: released, lost or given up.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == OVER
    }

    /// What the metrics count of it: nothing of a claim whose grant is shared by several acquisitions,
    /// which are counted themselves.
    pub(crate) fn counted(&self) -> Option<&AcquireRequest> {
        (self.request.local_handoffs == 1).then_some(&self.request)
    }

    /// What spreads the retries of this claim.
    pub(crate) fn seed(&self) -> (&str, u64) {
        (self.request.label.as_str(), self.id)
    }

    /// From now on a wake-up means "renew".
    pub(crate) fn held(&self) {
        // Not if the hold has ended meanwhile: over is final.
        let _ = self.stage.compare_exchange(TRYING, HELD, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// From now on any grant to this claim is a stray.
    pub(crate) fn over(&self) {
        self.stage.store(OVER, Ordering::SeqCst);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("id", &self.id)
            .field("request", &self.request)
            .field("if_busy", &self.if_busy)
            .finish_non_exhaustive()
    }
}

/// A watch that will wake a claim, or notify of a change; dropping it ends the watch.
#[derive(Debug)]
#[must_use = "dropping it ends the watch"]
pub struct WatchHandle(tokio::task::AbortHandle);

impl WatchHandle {
    pub(crate) fn of(task: &tokio::task::JoinHandle<()>) -> WatchHandle {
        WatchHandle(task.abort_handle())
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}
