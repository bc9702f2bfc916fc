//! The renewal worker, one per client: it renews everything held, in batches, expires what was not
//! renewed in time, and periodically re-checks waiters for missed wake-ups.
//!
//! One task works through a [`Schedule`] ordered by due time. It spawns batches and never awaits
//! them, so a slow store delays no loss; an entry whose batch is in flight stays in the schedule,
//! due when it is sent again or at its deadline. A hold past its validity is lost here (`carry_out`), without asking the store; so is
//! one that the store says is gone (`renewed`), and each at the end of the client (`stop`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::schedule::{Due, Entry, InFlight, Schedule, Task};
use super::timing::{RECHECK, next_check, next_renewal, next_retry};
use crate::claim::hold::{Ending, Hold};
use crate::claim::own_hold;
use crate::claim::wait::Wait;
use crate::store::claim::Claim;
use crate::store::distributed_lock::{RenewOutcome, WaiterCheck};
use crate::store::erased::ErasedStore;
use crate::sync::Mutex;
use crate::telemetry::program;
use crate::time::moment::Moment;
use crate::types::error::{LostReason, Result};
use crate::types::mode::Mode;
use crate::types::name::LockName;

/// How long the task keeps polling its schedule after it was woken.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct RenewalWorker {
    schedule: Mutex<Schedule>,
    /// Wakes the task: something is due before the end of its sleep.
    earlier: Notify,
    last_id: AtomicU64,
    /// When any wait was answered last, in ns.
    last_answer: AtomicU64,
}

impl RenewalWorker {
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn insert(&self, id: u64, due: Moment, task: Task) -> bool {
        let mut schedule = self.schedule.lock();
        if schedule.stopped {
            return false;
        }
        schedule.insert(id, due, task);
        self.wake_if_earlier(&schedule, due);
        true
    }

    fn wake_if_earlier(&self, schedule: &Schedule, due: Moment) {
        if schedule.sleeps_until.is_some_and(|target| due < target) {
            self.earlier.notify_one();
        }
    }

    /// Renews `hold`, whose attempt was sent at `sent`, until it is removed or lost. `false` when the
    /// worker has stopped.
    pub(crate) fn keep(&self, hold: Arc<Hold>, sent: Moment, now: Moment) -> bool {
        let due = next_renewal(&hold, sent, now);
        self.insert(hold.claim().id, due, Task::Hold(hold))
    }

    /// Checks `wait` after `check_after`, and from then on as often as the backend asks for. `false`
    /// when the worker has stopped.
    pub(crate) fn watch(&self, wait: Arc<Wait>, check_after: Duration, now: Moment) -> bool {
        self.insert(wait.cleanup.claim().id, next_check(check_after, now), Task::Wait(wait))
    }

    /// Checks `wait` now, also while a look is under way.
    pub(crate) fn check_now(&self, wait: &Wait, now: Moment) {
        wait.asked_for_caller(now);
        let claim = wait.cleanup.claim();
        claim.is_awaited.store(true, Ordering::Relaxed);
        let id = claim.id;
        let mut schedule = self.schedule.lock();
        if let Some(Entry { task: Task::Wait(_), .. }) = schedule.get_mut(id) {
            schedule.move_to(id, now, InFlight::No);
            self.wake_if_earlier(&schedule, now);
        }
    }

    /// The store has told `wait` that the lock is busy.
    pub(crate) fn answered(&self, wait: &Wait, now: Moment) {
        self.last_answer.store(now.as_nanos(), Ordering::Relaxed);
        wait.answered(now);
    }

    pub(crate) fn last_answer(&self) -> Moment {
        Moment::from_nanos(self.last_answer.load(Ordering::Relaxed))
    }

    pub(crate) fn remove(&self, id: u64) {
        let removed = self.schedule.lock().remove(id);
        drop(removed);
    }

    /// Renews a held claim that was woken.
    fn renew_now(&self, id: u64) {
        let mut schedule = self.schedule.lock();
        let Some(Entry { in_flight, task: Task::Hold(_), .. }) = schedule.get_mut(id) else {
            return;
        };
        match in_flight {
            // The task itself calls this, and takes what is due next.
            InFlight::No => schedule.move_to(id, Moment::from_nanos(0), InFlight::No),
            InFlight::Yes | InFlight::YesAndWoken => *in_flight = InFlight::YesAndWoken,
        }
    }

    /// Ends every hold, dismisses every waiter, and accepts no more.
    pub(crate) fn stop(&self, now: Moment) {
        let all = self.schedule.lock().stop();
        for task in all {
            match task {
                Task::Hold(hold) => {
                    hold.end(Ending::Lost(LostReason::Closed), now);
                }
                Task::Wait(wait) => wait.dismiss(),
            }
        }
    }

    /// The holds of `lock`, for a text: none among very many entries, whose search would delay the
    /// renewals.
    pub(crate) fn holds_of(&self, lock: &LockName, now: Moment) -> Vec<Arc<Hold>> {
        self.schedule.lock().holds_of(lock, now)
    }

    /// Looks whether this client holds `lock` itself, for which an acquisition has waited long.
    pub(crate) fn log_own_hold(&self, lock: &LockName, wanted: Mode, now: Moment) {
        own_hold::log(lock, wanted, self.holds_of(lock, now), now);
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.schedule.lock().stopped
    }

    /// The task. It ends only with its runtime or by an abort; then every hold ends too, even if the
    /// runtime ended before it polled the task once, and `closing` notifies all other tasks.
    pub(crate) fn run(
        self: Arc<RenewalWorker>,
        store: Arc<dyn ErasedStore>,
        woken: UnboundedReceiver<u64>,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let stop = StopOnDrop { worker: self.clone(), store: store.clone(), closing };
        async move {
            let _stop = stop;
            self.work(store, woken).await;
        }
    }

