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
    Armed, Attempt, Claim, Contender, Error, FencingToken, IfBusy, Moment, Removal, Renewal, Rest,
    Result,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::backend::{LOOK_AGAIN, Store};
use crate::error::runtime_ended;
use crate::inheritance::{self, Inheritance};
use crate::latch::{Latched, Stop};
use crate::page::Page;
use crate::pipe;
use crate::place::Place;
use crate::platform::centiseconds;
use crate::queue::{EVERY_HOLDER, Entry, NOBODY, Queue};
use crate::wake::Wake;

/// A claim of this store, shared with what is done for it on another thread.
#[derive(Debug)]
pub(crate) struct FileContender(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    place: Arc<Place>,
    claim: Arc<Claim>,
    seat: Mutex<Seat>,
    /// What a child is given to keep the lock with, once it was asked for.
    passed_on: OnceLock<Inheritance>,
}

/// What a claim has in the store. Locked for moments only, and not while a request is with the
/// disk.
#[derive(Debug, Default)]
struct Seat {
    ticket: Option<u64>,
    /// Open for reading: the sign of life.
    pipe: Option<OwnedFd>,
    /// The lock's page, which must not be lost while this is in it.
    page: Option<Arc<Page>>,
    /// What it holds with.
    held: Option<Entry>,
    armed: Option<Armed>,
}

/// What a step under the latch came to.
enum Step {
    Granted(u64),
    Busy,
    /// Whom to watch. Entries of this store are not among them: they ring by themselves.
    Waits(Vec<OwnedFd>),
}

/// Whom to watch, or who is dead among them.
enum Ahead {
    Alive(Vec<OwnedFd>),
    Dead(usize),
}

impl FileContender {
    pub(crate) fn new(store: Arc<Store>, place: Arc<Place>, claim: Arc<Claim>) -> FileContender {
        let (seat, passed_on) = (Mutex::default(), OnceLock::new());
        FileContender(Arc::new(Shared { store, place, claim, seat, passed_on }))
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.0.place
    }

    pub(crate) fn ticket(&self) -> Option<u64> {
        self.0.ticket()
    }

    /// Whether the store still has this held claim, for a renewal that somebody rang for.
    pub(crate) async fn confirm(&self) -> Result<Renewal> {
        let this = self.0.clone();
        this.store.same_process()?;
        let held = self.0.place.latched_if_there(move |mut latched| {
            let queue = latched.queue();
            let at = this.ticket().and_then(|ticket| queue.position(ticket));
            Ok(at.is_some_and(|at| queue.entries[at].held))
        });
        Ok(match held.await? {
            Some(true) => Renewal::Renewed { valid_until: Moment::NEVER },
            Some(false) | None => Renewal::Lost,
        })
    }
}

