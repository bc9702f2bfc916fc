//! One claim in the queue: it grants itself the lock when its turn has come, and otherwise watches
//! the entries ahead.
//!
//! Each step reads the queue under the latch, changes it, and writes it back by one commit. It
//! notifies other claims after it has released the latch, since they need it. A process that dies
//! between the two still wakes the waiters that depend on it, because they watch it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Error, FencingToken, IfBusy, Mode, Moment, ReleaseOutcome,
    RenewOutcome, Residue, Result, WatchHandle,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::claim::store::Store;
use crate::claim::waiter_check::CHECK_INTERVAL;
use crate::error::runtime_ended;
use crate::lock::file_lock::FileLock;
use crate::lock::queue_cache::StepError;
use crate::lock::queue_guard::QueueGuard;
use crate::platform::centiseconds;
use crate::queue::entry::{Entry, NO_SLOT};
use crate::storage::inheritance;
use crate::storage::inheritance::Inheritance;
use crate::storage::page::Page;
use crate::storage::slot_pipe;
use crate::wake::notifications::Notifications;
use crate::wake::wake_pipe::{ClaimKey, claim_key};

/// A claim of this store, shared with its steps on other threads.
#[derive(Debug)]
pub(crate) struct FileAcquisition(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    lock: Arc<FileLock>,
    claim: Arc<Claim>,
    claim_state: Mutex<ClaimState>,
    /// The descriptor with which a child keeps the lock, once it was requested.
    inherited: OnceLock<Inheritance>,
}

/// The resources of a claim in the store. Its mutex is locked briefly, and never while a request
/// waits for the disk.
#[derive(Debug, Default)]
struct ClaimState {
    ticket: Option<u64>,
    /// Its slot's pipe, open for reading, which shows that the owner lives.
    pipe: Option<OwnedFd>,
    /// The lock's page, which must not be lost while it has an entry of this claim.
    page: Option<Arc<Page>>,
    /// The granted entry.
    held: Option<Entry>,
    /// The watches of the pipes of other claims.
    armed: Vec<WatchHandle>,
}

/// The result of a step under the latch.
enum StepOutcome {
    Granted(u64),
    Busy,
    /// The pipes to watch. Entries of this store are not among them: their release notifies.
    Waiting(Vec<OwnedFd>),
}

impl FileAcquisition {
    pub(crate) fn new(
        store: Arc<Store>,
        lock: Arc<FileLock>,
        claim: Arc<Claim>,
    ) -> FileAcquisition {
        let (claim_state, inherited) = (Mutex::default(), OnceLock::new());
        FileAcquisition(Arc::new(Shared { store, lock, claim, claim_state, inherited }))
    }

    pub(crate) fn lock(&self) -> &Arc<FileLock> {
        &self.0.lock
    }

    pub(crate) fn ticket(&self) -> Option<u64> {
        self.0.ticket()
    }

    /// Whether the store still has the held entry, for a renewal after a wake-up.
    pub(crate) async fn confirm(&self) -> Result<RenewOutcome> {
        let this = self.0.clone();
        let held = self.0.lock.with_queue_if_present(move |mut guard| {
            let queue = guard.queue();
            let at = this.ticket().and_then(|ticket| queue.position(ticket));
            Ok(at.is_some_and(|at| queue.entries[at].held))
        });
        Ok(match held.await? {
            Some(true) => RenewOutcome::Renewed { valid_until: Moment::NEVER },
            Some(false) | None => RenewOutcome::Lost,
        })
    }
}

impl Shared {
    fn key(&self, ticket: u64) -> ClaimKey {
        claim_key(self.lock.dir().hash, ticket)
    }

    fn ticket(&self) -> Option<u64> {
        self.claim_state.lock().ticket
    }

    /// Grants, joins the queue or stays in it; then notifies the claims affected.
    fn step(&self, mut guard: QueueGuard<'_>) -> Result<StepOutcome, StepError> {
        let mut notifications = guard.notifications();
        let step = self.step_under_latch(&mut guard, &mut notifications)?;
        drop(guard);
        notifications.send(&self.store.wake_pipe);
        Ok(step)
    }

