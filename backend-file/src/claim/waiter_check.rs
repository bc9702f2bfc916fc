//! The periodic check of the waiters of one lock, without its latch.
//!
//! It passes over a waiter that does not take a free lock, such as a stopped process, and makes up
//! for a lost wake-up.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Result, WaiterCheck};

use crate::claim::store::Store;
use crate::lock::file_lock::FileLock;
use crate::lock::queue_cache::StepError;
use crate::lock::queue_guard::QueueGuard;
use crate::lock::shared_queue::Peek;
use crate::wake::notifications::Notifications;

/// The interval between two checks of a waiter.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a waiter may leave a lock alone that it could take. A little less than two intervals,
/// so that the second check finds it.
const STALL_LIMIT: Duration = Duration::from_millis(1_800);

/// The result of a check of one lock, for all its waiters.
#[derive(Debug)]
pub(crate) enum LockCheck {
    Queue {
        tickets: Vec<u64>,
        next: Option<u64>,
    },
    Nothing,
    /// The queue is gone or has changed: every waiter has to attempt.
    Gone,
}

impl LockCheck {
    /// What the waiter with `ticket` has to do.
    pub(crate) fn of(&self, ticket: Option<u64>) -> WaiterCheck {
        let attempt = match self {
            LockCheck::Nothing => false,
            LockCheck::Gone => true,
            // A waiter whose entry is gone, or whose turn has come, missed its wake-up or is about
            // to get it.
            LockCheck::Queue { tickets, next } => ticket.is_none_or(|ticket| {
                *next == Some(ticket) || tickets.binary_search(&ticket).is_err()
            }),
        };
        if attempt { WaiterCheck::Attempt } else { WaiterCheck::Again(CHECK_INTERVAL) }
    }
}

/// Checks `lock` once, for all its waiters.
pub(crate) async fn check_lock(store: Arc<Store>, lock: Arc<FileLock>) -> Result<LockCheck> {
    store.same_process()?;
    let queue = match lock.peek().await? {
        Peek::Queue(queue) => queue,
        Peek::Busy => return Ok(LockCheck::Nothing),
        Peek::Gone => return Ok(LockCheck::Gone),
    };
    let next = queue.next_to_hold();
    let stalled = next.filter(|next| next + 1 < queue.entries.len());
    let stalled = stalled.map(|next| queue.entries[next].ticket);
    if let Some(ticket) = lock.stalled_for(stalled, store.clock.now(), STALL_LIMIT) {
        let at = lock.clone();
        let pass_over = move |guard: QueueGuard<'_>| pass_over(&store, &at, guard, ticket);
        lock.with_queue_if_present(pass_over).await?;
        return Ok(LockCheck::Gone);
    }
    let tickets = queue.entries.iter().map(|entry| entry.ticket).collect();
    Ok(LockCheck::Queue { tickets, next: next.map(|next| queue.entries[next].ticket) })
}

/// Removes the entry of a waiter that leaves a free lock alone. When the waiter continues, it finds
/// its entry gone and queues again.
fn pass_over(
    store: &Store,
    lock: &FileLock,
    mut guard: QueueGuard<'_>,
    ticket: u64,
) -> Result<(), StepError> {
    let queue = guard.queue();
    let at = queue.next_to_hold().filter(|at| queue.entries[*at].ticket == ticket);
    let Some(at) = at else { return Ok(()) };
    let removed = queue.entries.remove(at);
    let mut notifications = Notifications::new(lock.dir().hash());
    notifications.after_removal(queue, &removed);
    notifications.with_pipe_open();
    guard.commit()?;
    drop(guard);
    notifications.notify(&removed, &store.wake_pipe);
    notifications.send(&store.wake_pipe);
    Ok(())
}
