//! One keeper per connected store: it renews everything held, in batches, ends what was not
//! renewed in time, and sends waiters to look now and then.
//!
//! An [`Agenda`] ordered by due time drives one task. Batches are spawned, never awaited by the task,
//! so a slow store delays nobody's loss; an entry whose batch is under way stays in the agenda at
//! its deadline. A hold past its validity is lost here, never by the store's word.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::agenda::{Agenda, Asked, Due, Entry, What, next_look, next_renewal, renewal_again};
use crate::backend::{RenewOutcome, WaiterCheck};
use crate::claim::Claim;
use crate::erased::Store;
use crate::error::{LostReason, Result};
use crate::hold::{Ending, Hold};
use crate::validity::Moment;
use crate::wait::Wait;

/// How long the task goes on looking by itself after it was woken.
const LINGER: Duration = Duration::from_secs(1);
/// When to look again after a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Keeper {
    agenda: Mutex<Agenda>,
    /// The task sleeps past something that is due earlier now.
    earlier: Notify,
    last_id: AtomicU64,
}

impl Keeper {
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn agenda(&self) -> MutexGuard<'_, Agenda> {
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, id: u64, due: Moment, what: What) -> bool {
        let mut agenda = self.agenda();
        if agenda.stopped {
            return false;
        }
        agenda.insert(id, due, what);
        self.wake_if_earlier(&agenda, due);
        true
    }

    fn wake_if_earlier(&self, agenda: &Agenda, due: Moment) {
        if agenda.sleeps_until.is_some_and(|target| due < target) {
            self.earlier.notify_one();
        }
    }

    /// Keeps `hold`, whose attempt was sent at `sent`, until it is removed or lost. `false` when
    /// the keeper has stopped.
    pub(crate) fn keep(&self, hold: Arc<Hold>, sent: Moment, now: Moment) -> bool {
        let due = next_renewal(&hold, sent, now);
        self.insert(hold.claim().id, due, What::Hold(hold))
    }

    /// Sends `wait` to look in `check_after`. `false` when the keeper has stopped.
    pub(crate) fn watch(&self, wait: Arc<Wait>, check_after: Duration, now: Moment) -> bool {
        self.insert(wait.seat().claim().id, next_look(check_after, now), What::Wait(wait))
    }

    pub(crate) fn remove(&self, id: u64) {
        self.agenda().remove(id);
    }

    /// A held claim was rung.
    fn renew_now(&self, id: u64) {
        let mut agenda = self.agenda();
        let Some(Entry { asked, what: What::Hold(_), .. }) = agenda.get_mut(id) else { return };
        match asked {
            // The task itself calls this, and looks at the agenda next.
            Asked::No => agenda.move_to(id, Moment::from_nanos(0), Asked::No),
            Asked::Yes | Asked::YesAndAgain => *asked = Asked::YesAndAgain,
        }
    }

    /// Ends every hold, sends every waiter away, and takes nothing any more.
    pub(crate) fn stop(&self, now: Moment) {
        let all = self.agenda().stop();
        for what in all {
            match what {
                What::Hold(hold) => {
                    hold.end(Ending::Lost(LostReason::Closed), now);
                }
                What::Wait(wait) => wait.send_away(),
            }
        }
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.agenda().stopped
    }

    /// The task. Ends only with its runtime or by an abort; then every hold ends too, even if the
    /// runtime ended before it polled the task once, and `closing` tells everybody else.
    pub(crate) fn run(
        self: Arc<Keeper>,
        store: Arc<dyn Store>,
        rung: UnboundedReceiver<u64>,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let stop = StopOnDrop { keeper: self.clone(), store: store.clone(), closing };
        async move {
            let _stop = stop;
            self.go_on(store, rung).await;
        }
    }

    async fn go_on(self: Arc<Keeper>, store: Arc<dyn Store>, mut rung: UnboundedReceiver<u64>) {
        // A hold that is short, and the only one, is gone again when this task comes to look. If
        // that left it without a time to come, each of them would wake it anew.
        let mut busy = false;
        loop {
            // All that were rung together, as after a reconnect, make one batch.
            while let Ok(id) = rung.try_recv() {
                self.renew_now(id);
            }
            let now = store.clock().now();
            let at_latest = if busy { now + LINGER } else { Moment::NEVER };
            let (due, next) = self.agenda().take_due(now, at_latest);
            self.carry_out(due, &store, now);
            tokio::select! {
                biased;
                () = self.earlier.notified() => busy = true,
                Some(id) = rung.recv() => self.renew_now(id),
                () = store.clock().sleep_until(next) => busy = false,
            }
        }
    }

    fn carry_out(self: &Arc<Keeper>, due: Due, store: &Arc<dyn Store>, now: Moment) {
        for (hold, until) in due.expired {
            hold.expire(until, now);
        }
        for wait in due.find_out {
            wait.seat().claim().wake();
        }
        if !due.renew.is_empty() {
            let (keeper, store) = (self.clone(), store.clone());
            tokio::spawn(async move {
                let told = |claim: &Arc<Claim>, answer| {
                    keeper.renewed(claim.id, answer, now, store.clock().now());
                };
                store.renew(&due.renew, &told).await;
                if let Some(meters) = due.meters {
                    meters.renewed(store.clock().now().duration_since(now));
                }
            });
        }
        if !due.look.is_empty() {
            let (keeper, store) = (self.clone(), store.clone());
            tokio::spawn(async move {
                let told = |claim: &Arc<Claim>, answer| {
                    keeper.looked(claim, answer, store.clock().now());
                };
                store.look(&due.look, &told).await;
            });
        }
    }

    /// The answer, read `now`, to a renewal in a batch that was sent at `sent`.
    fn renewed(&self, id: u64, answer: Result<RenewOutcome>, sent: Moment, now: Moment) {
        let ended = {
            let mut agenda = self.agenda();
            let Some(entry) = agenda.get_mut(id) else { return };
            let What::Hold(hold) = &entry.what else { return };
            let (asked, hold) = (entry.asked, hold.clone());
            let due = match &answer {
                Ok(RenewOutcome::Renewed { valid_until }) => match hold.extend(*valid_until, now) {
                    true if asked == Asked::YesAndAgain => Some(now),
                    true => Some(next_renewal(&hold, sent, now)),
                    false => None,
                },
                Ok(RenewOutcome::Lost) => None,
                // A later batch has answered meanwhile.
                Err(_) if asked == Asked::No => return,
                Err(_) => Some(renewal_again(&hold, now)),
            };
            match due {
                Some(due) => {
                    agenda.move_to(id, due, Asked::No);
                    self.wake_if_earlier(&agenda, due);
                    None
                }
                None => {
                    agenda.remove(id);
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

    fn looked(&self, claim: &Claim, answer: Result<WaiterCheck>, now: Moment) {
        let mut find_out = matches!(answer, Ok(WaiterCheck::Attempt));
        {
            let mut agenda = self.agenda();
            if let Some(Entry { asked: Asked::Yes, what: What::Wait(wait), .. }) =
                agenda.get_mut(claim.id)
            {
                let check_after = match &answer {
                    Ok(look) => {
                        wait.answered();
                        match look {
                            // The claim's own attempt sets the next look.
                            WaiterCheck::Attempt => LOOK_AGAIN,
                            WaiterCheck::Again(after) => *after,
                        }
                    }
                    Err(error) => {
                        // Its own attempt finds out, and answers the caller.
                        find_out |= !error.is_retryable() || now >= wait.silence_ends();
                        wait.troubled(error.clone());
                        LOOK_AGAIN
                    }
                };
                let due = next_look(check_after, now);
                agenda.move_to(claim.id, due, Asked::No);
                self.wake_if_earlier(&agenda, due);
            }
        }
        // Also a claim whose own attempt is under way: that may be older than the look.
        if find_out {
            claim.wake();
        }
        if let Err(error) = answer {
            tracing::debug!(target: "fencelock", %error, "the safety look had no answer");
        }
    }
}

struct StopOnDrop {
    keeper: Arc<Keeper>,
    store: Arc<dyn Store>,
    closing: CancellationToken,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.closing.cancel();
        self.keeper.stop(self.store.clock().now());
    }
}
