//! One keeper per connected store: it renews everything held, in batches, ends what was not
//! renewed in time, and sends waiters to look now and then.
//!
//! An [`Schedule`] ordered by due time drives one task. Batches are spawned, never awaited by the task,
//! so a slow store delays nobody's loss; an entry whose batch is under way stays in the agenda at
//! its deadline. A hold past its validity is lost here, never by the store's word.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::engine::hold::{Ending, Hold};
use crate::engine::renewal::batch::{Answered, Batch};
use crate::engine::renewal::schedule::{
    Due, Entry, InFlight, Schedule, Task, next_check, next_renewal, renewal_again,
};
use crate::engine::wait::Wait;
use crate::store::distributed_lock::{Acquisition, DistributedLock, RenewOutcome, WaiterCheck};
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{LostReason, Result};

/// How long the task goes on looking by itself after it was woken.
const LINGER: Duration = Duration::from_secs(1);
/// When to look again after a look that failed.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct RenewalWorker {
    schedule: Mutex<Schedule>,
    /// The task sleeps past something that is due earlier now.
    earlier: Notify,
    last_id: AtomicU64,
}

impl RenewalWorker {
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }

    fn insert(&self, id: u64, due: Moment, what: Task) -> bool {
        let mut schedule = self.schedule();
        if schedule.stopped {
            return false;
        }
        schedule.insert(id, due, what);
        self.wake_if_earlier(&schedule, due);
        true
    }

    fn wake_if_earlier(&self, schedule: &Schedule, due: Moment) {
        if schedule.sleeps_until.is_some_and(|target| due < target) {
            self.earlier.notify_one();
        }
    }

    /// Keeps `hold`, whose attempt was sent at `sent`, until it is removed or lost. `false` when
    /// the keeper has stopped.
    pub(crate) fn keep(&self, hold: Arc<Hold>, sent: Moment, now: Moment) -> bool {
        let due = next_renewal(&hold, sent, now);
        self.insert(hold.claim().id, due, Task::Hold(hold))
    }

    /// Sends `wait` to look in `check_after`. `false` when the keeper has stopped.
    pub(crate) fn watch(&self, wait: Arc<Wait>, check_after: Duration, now: Moment) -> bool {
        self.insert(wait.cleanup().claim().id, next_check(check_after, now), Task::Wait(wait))
    }

    pub(crate) fn remove(&self, id: u64) {
        self.schedule().remove(id);
    }

    /// A held claim was rung.
    fn renew_now(&self, id: u64) {
        let mut schedule = self.schedule();
        let Some(Entry { asked, what: Task::Hold(_), .. }) = schedule.get_mut(id) else { return };
        match asked {
            // The task itself calls this, and looks at the agenda next.
            InFlight::No => schedule.move_to(id, Moment::from_nanos(0), InFlight::No),
            InFlight::Yes | InFlight::YesAndWoken => *asked = InFlight::YesAndWoken,
        }
    }

    /// Ends every hold, sends every waiter away, and takes nothing any more.
    pub(crate) fn stop(&self, now: Moment) {
        let all = self.schedule().stop();
        for what in all {
            match what {
                Task::Hold(hold) => {
                    hold.end(Ending::Lost(LostReason::Closed), now);
                }
                Task::Wait(wait) => wait.send_away(),
            }
        }
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.schedule().stopped
    }

    /// The task. Ends only with its runtime or by an abort; then every hold ends too, even if the
    /// runtime ended before it polled the task once, and `closing` tells everybody else.
    pub(crate) fn run(
        self: Arc<RenewalWorker>,
        store: Arc<dyn DistributedLock>,
        woken: UnboundedReceiver<u64>,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let stop = StopOnDrop { worker: self.clone(), store: store.clone(), closing };
        async move {
            let _stop = stop;
            self.go_on(store, woken).await;
        }
    }

    async fn go_on(
        self: Arc<RenewalWorker>,
        store: Arc<dyn DistributedLock>,
        mut woken: UnboundedReceiver<u64>,
    ) {
        // A hold that is short, and the only one, is gone again when this task comes to look. If
        // that left it without a time to come, each of them would wake it anew.
        let mut busy = false;
        loop {
            // All that were rung together, as after a reconnect, make one batch.
            while let Ok(id) = woken.try_recv() {
                self.renew_now(id);
            }
            let now = store.clock().now();
            let at_latest = if busy { now + LINGER } else { Moment::NEVER };
            let (due, next) = self.schedule().take_due(now, at_latest);
            self.carry_out(due, &store, now);
            tokio::select! {
                biased;
                () = self.earlier.notified() => busy = true,
                Some(id) = woken.recv() => self.renew_now(id),
                () = store.clock().sleep_until(next) => busy = false,
            }
        }
    }

    fn carry_out(
        self: &Arc<RenewalWorker>,
        due: Due,
        store: &Arc<dyn DistributedLock>,
        now: Moment,
    ) {
        for (hold, until) in due.expired {
            hold.expire(until, now);
        }
        for wait in due.find_out {
            wait.cleanup().claim().wake();
        }
        if !due.renew.is_empty() {
            let worker = self.clone();
            let tell = move |id, _: &_, answer, when| worker.renewed(id, answer, when);
            tokio::spawn(Batch::new(store, due.renew, tell).renew(due.metrics));
        }
        if !due.look.is_empty() {
            let worker = self.clone();
            let tell = move |id, acquisition: &Arc<dyn Acquisition>, answer, when| {
                worker.looked(id, acquisition, answer, when);
            };
            tokio::spawn(Batch::new(store, due.look, tell).look());
        }
    }

    fn renewed(&self, id: u64, answer: Result<RenewOutcome>, when: Answered) {
        let now = when.now;
        let ended = {
            let mut schedule = self.schedule();
            let Some(entry) = schedule.get_mut(id) else { return };
            let Task::Hold(hold) = &entry.what else { return };
            let (asked, hold) = (entry.asked, hold.clone());
            let due = match &answer {
                Ok(RenewOutcome::Renewed { valid_until }) => match hold.extend(*valid_until, now) {
                    true if asked == InFlight::YesAndWoken => Some(now),
                    true => Some(next_renewal(&hold, when.asked, now)),
                    false => None,
                },
                Ok(RenewOutcome::Lost) => None,
                // A later batch has answered meanwhile.
                Err(_) if asked == InFlight::No => return,
                Err(_) => Some(renewal_again(&hold, now)),
            };
            match due {
                Some(due) => {
                    schedule.move_to(id, due, InFlight::No);
                    self.wake_if_earlier(&schedule, due);
                    None
                }
                None => {
                    schedule.remove(id);
                    Some(hold)
                }
            }
        };
        match (ended, answer) {
            (Some(hold), Ok(RenewOutcome::Lost)) => {
                hold.end(Ending::Lost(LostReason::TakenAway), now);
            }
            // Extended too late: whoever asks first ends it as expired.
            (Some(hold), _) => {
                hold.is_held(now);
            }
            (None, Err(error)) => {
                tracing::debug!(target: "fencelock", %error, "renewal unknown, deadline stands");
            }
            (None, Ok(_)) => {}
        }
    }

    fn looked(
        &self,
        id: u64,
        acquisition: &Arc<dyn Acquisition>,
        answer: Result<WaiterCheck>,
        when: Answered,
    ) {
        let mut find_out = matches!(answer, Ok(WaiterCheck::Attempt));
        {
            let mut schedule = self.schedule();
            if let Some(Entry { asked: InFlight::Yes, what: Task::Wait(wait), .. }) =
                schedule.get_mut(id)
            {
                let check_after = match &answer {
                    Ok(look) => {
                        wait.answered();
                        match look {
                            // The claim's own attempt sets the next look.
                            WaiterCheck::Attempt => CHECK_AGAIN,
                            WaiterCheck::Again(after) => *after,
                        }
                    }
                    Err(error) => {
                        // Its own attempt finds out, and answers the caller.
                        find_out |= !error.is_retryable() || when.now >= wait.silence_ends();
                        wait.troubled(error.clone());
                        CHECK_AGAIN
                    }
                };
                let due = next_check(check_after, when.now);
                schedule.move_to(id, due, InFlight::No);
                self.wake_if_earlier(&schedule, due);
            }
        }
        // Also a claim whose own attempt is under way: that may be older than the look.
        if find_out {
            acquisition.claim().wake();
        }
        if let Err(error) = answer {
            tracing::debug!(target: "fencelock", %error, "the safety look had no answer");
        }
    }
}

struct StopOnDrop {
    worker: Arc<RenewalWorker>,
    store: Arc<dyn DistributedLock>,
    closing: CancellationToken,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.closing.cancel();
        self.worker.stop(self.store.clock().now());
    }
}