    /// Changes the queue in one commit, or not at all.
    fn step_under_latch(
        &self,
        guard: &mut QueueGuard<'_>,
        notifications: &mut Notifications,
    ) -> Result<StepOutcome, StepError> {
        let now = centiseconds();
        let queue = guard.queue();
        let known = self.ticket().and_then(|ticket| queue.position(ticket));
        let mut at = match known {
            Some(at) if queue.entries[at].held => {
                return Ok(StepOutcome::Granted(queue.entries[at].token));
            }
            Some(at) => at,
            None => {
                // Not queued yet, or its entry was removed: it joins the end of the queue.
                self.clear_claim_state();
                queue.push(self.claim.mode(), self.store.wake_pipe.number, now)
            }
        };
        let (before, was_at) = (queue.entries[at], at);
        let ahead = self.watch_ahead(&mut at, guard)?;
        let removed_dead = at != was_at;
        if ahead.is_some() && self.claim.if_busy() == IfBusy::Refuse {
            guard.queue().entries.remove(at);
            if removed_dead {
                guard.commit()?;
            }
            return Ok(StepOutcome::Busy);
        }
        let pipe = match known {
            Some(_) => None,
            None => Some(self.take_slot(at, guard)?),
        };
        let queue = guard.queue();
        let outcome = match ahead {
            None => {
                let token = queue.grant(at, now, self.claim.local_handoffs());
                notifications.after_grant(queue, at);
                StepOutcome::Granted(token)
            }
            Some(pipes) => {
                queue.entries[at].watch = queue.watched_slot(at);
                StepOutcome::Waiting(pipes)
            }
        };
        let entry = queue.entries[at];
        if removed_dead || entry != before {
            guard.commit()?;
        }
        if let Some(pipe) = pipe {
            {
                let mut claim_state = self.claim_state.lock();
                (claim_state.pipe, claim_state.ticket) = (Some(pipe), Some(entry.ticket));
                claim_state.page = Some(guard.files()?.page.clone());
            }
            self.store.wake_pipe.registry.insert(self.key(entry.ticket), &self.claim);
        }
        if entry.held {
            self.claim_state.lock().held = Some(entry);
        }
        Ok(outcome)
    }

    /// Opens the pipes of all entries of other stores that entry `at` has to watch; `None` if it
    /// may hold. Removes entries of dead owners ahead of it, which changes `at`.
    fn watch_ahead(
        &self,
        at: &mut usize,
        guard: &mut QueueGuard<'_>,
    ) -> Result<Option<Vec<OwnedFd>>> {
        'changed: while !guard.queue().fits(*at) {
            let mut watches = Vec::new();
            for index in guard.queue().blockers(*at).rev() {
                let blocker = guard.queue().entries[index];
                // It lives as long as this process, and notifies its watchers when it is removed.
                let own = blocker.wake_pipe == self.store.wake_pipe.number
                    && self.store.wake_pipe.registry.contains(&self.key(blocker.ticket));
                if own {
                    continue;
                }
                match guard.files()?.watch(blocker.slot)? {
                    Some(pipe) => watches.push(pipe),
                    None => {
                        guard.queue().entries.remove(index);
                        *at -= 1;
                        continue 'changed;
                    }
                }
            }
            return Ok(Some(watches));
        }
        Ok(None)
    }

    /// Takes a slot for the new entry `at`, with the label that `inspect` shows. Returns its pipe.
    fn take_slot(&self, at: usize, guard: &mut QueueGuard<'_>) -> Result<OwnedFd, StepError> {
        let (wake_pipe, label) = (&self.store.wake_pipe, self.claim.label());
        let labelled = !wake_pipe.has_label(label) && {
            guard.needs_disk()?;
            !wake_pipe.put_label(label)
        };
        let ticket = guard.queue().entries[at].ticket;
        let (slot, pipe) = guard.take_slot(ticket)?;
        if labelled {
            guard.files()?.state()?.write_label(slot, label)?;
        }
        let queue = guard.queue();
        if queue.spare == slot {
            queue.spare = NO_SLOT;
        }
        let entry = &mut queue.entries[at];
        (entry.slot, entry.labelled) = (slot, labelled);
        Ok(pipe)
    }

    /// Wakes the claim when one of `pipes` loses its last reader.
    fn arm(&self, pipes: Vec<OwnedFd>) -> Result<()> {
        let _in_runtime = self.store.context.runtime.enter();
        // The safe constructor is deprecated for types that may not own their descriptor; an
        // OwnedFd does, and the replacement is unsafe code.
        #[allow(deprecated)]
        let watch = |pipe| AsyncFd::with_interest(pipe, Interest::ERROR);
        let armed: std::io::Result<Vec<_>> =
            pipes.into_iter().map(|pipe| Ok(self.claim.wake_when(closed(watch(pipe)?)))).collect();
        self.claim_state.lock().armed = armed.map_err(|error| runtime_ended().caused_by(error))?;
        Ok(())
    }

    fn clear_claim_state(&self) {
        // The files close after the mutex is unlocked.
        let cleared = std::mem::take(&mut *self.claim_state.lock());
        if let Some(ticket) = cleared.ticket {
            self.store.wake_pipe.registry.remove(&self.key(ticket));
        }
    }

    /// Makes the hold a shared one; then notifies the next claim, which may be a reader.
    fn share(&self, mut guard: QueueGuard<'_>) -> Result<RenewOutcome, StepError> {
        let queue = guard.queue();
        let Some(at) = self.ticket().and_then(|ticket| queue.position(ticket)) else {
            return Ok(RenewOutcome::Lost);
        };
        if !queue.entries[at].held {
            return Ok(RenewOutcome::Lost);
        }
        queue.entries[at].mode = Mode::Shared;
        let entry = queue.entries[at];
        guard.commit()?;
        if let Some(inheritance) = self.inherited.get() {
            inheritance.update(&entry);
        }
        // A process that dies from here on closes the pipe that the next claim watches.
        let mut notifications = guard.notifications();
        notifications.after_grant(guard.queue(), at);
        drop(guard);
        self.claim_state.lock().held = Some(entry);
        notifications.send(&self.store.wake_pipe);
        Ok(RenewOutcome::Renewed { valid_until: Moment::NEVER })
    }

    /// Removes the entry from the queue.
    fn remove(&self, mut guard: QueueGuard<'_>) -> Result<ReleaseOutcome, StepError> {
        let Some(ticket) = self.ticket() else { return Ok(ReleaseOutcome::Absent) };
        let queue = guard.queue();
        let Some(at) = queue.position(ticket) else { return Ok(ReleaseOutcome::Absent) };
        let (removed, mut notifications) = guard.remove(at);
        let extra: Vec<_> = slot_pipe::surplus(guard.queue(), removed.slot).collect();
        if !extra.is_empty() {
            guard.needs_disk()?;
        }
        if let Some(inheritance) = self.inherited.get() {
            inheritance.revoke(&removed);
        }
        guard.commit()?;
        if self.inherited.get().is_none() {
            guard.note_free_slot(removed.slot);
        }
        let files = guard.files()?;
        extra.into_iter().for_each(|slot| slot_pipe::remove(files.dir(), slot));
        drop(guard);
        // Closing the pipe wakes the watchers, unless a child inherited a copy of it.
        self.clear_claim_state();
        notifications.after_closing(&removed, &files);
        notifications.send(&self.store.wake_pipe);
        Ok(ReleaseOutcome::Removed)
    }
}

