//! One keeper per connected store: it renews everything held, in batches, ends what was not
//! renewed in time, and sends waiters to look now and then.
//!
//! An agenda ordered by due time drives one task. Batches are spawned, never awaited by the task,
//! so a slow store delays nobody's loss; an entry whose batch is under way stays in the agenda at
//! its deadline. A hold past its validity is lost here, never by the store's word.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::backend::{Contender, DistributedLock, Look, Renewal};
use crate::batch::{Answered, Batch};
use crate::error::{LostReason, Result};
use crate::hold::{Ending, Hold};
use crate::observe::Meters;
use crate::seat::Seat;
use crate::validity::Moment;

/// Looks due this soon join one batch: they are a second apart, and nobody waits for them.
const LOOKS_TOGETHER: Duration = Duration::from_millis(125);
/// When to look again after a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// When to ask again about a rung hold that is not renewed by time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Keeper {
    agenda: Mutex<Agenda>,
    /// The task sleeps past something that is due earlier now.
    earlier: Notify,
    last_id: AtomicU64,
}

#[derive(Default)]
struct Agenda {
    entries: HashMap<u64, Entry>,
    by_due: BTreeSet<(Moment, u64)>,
    /// Until when the task sleeps; only something earlier wakes it.
    sleeps_until: Option<Moment>,
    stopped: bool,
}

struct Entry {
    due: Moment,
    asked: Asked,
    what: What,
}

enum What {
    Hold(Arc<Hold>),
    Wait(Arc<Wait>),
}

/// Whether a batch with this entry is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    Yes,
    /// And it was rung meanwhile: the answer may be older than what the ring meant.
    YesAndAgain,
}

/// A claim that waits in the store's queue.
pub(crate) struct Wait {
    seat: Arc<Seat>,
    /// When it first asked what the store has not answered since: never, if it owes nothing.
    /// Waiting for a bell is no silence, however long it takes.
    unanswered_since: AtomicU64,
    unreachable_after: Duration,
}

impl Wait {
    pub(crate) fn new(seat: Arc<Seat>, unreachable_after: Duration) -> Wait {
        let unanswered_since = AtomicU64::new(Moment::NEVER.as_nanos());
        Wait { seat, unanswered_since, unreachable_after }
    }

    pub(crate) fn asked(&self, now: Moment) {
        self.unanswered_since.fetch_min(now.as_nanos(), Ordering::AcqRel);
    }

    pub(crate) fn answered(&self) {
        self.unanswered_since.store(Moment::NEVER.as_nanos(), Ordering::Release);
    }

    /// Until when the store may stay silent.
    pub(crate) fn silence_ends(&self) -> Moment {
        let since = Moment::from_nanos(self.unanswered_since.load(Ordering::Acquire));
        since.after(self.unreachable_after)
    }
}

