//! One claim's seat in the queue: it grants itself the lock when its turn has come, and else
//! watches whoever is ahead.
//!
//! Each step reads the queue under the latch, changes it, and writes it back by one commit. What
//! then has to be said to others is said after unlatching, since whoever is woken needs the latch.
//! A process that dies between the two has said it too: whoever waits for it watches it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Error, FencingToken, IfBusy, Moment, ReleaseOutcome,
    RenewOutcome, Residue, Result, WatchHandle,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::backend::{CHECK_INTERVAL, Store};
use crate::error::runtime_ended;
use crate::inheritance::{self, Inheritance};
use crate::latch::{QueueGuard, StepError};
use crate::page::Page;
use crate::pipe;
use crate::place::FileLock;
use crate::platform::centiseconds;
use crate::queue::{EVERY_HOLDER, Entry, NO_SLOT, Queue};
use crate::wake::Notifications;

/// A claim of this store, shared with what is done for it on another thread.
#[derive(Debug)]
pub(crate) struct FileAcquisition(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    lock: Arc<FileLock>,
    claim: Arc<Claim>,
    claim_state: Mutex<ClaimState>,
    /// What a child is given to keep the lock with, once it was asked for.
    inherited: OnceLock<Inheritance>,
}

/// What a claim has in the store. Locked for moments only, and not while a request is with the
/// disk.
#[derive(Debug, Default)]
struct ClaimState {
    ticket: Option<u64>,
    /// Open for reading: the sign of life.
    pipe: Option<OwnedFd>,
    /// The lock's page, which must not be lost while this is in it.
    page: Option<Arc<Page>>,
    /// What it holds with.
    held: Option<Entry>,
    armed: Option<WatchHandle>,
}

/// What a step under the latch came to.
enum StepOutcome {
    Granted(u64),
    Busy,
    /// Whom to watch. Entries of this store are not among them: they ring by themselves.
    Waiting(Vec<OwnedFd>),
}

/// Whom to watch, or who is dead among them.
enum Ahead {
    Alive(Vec<OwnedFd>),
    Dead(usize),
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

    /// Whether the store still has this held claim, for a renewal that somebody rang for.
    pub(crate) async fn confirm(&self) -> Result<RenewOutcome> {
        let this = self.0.clone();
        this.store.same_process()?;
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
    fn claim_state(&self) -> MutexGuard<'_, ClaimState> {
        self.claim_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self) -> Option<u64> {
        self.claim_state().ticket
    }

    /// Grants, or joins the queue, or stays in it; then wakes those to whom that matters.
    fn step(&self, mut guard: QueueGuard<'_>) -> Result<StepOutcome, StepError> {
        let mut notifications = Notifications::default();
        let step = self.step_under_latch(&mut guard, &mut notifications)?;
        drop(guard);
        notifications.send(&self.store.wake_pipe);
        Ok(step)
    }

