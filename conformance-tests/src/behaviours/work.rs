//! Steps that several behaviours share: many tasks on one lock with their history, and common
//! checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::{ErrorKind, Guard, Keep, Lock, Locks, LostReason};
use tokio::task::JoinSet;

use crate::history::checker::Rules;
use crate::history::{Event, Worker};
use crate::how::How;
use crate::suite::context::Context;
pub(super) use crate::suite::waiting::assert_kind;
use crate::suite::waiting::{self, Waiter};

/// Each of `clients` holds `name` `rounds` times, all of them concurrently, in the mode that `how`
/// gives for the client's index. Returns the history.
pub(super) async fn contend(
    context: &Arc<Context>,
    clients: Vec<Locks>,
    name: &str,
    rounds: u32,
    how: impl Fn(usize) -> How,
) -> Vec<Event> {
    let mut tasks = JoinSet::new();
    for (index, locks) in clients.into_iter().enumerate() {
        let (name, how) = (name.to_owned(), how(index));
        tasks.spawn(async move {
            let mut worker = Worker::new();
            for round in 0..rounds {
                let acquired = worker.acquire(&locks, &name, how).await;
                let (guard, claim) = acquired.expect("acquired under contention");
                // Mostly as short as possible, for the races; sometimes long enough to be observed.
                match round % 4 {
                    0 => tokio::time::sleep(Duration::from_millis(1)).await,
                    _ => tokio::task::yield_now().await,
                }
                worker.release(guard, &claim).await.expect("released under contention");
            }
            worker.into_events()
        });
    }
    // Each hand-off alone may take the whole patience; all of them together may not.
    let bound = context.patience() * 4;
    let events = context.within(bound, "every client had the lock", tasks.join_all()).await;
    events.into_iter().flatten().collect()
}

/// A client that renews, and so finds out what the store forgot, every second. With the default TTL a
/// behaviour would wait ten seconds to be told.
pub(super) async fn client_that_renews_soon(context: &Context) -> Locks {
    context.client_with(|params| params.ttl = Duration::from_secs(3)).await
}

/// The rules for a store whose waiters are woken.
pub(super) fn rules(context: &Context) -> Rules {
    Rules { granted_within: Some(context.patience()), ..Rules::default() }
}

/// Checks the history of [`contend`].
pub(super) fn assert_history(context: &Context, events: Vec<Event>) {
    context.assert_history(events, rules(context));
}

/// How late events come of which a store notifies a client at once: a lost notification is made up for by the core's
/// next check, one to five seconds later.
///
/// On a busy machine everything is late. So the bound grows with what the same steps take without a notification, at
/// the same time, and three late events are needed, or three seconds in all.
pub(super) struct Lateness {
    what: &'static str,
    /// A client of a store that cannot notify asks as often.
    prompt: Duration,
    /// By how much they were, besides what is usual.
    late: Vec<Duration>,
    pub(super) on_time: u32,
}

impl Lateness {
    /// From here on the event is no longer awaited.
    const LOST: Duration = Duration::from_secs(4);
    const MOST_LATE: usize = 3;
    const MOST_IN_ALL: Duration = Duration::from_secs(3);

    /// Of wake-ups, for which a client may ask every 100 ms.
    pub(super) fn of_wake_ups() -> Lateness {
        let prompt = Duration::from_millis(250);
        Lateness { what: "a waiter was woken", prompt, late: Vec::new(), on_time: 0 }
    }

    /// Of changes of a cell, for which a client may ask every second.
    pub(super) fn of_changes() -> Lateness {
        let prompt = Duration::from_secs(2);
        Lateness { what: "a watch was notified", prompt, late: Vec::new(), on_time: 0 }
    }

    /// Whether an event was late.
    pub(super) fn any(&self) -> bool {
        !self.late.is_empty()
    }