    async fn work(
        self: Arc<RenewalWorker>,
        store: Arc<dyn ErasedStore>,
        mut woken: UnboundedReceiver<u64>,
    ) {
        // A single short hold has ended before this task gets to its schedule. Without a time limit
        // on the sleep that follows, each such hold would wake the task again.
        let mut busy = false;
        loop {
            // Claims that were woken together, for example after a reconnect, are renewed in one batch.
            while let Ok(id) = woken.try_recv() {
                self.renew_now(id);
            }
            let now = store.clock().now();
            let at_latest = if busy { now + LINGER } else { Moment::NEVER };
            let (due, next) = self.schedule.lock().take_due(now, at_latest);
            self.carry_out(due, &store, now);
            tokio::select! {
                biased;
                () = self.earlier.notified() => busy = true,
                Some(id) = woken.recv() => self.renew_now(id),
                () = store.clock().sleep_until(next) => busy = false,
            }
        }
    }

    fn carry_out(self: &Arc<RenewalWorker>, due: Due, store: &Arc<dyn ErasedStore>, now: Moment) {
        for (hold, until) in due.expired {
            hold.expire(until, now);
        }
        for wait in due.unanswered {
            wait.cleanup.claim().wake();
        }
        for (lock, wanted) in due.long_waits {
            self.log_own_hold(&lock, wanted, now);
        }
        if !due.renew.is_empty() {
            let (worker, store) = (self.clone(), store.clone());
            tokio::spawn(async move {
                let report = |claim: &Arc<Claim>, answer| {
                    worker.renewed(claim.id, answer, now, store.clock().now());
                };
                store.renew(&due.renew, &report).await;
                if let Some(metrics) = due.metrics {
                    metrics.renewed(store.clock().now().duration_since(now));
                }
            });
        }
        if !due.check.is_empty() {
            let (worker, store) = (self.clone(), store.clone());
            tokio::spawn(async move {
                let report = |claim: &Arc<Claim>, answer| {
                    worker.checked(claim, answer, store.clock().now());
                };
                store.check_waiters(&due.check, &report).await;
            });
        }
    }

    /// Handles the answer, received at `now`, to a renewal of a batch that was sent at `sent`.
    fn renewed(&self, id: u64, answer: Result<RenewOutcome>, sent: Moment, now: Moment) {
        let (hold, ended) = {
            let mut schedule = self.schedule.lock();
            let Some(entry) = schedule.get_mut(id) else { return };
            let Task::Hold(hold) = &entry.task else { return };
            let (in_flight, hold) = (entry.in_flight, hold.clone());
            let due = match &answer {
                Ok(RenewOutcome::Renewed { valid_until }) => match hold.extend(*valid_until, now) {
                    true if in_flight == InFlight::YesAndWoken => Some(now),
                    true => Some(next_renewal(&hold, sent, now)),
                    false => None,
                },
                Ok(RenewOutcome::Lost) => None,
                // A later batch has answered meanwhile.
                Err(_) if in_flight == InFlight::No => return,
                Err(_) => Some(next_retry(&hold, now)),
            };
            let ended = match due {
                Some(due) => {
                    schedule.move_to(id, due, InFlight::No);
                    self.wake_if_earlier(&schedule, due);
                    None
                }
                None => schedule.remove(id),
            };
            (hold, ended)
        };
        match (ended, answer) {
            (Some(_), Ok(RenewOutcome::Lost)) => {
                hold.end(Ending::Lost(LostReason::TakenAway), now);
            }
            // Extended too late: asking whether it is held ends it as expired.
            (Some(_), _) => {
                hold.is_held(now);
            }
            (None, Err(error)) => {
                program::call(|| {
                    tracing::debug!(target: "fencelock", %error, "renewal unknown, deadline stands");
                });
            }
            (None, Ok(_)) => hold.was_extended(),
        }
    }

    /// Handles the answer, received at `now`, to a check of one waiter.
    fn checked(&self, claim: &Claim, answer: Result<WaiterCheck>, now: Moment) {
        let mut must_attempt = matches!(answer, Ok(WaiterCheck::Attempt));
        {
            let mut schedule = self.schedule.lock();
            if let Some(Entry { in_flight: InFlight::Yes, task: Task::Wait(wait), .. }) =
                schedule.get_mut(claim.id)
            {
                let check_after = match &answer {
                    // The claim's own attempt answers, and schedules the next check.
                    Ok(WaiterCheck::Attempt) => {
                        wait.may_be_granted(now);
                        RECHECK
                    }
                    Ok(WaiterCheck::Again(after)) => {
                        self.answered(wait, now);
                        *after
                    }
                    Err(error) => {
                        // The claim's own attempt reports the error to the caller.
                        must_attempt |= !error.is_retryable() || now >= wait.silence_ends();
                        wait.failed(error.clone());
                        RECHECK
                    }
                };
                let due = next_check(check_after, now);
                schedule.move_to(claim.id, due, InFlight::No);
                self.wake_if_earlier(&schedule, due);
            }
        }
        // Also while the claim's own attempt is in flight: it may be older than the check.
        if must_attempt {
            claim.wake();
        }
        if let Err(error) = answer {
            program::call(|| {
                tracing::debug!(target: "fencelock", %error, "the check of a waiter had no answer");
            });
        }
    }
}

struct StopOnDrop {
    worker: Arc<RenewalWorker>,
    store: Arc<dyn ErasedStore>,
    closing: CancellationToken,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.closing.cancel();
        self.worker.stop(self.store.clock().now());
    }
}