/// What the task has to do now.
#[derive(Default)]
struct Due {
    expired: Vec<(Arc<Hold>, Moment)>,
    renew: Vec<(u64, Arc<dyn Contender>)>,
    look: Vec<(u64, Arc<dyn Contender>)>,
    meters: Option<Arc<Meters>>,
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
        agenda.remove(id);
        agenda.by_due.insert((due, id));
        agenda.entries.insert(id, Entry { due, asked: Asked::No, what });
        self.wake_if_earlier(&agenda, due);
        true
    }

    fn wake_if_earlier(&self, agenda: &Agenda, due: Moment) {
        if agenda.sleeps_until.is_some_and(|target| due < target) {
            self.earlier.notify_one();
        }
    }

    /// Keeps `hold` until it is removed or lost. `false` when the keeper has stopped.
    pub(crate) fn keep(&self, hold: Arc<Hold>, now: Moment) -> bool {
        let due = next_renewal(&hold, now);
        self.insert(hold.claim().id, due, What::Hold(hold))
    }

    /// Sends `wait` to look at `due`. `false` when the keeper has stopped.
    pub(crate) fn watch(&self, wait: Arc<Wait>, due: Moment) -> bool {
        self.insert(wait.seat.claim().id, due, What::Wait(wait))
    }

    pub(crate) fn remove(&self, id: u64) {
        self.agenda().remove(id);
    }

    /// A held claim was rung.
    fn renew_now(&self, id: u64) {
        let mut agenda = self.agenda();
        let Some(entry) = agenda.entries.get_mut(&id) else { return };
        if let What::Wait(_) = entry.what {
            return;
        }
        match entry.asked {
            Asked::No => {
                agenda.move_to(id, Moment::from_nanos(0), Asked::No);
                self.wake_if_earlier(&agenda, Moment::from_nanos(0));
            }
            Asked::Yes | Asked::YesAndAgain => entry.asked = Asked::YesAndAgain,
        }
    }

    /// Ends every hold, sends every waiter to find out, and takes nothing any more.
    pub(crate) fn stop(&self, now: Moment) {
        let (order, mut entries) = {
            let mut agenda = self.agenda();
            agenda.stopped = true;
            (std::mem::take(&mut agenda.by_due), std::mem::take(&mut agenda.entries))
        };
        for entry in order.into_iter().filter_map(|(_, id)| entries.remove(&id)) {
            match entry.what {
                What::Hold(hold) => {
                    hold.end(Ending::Lost(LostReason::Closed), now);
                }
                What::Wait(wait) => {
                    wait.seat.claim().ring();
                }
            }
        }
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.agenda().stopped
    }

    /// The task. Ends only with its runtime or by an abort; then every hold ends too, even if the
    /// runtime ended before it polled the task once.
    pub(crate) fn run(
        self: Arc<Keeper>,
        store: Arc<dyn DistributedLock>,
        rung: UnboundedReceiver<u64>,
    ) -> impl Future<Output = ()> + Send {
        let stop = StopOnDrop { keeper: self.clone(), store: store.clone() };
        async move {
            let _stop = stop;
            self.go_on(store, rung).await;
        }
    }

    async fn go_on(
        self: Arc<Keeper>,
        store: Arc<dyn DistributedLock>,
        mut rung: UnboundedReceiver<u64>,
    ) {
        loop {
            let now = store.clock().now();
            let (due, next) = self.take_due(now);
            for (hold, until) in due.expired {
                hold.expire(until, now);
            }
            if !due.renew.is_empty() {
                let keeper = self.clone();
                let tell = move |id, answer, when| keeper.renewed(id, answer, when);
                tokio::spawn(Batch::new(&store, due.renew, tell).renew(due.meters));
            }
            if !due.look.is_empty() {
                let keeper = self.clone();
                let tell = move |id, answer, when| keeper.looked(id, answer, when);
                tokio::spawn(Batch::new(&store, due.look, tell).look());
            }
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
                Some(id) = rung.recv() => self.renew_now(id),
                () = store.clock().sleep_until(next) => {}
            }
        }
    }

    /// Takes what is due now, and with it what is due soon, into a batch.
    fn take_due(&self, now: Moment) -> (Due, Moment) {
        let mut agenda = self.agenda();
        let mut due = Due::default();
        let horizon = agenda.horizon(now);
        let candidates: Vec<u64> =
            agenda.by_due.range(..=(horizon, u64::MAX)).map(|(_, id)| *id).collect();
        for id in candidates {
            let Some(entry) = agenda.entries.get(&id) else { continue };
            match &entry.what {
                What::Hold(hold) => match hold.valid_until() {
                    None => agenda.remove(id),
                    Some(until) if now >= until => {
                        due.expired.push((hold.clone(), until));
                        agenda.remove(id);
                    }
                    Some(until) => {
                        let early = hold.period().map_or(Duration::ZERO, |period| period / 8);
                        let asked = entry.asked;
                        if asked == Asked::No && entry.due < until && entry.due.before(early) <= now
                        {
                            due.renew.push((id, hold.seat().contender().clone()));
                            due.meters.get_or_insert_with(|| hold.meters().clone());
                            agenda.move_to(id, until, Asked::Yes);
                        } else if entry.due <= now {
                            // What it waited for was an end that has been moved since.
                            agenda.move_to(id, until, asked);
                        }
                    }
                },
                What::Wait(wait) => {
                    if entry.asked == Asked::No && entry.due.before(LOOKS_TOGETHER) <= now {
                        wait.asked(now);
                        due.look.push((id, wait.seat.contender().clone()));
                        agenda.move_to(id, Moment::NEVER, Asked::Yes);
                    }
                }
            }
        }
        let next = agenda.by_due.first().map_or(Moment::NEVER, |(due, _)| *due);
        agenda.sleeps_until = Some(next);
        (due, next)
    }

    fn renewed(&self, id: u64, answer: Result<Renewal>, when: Answered) {
        let Answered { asked: started, now } = when;
        let ended = {
            let mut agenda = self.agenda();
            let Some(Entry { asked, what: What::Hold(hold), .. }) = agenda.entries.get(&id) else {
                return;
            };
            let (asked, hold) = (*asked, hold.clone());
            let extended = match answer {
                Ok(Renewal::Renewed { valid_until }) => {
                    hold.extend(valid_until, now).then(|| next_renewal(&hold, started))
                }
                Ok(Renewal::Lost) => None,
                Err(error) => {
                    tracing::debug!(target: "fencelock", lock = %hold.claim().name(), %error,
                        "renewal unknown, the old deadline stands");
                    let again = hold.period().map_or(ASK_AGAIN, |period| period / 4);
                    Some(hold.valid_until().map_or(now, |until| until.min(now.after(again))))
                }
            };
            match extended {
                Some(due) => {
                    let due = if asked == Asked::YesAndAgain { now } else { due };
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
        if let Some(hold) = ended {
            hold.end(Ending::Lost(LostReason::TakenAway), now);
        }
    }

    fn looked(&self, id: u64, answer: Result<Look>, when: Answered) {
        let now = when.now;
        let mut agenda = self.agenda();
        let Some(Entry { what: What::Wait(wait), .. }) = agenda.entries.get(&id) else { return };
        let wait = wait.clone();
        let due = match answer {
            Ok(look) => {
                wait.answered();
                match look {
                    // The claim's own attempt sets the next look.
                    Look::Attempt => {
                        wait.seat.claim().ring();
                        now.after(LOOK_AGAIN)
                    }
                    Look::Again(after) => now.after(after),
                }
            }
            Err(error) => {
                tracing::debug!(target: "fencelock", lock = %wait.seat.claim().name(), %error,
                    "the safety look had no answer");
                if now >= wait.silence_ends() {
                    // Its own attempt finds out, and answers the caller.
                    wait.seat.claim().ring();
                }
                now.after(LOOK_AGAIN)
            }
        };
        agenda.move_to(id, due, Asked::No);
        self.wake_if_earlier(&agenda, due);
    }
}

impl Agenda {
    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_due.remove(&(entry.due, id));
        }
    }

    fn move_to(&mut self, id: u64, due: Moment, asked: Asked) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.by_due.remove(&(entry.due, id));
            (entry.due, entry.asked) = (due, asked);
            self.by_due.insert((due, id));
        }
    }

    /// Up to when entries may join what is due now: nowhere, if nothing is.
    fn horizon(&self, now: Moment) -> Moment {
        let mut horizon = now;
        for (_, id) in self.by_due.range(..=(now, u64::MAX)) {
            let ahead = match self.entries.get(id).map(|entry| &entry.what) {
                Some(What::Hold(hold)) => hold.period().map_or(Duration::ZERO, |it| it / 8),
                Some(What::Wait(_)) => LOOKS_TOGETHER,
                None => Duration::ZERO,
            };
            horizon = horizon.max(now.after(ahead));
        }
        horizon
    }
}

/// A period after the last renewal was sent, or at the end where nothing is renewed by time.
fn next_renewal(hold: &Hold, sent: Moment) -> Moment {
    let until = hold.valid_until().unwrap_or(sent);
    hold.period().map_or(until, |period| until.min(sent.after(period)))
}

struct StopOnDrop {
    keeper: Arc<Keeper>,
    store: Arc<dyn DistributedLock>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.keeper.stop(self.store.clock().now());
    }
}