impl Acquisition for FileAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.0.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let this = self.0.clone();
        let step = self.0.lock.with_queue(move |guard| this.step(guard)).await?;
        Ok(match step {
            StepOutcome::Granted(token) => {
                self.0.claim_state.lock().armed.clear();
                let token = FencingToken::new(token);
                AttemptOutcome::Granted { token, valid_until: Moment::NEVER }
            }
            StepOutcome::Busy => AttemptOutcome::Busy { rest: Residue::Nothing },
            StepOutcome::Waiting(pipes) => {
                self.0.arm(pipes)?;
                AttemptOutcome::Waiting { check_after: CHECK_INTERVAL }
            }
        })
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let this = self.0.clone();
        // This waits in line until an abandoned attempt, which may still run, has ended.
        let released = self.0.lock.with_queue_if_present(move |guard| this.remove(guard)).await;
        match released {
            Ok(outcome) => {
                self.0.clear_claim_state();
                Ok(outcome.unwrap_or(ReleaseOutcome::Absent))
            }
            Err(error) => {
                // With its pipe closed, the entry counts as dead and the next waiter removes it.
                // The release is repeated for the case that a child inherited a copy.
                let mut claim_state = self.0.claim_state.lock();
                claim_state.pipe = None;
                claim_state.armed.clear();
                Err(error)
            }
        }
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        let this = self.0.clone();
        let shared = self.0.lock.with_queue_if_present(move |guard| this.share(guard)).await?;
        Ok(shared.unwrap_or(RenewOutcome::Lost))
    }

    fn unanswered(&self) -> Option<Error> {
        self.0.lock.unanswered()
    }

    #[cfg(unix)]
    fn keep_alive(&self) -> Option<BorrowedFd<'_>> {
        if self.0.inherited.get().is_none() {
            let claim_state = self.0.claim_state.lock();
            let (pipe, entry) = (claim_state.pipe.as_ref()?, claim_state.held?);
            let inheritance = inheritance::pass_on(&self.0.lock.dir().path, pipe, &entry).ok()?;
            // A concurrent call may have been first.
            let _ = self.0.inherited.set(inheritance);
        }
        self.0.inherited.get().map(AsFd::as_fd)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Only a claim that could not be released still has a ticket. Its pipe closes now, which
        // frees the lock; waiters of this store had no pipe to watch and are woken.
        let abandoned = self.ticket().is_some();
        self.clear_claim_state();
        if abandoned {
            self.store.wake_pipe.registry.wake_all();
        }
    }
}

/// Completes when the last reader of `pipe` has closed it.
async fn closed(pipe: AsyncFd<OwnedFd>) {
    // An error means that the runtime ends, and with it all claims that could be woken.
    let _ = pipe.ready(Interest::ERROR).await;
}