impl Shared {
    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self) -> Option<u64> {
        self.seat().ticket
    }

    /// Grants, or joins the queue, or stays in it; then wakes those to whom that matters.
    fn step(&self, mut latched: Latched<'_>) -> Result<Step, Stop> {
        let mut wake = Wake::default();
        let step = self.step_latched(&mut latched, &mut wake)?;
        drop(latched);
        wake.send(&self.store.door);
        Ok(step)
    }

    /// All or nothing.
    fn step_latched(&self, latched: &mut Latched<'_>, wake: &mut Wake) -> Result<Step, Stop> {
        let now = centiseconds();
        let queue = latched.queue();
        let known = self.ticket().and_then(|ticket| queue.position(ticket));
        let mut at = match known {
            Some(at) if queue.entries[at].held => {
                return Ok(Step::Granted(queue.entries[at].token));
            }
            Some(at) => at,
            None => {
                // Never there, or its place was taken away: to the end of the queue.
                self.leave_seat();
                queue.push(self.claim.mode(), self.store.door.number(), now)
            }
        };
        let before = queue.entries[at];
        let mut someone_died = false;
        let ahead = loop {
            if latched.queue().fits(at) {
                break None;
            }
            match self.ahead_of(at, latched)? {
                Ahead::Alive(watches) => break Some(watches),
                Ahead::Dead(dead) => {
                    latched.queue().entries.remove(dead);
                    at -= 1;
                    someone_died = true;
                }
            }
        };
        if ahead.is_some() && self.claim.if_busy() == IfBusy::Refuse {
            latched.queue().entries.remove(at);
            if someone_died {
                latched.commit()?;
            }
            return Ok(Step::Busy);
        }
        let pipe = match known {
            Some(_) => None,
            None => {
                let labelled = match self.store.door.has_label(self.claim.label()) {
                    Some(has_it) => !has_it,
                    None => {
                        latched.needs_disk()?;
                        !self.store.door.put_label(self.claim.label())
                    }
                };
                if labelled {
                    latched.needs_disk()?;
                }
                let (slot, pipe) = latched.take_slot(before.ticket)?;
                if labelled {
                    latched.files()?.state()?.write_label(slot, self.claim.label())?;
                }
                let queue = latched.queue();
                if queue.spare == slot {
                    queue.spare = NOBODY;
                }
                let entry = &mut queue.entries[at];
                (entry.slot, entry.labelled) = (slot, labelled);
                Some(pipe)
            }
        };
        let queue = latched.queue();
        let token = match &ahead {
            None => Some(queue.grant(at, now)),
            Some(_) => {
                queue.entries[at].watch = whom_it_watches(queue, at);
                None
            }
        };
        let entry = queue.entries[at];
        if token.is_some() {
            wake.after_grant(queue, at, &self.place);
        }
        if someone_died || entry != before {
            latched.commit()?;
        }
        if let Some(pipe) = pipe {
            {
                let mut seat = self.seat();
                (seat.pipe, seat.ticket) = (Some(pipe), Some(entry.ticket));
                seat.page = Some(latched.files()?.page().clone());
            }
            self.store.door.callers().add(self.place.caller(entry.ticket), &self.claim);
        }
        if token.is_some() {
            self.seat().held = Some(entry);
        }
        Ok(match (token, ahead) {
            (Some(token), _) => Step::Granted(token),
            (None, watches) => Step::Waits(watches.unwrap_or_default()),
        })
    }

    /// Opens the pipes of everybody whom entry `at` has to watch, or finds one that is dead.
    fn ahead_of(&self, at: usize, latched: &mut Latched<'_>) -> Result<Ahead> {
        let blockers = latched.queue().blockers(at);
        let mut watches = Vec::new();
        for index in blockers.rev() {
            let blocker = latched.queue().entries[index];
            // It lives as long as this process, and rings whoever watched it when it goes.
            let own = blocker.door == self.store.door.number()
                && self.store.door.callers().contains(self.place.caller(blocker.ticket));
            if own {
                continue;
            }
            match latched.files()?.watch(blocker.slot)? {
                Some(pipe) => watches.push(pipe),
                None => return Ok(Ahead::Dead(index)),
            }
        }
        Ok(Ahead::Alive(watches))
    }

    /// Rings the claim when one of `pipes` loses its last reader.
    fn arm(&self, pipes: Vec<OwnedFd>) -> Result<()> {
        let _in_runtime = self.store.ground.runtime.enter();
        // The safe constructor is deprecated for types that may not own their descriptor; an
        // OwnedFd does, and the replacement is unsafe code.
        #[allow(deprecated)]
        let watch = |pipe| AsyncFd::with_interest(pipe, Interest::ERROR);
        let pipes: std::io::Result<Vec<_>> = pipes.into_iter().map(watch).collect();
        let pipes = pipes.map_err(|error| runtime_ended().caused_by(error))?;
        let armed = (!pipes.is_empty()).then(|| self.claim.ring_when(any_gone(pipes)));
        self.seat().armed = armed;
        Ok(())
    }

    fn leave_seat(&self) {
        // Closed once the mutex is free.
        let left = std::mem::take(&mut *self.seat());
        if let Some(ticket) = left.ticket {
            self.store.door.callers().remove(self.place.caller(ticket));
        }
    }

    /// Takes the entry out of the queue.
    fn remove(&self, mut latched: Latched<'_>) -> Result<Removal, Stop> {
        let Some(ticket) = self.ticket() else { return Ok(Removal::Absent) };
        let queue = latched.queue();
        let Some(at) = queue.position(ticket) else { return Ok(Removal::Absent) };
        let gone = queue.entries.remove(at);
        let mut wake = Wake::default();
        wake.after_removal(queue, &gone, &self.place);
        let extra: Vec<_> = pipe::extra(queue, gone.slot).collect();
        if !extra.is_empty() {
            latched.needs_disk()?;
        }
        if let Some(inheritance) = self.passed_on.get() {
            inheritance.revoke(&gone);
        }
        latched.commit()?;
        if self.passed_on.get().is_none() {
            latched.leave_slot(gone.slot);
        }
        let files = latched.files()?;
        extra.into_iter().for_each(|slot| pipe::retire(files.dir(), slot));
        drop(latched);
        // For whoever watches this entry, and has no copy of its pipe inherited, the closing is
        // the wake-up.
        self.leave_seat();
        wake.after_closing(&gone, &files);
        wake.send(&self.store.door);
        Ok(Removal::Removed)
    }
}

