//! One request for a lock, as core and the store's driver both see it.
//!
//! The driver wakes a claim by [ringing](Claim::wake) it. A ring is a hint: it may come from any
//! thread, too often or too late, and only an attempt or a renewal finds out what happened.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

use crate::mode::Mode;
use crate::name::LockName;
use crate::options::Label;

/// The proof of ownership: fresh for every acquisition, and never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken(Uuid);

impl OwnerToken {
    pub(crate) fn fresh() -> OwnerToken {
        OwnerToken(Uuid::new_v4())
    }

    /// For the driver, to write into the store.
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
    /// Answer busy and leave nothing behind.
    Refuse,
    /// Join the store's queue.
    Queue,
}

/// By which call a lock was asked for. They are one lock on every store; a driver whose names in
/// the store are shared with other libraries writes each as these do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// [`Locks::lock`](crate::Locks::lock).
    Lock,
    /// [`Locks::rw_lock`](crate::Locks::rw_lock).
    ReadWrite,
    /// [`Locks::semaphore`](crate::Locks::semaphore).
    Semaphore,
}

/// One request for a lock: who wants it, how, and how to wake them.
pub struct Claim {
    pub(crate) id: u64,
    name: LockName,
    family: LockKind,
    mode: Mode,
    owner: OwnerToken,
    ttl: Duration,
    renewed: bool,
    if_busy: IfBusy,
    label: Label,
    stage: AtomicU8,
    pub(crate) bell: Notify,
    runtime: Handle,
    /// Where a held claim that is rung is told to the keeper.
    rung: UnboundedSender<u64>,
}

const TRYING: u8 = 0;
const HELD: u8 = 1;
const OVER: u8 = 2;

/// What a new claim asks for.
pub(crate) struct Wanted {
    pub(crate) name: LockName,
    pub(crate) family: LockKind,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) if_busy: IfBusy,
    pub(crate) label: Label,
}

impl Claim {
    pub(crate) fn new(
        id: u64,
        wanted: Wanted,
        runtime: Handle,
        rung: UnboundedSender<u64>,
    ) -> Claim {
        Claim {
            id,
            name: wanted.name,
            family: wanted.family,
            mode: wanted.mode,
            owner: OwnerToken::fresh(),
            ttl: wanted.ttl,
            renewed: wanted.renewed,
            if_busy: wanted.if_busy,
            label: wanted.label,
            stage: AtomicU8::new(TRYING),
            bell: Notify::new(),
            runtime,
            rung,
        }
    }

    /// A number of this claim's own among those of its connected store.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// By which call it was asked for.
    #[must_use]
    pub fn family(&self) -> LockKind {
        self.family
    }

    /// How it is wanted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The proof of ownership.
    #[must_use]
    pub fn owner(&self) -> &OwnerToken {
        &self.owner
    }

    /// How long a lease store keeps the lock without a renewal.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether its lease is never to be extended: a renewal, which only a ring brings about, then
    /// just asks whether it is still there.
    #[must_use]
    pub fn is_fixed_lease(&self) -> bool {
        !self.renewed
    }

    /// Whether to queue.
    #[must_use]
    pub fn if_busy(&self) -> IfBusy {
        self.if_busy
    }

    /// Who claims, for people.
    #[must_use]
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// Tells core that something may have happened: a waiting claim attempts, a held one is
    /// renewed now. Never blocks; any thread may call it.
    ///
    /// `false` means the claim is over: if the store just granted it something, that is a stray,
    /// which the driver releases.
    pub fn ring(&self) -> bool {
        if self.stage.load(Ordering::SeqCst) == TRYING {
            self.bell.notify_one();
        }
        // Looked at again: a claim that became held meanwhile may have looked at its bell just
        // before it was rung, and would never hear it.
        match self.stage.load(Ordering::SeqCst) {
            HELD => {
                // Fails only when the keeper has ended, and with it every hold.
                let _ = self.rung.send(self.id);
                true
            }
            stage => stage == TRYING,
        }
    }

    /// Rings when `event` ends: a watch that fired, a pipe that closed. The claim is held weakly;
    /// dropping what this returns ends the watching.
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
        WatchHandle(task.abort_handle())
    }

    /// Whether nobody wants this claim any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == OVER
    }

    /// From now on a ring means "renew".
    pub(crate) fn held(&self) {
        // Not if the hold has ended meanwhile: over is for good.
        let _ = self.stage.compare_exchange(TRYING, HELD, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// From now on whatever the store gives this claim is a stray.
    pub(crate) fn over(&self) {
        self.stage.store(OVER, Ordering::SeqCst);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .field("if_busy", &self.if_busy)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// A watch that will ring a claim; dropping it disarms it.
#[derive(Debug)]
#[must_use = "dropping it ends the watching"]
pub struct WatchHandle(tokio::task::AbortHandle);

impl Drop for WatchHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}