    /// Awaits an event of which the client is notified from now on. `usual` is how long the same took without a
    /// notification.
    pub(super) async fn observe<T>(
        &mut self,
        usual: Duration,
        event: impl Future<Output = T>,
    ) -> T {
        let (started, lost) = (Instant::now(), Self::LOST + usual * 4);
        let event = tokio::time::timeout(lost, event).await;
        let late_by = started.elapsed().saturating_sub(usual * 4);
        match late_by > self.prompt {
            true => self.late.push(late_by),
            false => self.on_time += 1,
        }
        let in_all: Duration = self.late.iter().sum();
        if self.late.len() < Self::MOST_LATE && in_all < Self::MOST_IN_ALL {
            return event.expect("a lost event takes longer than that");
        }
        let (what, late) = (self.what, self.late.iter().max().copied().unwrap_or_default());
        let or_never = if event.is_err() { ", if at all" } else { "" };
        panic!(
            "{what} {:.1} s late{or_never} ({} of {} times; without a notification it takes {usual:?}): the notification \
             was lost, or its watch begins after the reading that it belongs to",
            late.as_secs_f64(),
            self.late.len(),
            self.late.len() + self.on_time as usize,
        );
    }
}

/// Whether a try acquires `name`; if so, it is released again.
pub(super) async fn is_free(context: &Context, locks: &Locks, name: &str, how: How) -> bool {
    let lock = how.lock(locks, name);
    let tried = context.soon(&format!("a try of {name:?} answers"), lock.try_acquire()).await;
    match tried.expect("a try answers") {
        Some(guard) => {
            context.release(guard).await;
            true
        }
        None => false,
    }
}

/// Asserts that `name` is held.
pub(super) async fn assert_busy(context: &Context, locks: &Locks, name: &str) {
    assert!(!is_free(context, locks, name, How::Exclusive).await, "{name:?} was granted twice");
}

/// Awaits a loss, which must be reported without a request.
pub(super) async fn until_lost(context: &Context, guard: &Guard) -> LostReason {
    let reason = context.soon("the holder is notified of its loss", guard.lost()).await;
    assert!(!guard.is_held(), "a lost guard still answers that it is held");
    reason
}

/// Releases a lost guard, which must be an error.
pub(super) async fn release_is_not_held(context: &Context, guard: Guard) {
    let error = context
        .soon("a lost guard's release answers", guard.release())
        .await
        .expect_err("a lost guard was released as if it were held");
    assert_kind(&error, ErrorKind::NotHeld);
}

/// A hold time after which a loss is quickly awaited.
pub(super) const BRIEFLY: Duration = Duration::from_millis(60);

/// Short enough to outlive, long enough to renew three times on a busy machine.
pub(super) const SHORT_TTL: Duration = Duration::from_secs(1);

/// The shortest wait in which a store on a busy machine can be expected to report that a lock is
/// held; a store that commits to disk needs longer.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(800);

/// Acquires in the background.
pub(super) fn spawn_waiter(locks: &Locks, name: &str, how: How) -> Waiter {
    waiting::spawn_waiter(how.lock(locks, name))
}

/// Acquires in a mode, at once.
pub(super) async fn acquire(context: &Context, locks: &Locks, name: &str, how: How) -> Guard {
    let lock = how.lock(locks, name);
    let acquired = context.soon(&format!("{name:?} is acquired as {how:?}"), lock.acquire()).await;
    acquired.expect("acquired")
}

/// Acquires a lock with this `lease`, and once more if the answer took about as long: the machine, or the server, is
/// busy, and what came too late is released again. An answer in time that says so is the store's fault.
pub(super) async fn in_time(lock: &Lock, lease: Duration) -> Guard {
    loop {
        let asked = Instant::now();
        match lock.acquire().await {
            Err(error) if error.kind() == ErrorKind::Lost => {
                assert!(asked.elapsed() > lease / 2, "lost at once: {error}");
            }
            acquired => return acquired.expect("acquired"),
        }
    }
}

/// Acquires at once.
pub(super) async fn acquire_lock(context: &Context, lock: &Lock) -> Guard {
    context.soon("acquired", lock.acquire()).await.expect("acquired")
}

/// Removes a cell of whatever kind.
pub(super) async fn remove_cell(context: &Context, name: &str) {
    let locks = context.client().await;
    let there = context.soon("a cell is read", locks.read_cell(name)).await.expect("an answer");
    let from = there.map(|content| content.stamp);
    let removing = locks.swap_cell(name, from, None, Keep::Forever);
    context.soon("it is removed", removing).await.expect("removed");
}

/// Every mode of the store that only one holder at a time can have.
pub(super) fn single_modes(context: &Context) -> Vec<How> {
    let mut modes = vec![How::Exclusive];
    if context.profile().modes.permits {
        modes.push(How::Permits { n: 1, limit: 1 });
    }
    modes
}