impl Contender for FileContender {
    fn claim(&self) -> &Arc<Claim> {
        &self.0.claim
    }

    async fn attempt(&self) -> Result<Attempt> {
        let this = self.0.clone();
        this.store.same_process()?;
        let step = self.0.place.latched(move |latched| this.step(latched)).await?;
        Ok(match step {
            Step::Granted(token) => {
                self.0.seat().armed = None;
                let token = FencingToken::new(token);
                Attempt::Granted { token, valid_until: Moment::NEVER }
            }
            Step::Busy => Attempt::Busy { rest: Rest::Nothing },
            Step::Waits(pipes) => {
                self.0.arm(pipes)?;
                Attempt::Waiting { look_in: LOOK_AGAIN }
            }
        })
    }

    async fn release(&self) -> Result<Removal> {
        let this = self.0.clone();
        this.store.same_process()?;
        // In line behind an attempt that was given up and may still be carried out.
        let removed = self.0.place.latched_if_there(move |latched| this.remove(latched)).await;
        match removed {
            Ok(removed) => {
                self.0.leave_seat();
                Ok(removed.unwrap_or(Removal::Absent))
            }
            Err(error) => {
                // With its pipe closed the entry is dead to everybody, and whoever waits removes
                // it; the repetition of this release is for those that inherited a copy.
                let mut seat = self.0.seat();
                (seat.pipe, seat.armed) = (None, None);
                Err(error)
            }
        }
    }

    fn unanswered(&self) -> Option<Error> {
        self.0.place.trouble().map(|(_, trouble)| trouble)
    }

    #[cfg(unix)]
    fn keep_alive(&self) -> Option<BorrowedFd<'_>> {
        if self.0.passed_on.get().is_none() {
            let seat = self.0.seat();
            let (pipe, entry) = (seat.pipe.as_ref()?, seat.held?);
            let inheritance = inheritance::pass_on(self.0.place.path(), pipe, &entry).ok()?;
            // Somebody who asked at the same time may have been first.
            let _ = self.0.passed_on.set(inheritance);
        }
        self.0.passed_on.get().map(AsFd::as_fd)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Only a claim that could not be released still has a seat. Its pipe closes now, which
        // frees the lock; claims of this process had no pipe to watch.
        let abandoned = self.ticket().is_some();
        self.leave_seat();
        if abandoned {
            self.store.door.callers().ring_all();
        }
    }
}

fn whom_it_watches(queue: &Queue, at: usize) -> u16 {
    match queue.watches_every_holder(at) {
        true => EVERY_HOLDER,
        false => at.checked_sub(1).map_or(NOBODY, |ahead| queue.entries[ahead].slot),
    }
}

/// Completes when the last reader of one of `pipes` is gone.
async fn any_gone(pipes: Vec<AsyncFd<OwnedFd>>) {
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