    /// All or nothing.
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
                // Never there, or its place was taken away: to the end of the queue.
                self.clear_claim_state();
                queue.push(self.claim.mode(), self.store.wake_pipe.number(), now)
            }
        };
        let before = queue.entries[at];
        let mut someone_died = false;
        let ahead = loop {
            if guard.queue().fits(at) {
                break None;
            }
            match self.ahead_of(at, guard)? {
                Ahead::Alive(watches) => break Some(watches),
                Ahead::Dead(dead) => {
                    guard.queue().entries.remove(dead);
                    at -= 1;
                    someone_died = true;
                }
            }
        };
        if ahead.is_some() && self.claim.if_busy() == IfBusy::Refuse {
            guard.queue().entries.remove(at);
            if someone_died {
                guard.commit()?;
            }
            return Ok(StepOutcome::Busy);
        }
        let pipe = match known {
            Some(_) => None,
            None => {
                let labelled = match self.store.wake_pipe.has_label(self.claim.label()) {
                    Some(has_it) => !has_it,
                    None => {
                        guard.needs_disk()?;
                        !self.store.wake_pipe.put_label(self.claim.label())
                    }
                };
                if labelled {
                    guard.needs_disk()?;
                }
                let (slot, pipe) = guard.take_slot(before.ticket)?;
                if labelled {
                    guard.files()?.state()?.write_label(slot, self.claim.label())?;
                }
                let queue = guard.queue();
                if queue.spare == slot {
                    queue.spare = NO_SLOT;
                }
                let entry = &mut queue.entries[at];
                (entry.slot, entry.labelled) = (slot, labelled);
                Some(pipe)
            }
        };
        let queue = guard.queue();
        let token = match &ahead {
            None => Some(queue.grant(at, now)),
            Some(_) => {
                queue.entries[at].watch = watched_slot(queue, at);
                None
            }
        };
        let entry = queue.entries[at];
        if token.is_some() {
            notifications.after_grant(queue, at, &self.lock);
        }
        if someone_died || entry != before {
            guard.commit()?;
        }
        if let Some(pipe) = pipe {
            {
                let mut claim_state = self.claim_state();
                (claim_state.pipe, claim_state.ticket) = (Some(pipe), Some(entry.ticket));
                claim_state.page = Some(guard.files()?.page().clone());
            }
            self.store.wake_pipe.registry().add(self.lock.claim_key(entry.ticket), &self.claim);
        }
        if token.is_some() {
            self.claim_state().held = Some(entry);
        }
        Ok(match (token, ahead) {
            (Some(token), _) => StepOutcome::Granted(token),
            (None, watches) => StepOutcome::Waiting(watches.unwrap_or_default()),
        })
    }

    /// Opens the pipes of everybody whom entry `at` has to watch, or finds one that is dead.
    fn ahead_of(&self, at: usize, guard: &mut QueueGuard<'_>) -> Result<Ahead> {
        let blockers = guard.queue().blockers(at);
        let mut watches = Vec::new();
        for index in blockers.rev() {
            let blocker = guard.queue().entries[index];
            // It lives as long as this process, and rings whoever watched it when it goes.
            let own = blocker.wake_pipe == self.store.wake_pipe.number()
                && self.store.wake_pipe.registry().contains(self.lock.claim_key(blocker.ticket));
            if own {
                continue;
            }
            match guard.files()?.watch(blocker.slot)? {
                Some(pipe) => watches.push(pipe),
                None => return Ok(Ahead::Dead(index)),
            }
        }
        Ok(Ahead::Alive(watches))
    }

    /// Rings the claim when one of `pipes` loses its last reader.
    fn arm(&self, pipes: Vec<OwnedFd>) -> Result<()> {
        let _in_runtime = self.store.context.runtime.enter();
        // The safe constructor is deprecated for types that may not own their descriptor; an
        // OwnedFd does, and the replacement is unsafe code.
        #[allow(deprecated)]
        let watch = |pipe| AsyncFd::with_interest(pipe, Interest::ERROR);
        let pipes: std::io::Result<Vec<_>> = pipes.into_iter().map(watch).collect();
        let pipes = pipes.map_err(|error| runtime_ended().caused_by(error))?;
        let armed = (!pipes.is_empty()).then(|| self.claim.wake_when(any_closed(pipes)));
        self.claim_state().armed = armed;
        Ok(())
    }

    fn clear_claim_state(&self) {
        // Closed once the mutex is free.
        let left = std::mem::take(&mut *self.claim_state());
        if let Some(ticket) = left.ticket {
            self.store.wake_pipe.registry().remove(self.lock.claim_key(ticket));
        }
    }

    /// Takes the entry out of the queue.
    fn remove(&self, mut guard: QueueGuard<'_>) -> Result<ReleaseOutcome, StepError> {
        let Some(ticket) = self.ticket() else { return Ok(ReleaseOutcome::Absent) };
        let queue = guard.queue();
        let Some(at) = queue.position(ticket) else { return Ok(ReleaseOutcome::Absent) };
        let gone = queue.entries.remove(at);
        let mut notifications = Notifications::default();
        notifications.after_removal(queue, &gone, &self.lock);
        let extra: Vec<_> = pipe::extra(queue, gone.slot).collect();
        if !extra.is_empty() {
            guard.needs_disk()?;
        }
        if let Some(inheritance) = self.inherited.get() {
            inheritance.revoke(&gone);
        }
        guard.commit()?;
        if self.inherited.get().is_none() {
            guard.leave_slot(gone.slot);
        }
        let files = guard.files()?;
        extra.into_iter().for_each(|slot| pipe::retire(files.dir(), slot));
        drop(guard);
        // For whoever watches this entry, and has no copy of its pipe inherited, the closing is
        // the wake-up.
        self.clear_claim_state();
        notifications.after_closing(&gone, &files);
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
        this.store.same_process()?;
        let step = self.0.lock.with_queue(move |guard| this.step(guard)).await?;
        Ok(match step {
            StepOutcome::Granted(token) => {
                self.0.claim_state().armed = None;
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
        this.store.same_process()?;
        // In line behind an attempt that was given up and may still be carried out.
        let removed = self.0.lock.with_queue_if_present(move |guard| this.remove(guard)).await;
        match removed {
            Ok(removed) => {
                self.0.clear_claim_state();
                Ok(removed.unwrap_or(ReleaseOutcome::Absent))
            }
            Err(error) => {
                // With its pipe closed the entry is dead to everybody, and whoever waits removes
                // it; the repetition of this release is for those that inherited a copy.
                let mut claim_state = self.0.claim_state();
                (claim_state.pipe, claim_state.armed) = (None, None);
                Err(error)
            }
        }
    }

    fn unanswered(&self) -> Option<Error> {
        self.0.lock.trouble().map(|(_, trouble)| trouble)
    }

    #[cfg(unix)]
    fn keep_alive(&self) -> Option<BorrowedFd<'_>> {
        if self.0.inherited.get().is_none() {
            let claim_state = self.0.claim_state();
            let (pipe, entry) = (claim_state.pipe.as_ref()?, claim_state.held?);
            let inheritance = inheritance::pass_on(self.0.lock.path(), pipe, &entry).ok()?;
            // Somebody who asked at the same time may have been first.
            let _ = self.0.inherited.set(inheritance);
        }
        self.0.inherited.get().map(AsFd::as_fd)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Only a claim that could not be released still has a seat. Its pipe closes now, which
        // frees the lock; claims of this process had no pipe to watch.
        let abandoned = self.ticket().is_some();
        self.clear_claim_state();
        if abandoned {
            self.store.wake_pipe.registry().ring_all();
        }
    }
}

fn watched_slot(queue: &Queue, at: usize) -> u16 {
    match queue.watches_every_holder(at) {
        true => EVERY_HOLDER,
        false => at.checked_sub(1).map_or(NO_SLOT, |ahead| queue.entries[ahead].slot),
    }
}

/// Completes when the last reader of one of `pipes` is gone.
async fn any_closed(pipes: Vec<AsyncFd<OwnedFd>>) {
    type Gone<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    // An error here means that the runtime ends, and with it everybody who could be rung.
    let gone = async |pipe: &AsyncFd<OwnedFd>| drop(pipe.ready(Interest::ERROR).await);
    if let [pipe] = &pipes[..] {
        return gone(pipe).await;
    }
    let mut each: Vec<Gone<'_>> = pipes.iter().map(|pipe| Box::pin(gone(pipe)) as _).collect();
    std::future::poll_fn(|cx| match each.iter_mut().any(|one| one.as_mut().poll(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
