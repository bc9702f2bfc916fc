//! The periodic check of the waiters of one lock, without its latch.
//!
//! It passes over a waiter that does not take a free lock, such as a stopped process, and makes up
//! for a lost wake-up.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Result, WaiterCheck};

use crate::claim::operator;
use crate::claim::store::Store;
use crate::lock::file_lock::FileLock;
use crate::lock::queue_guard::QueueGuard;
use crate::lock::shared_queue::Peek;
use crate::queue::rules::Queue;

/// The interval between two checks of a waiter.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a waiter may leave a lock alone that it could take. A little less than two intervals,
/// so that the second check finds it.
const STALL_LIMIT: Duration = Duration::from_millis(1_800);

/// Checks `lock` once, for all its waiters.
pub(crate) async fn check_lock(store: &Store, lock: &Arc<FileLock>) -> Result<Peek> {
    let checked = lock.peek().await?;
    let Peek::Queue(queue) = &checked else { return Ok(checked) };
    let stalled = queue.next_to_hold().filter(|next| next + 1 < queue.entries.len());
    let stalled = stalled.map(|next| queue.entries[next].ticket);
    let Some(ticket) = lock.stalled_for(stalled, store.clock.now(), STALL_LIMIT) else {
        return Ok(checked);
    };
    // Its entry is removed. When the waiter continues, it finds it gone and queues again.
    let wake_pipe = store.wake_pipe.clone();
    let pass_over = move |guard: QueueGuard<'_>| {
        let stalled =
            |queue: &Queue| queue.next_to_hold().filter(|at| queue.entries[*at].ticket == ticket);
        operator::evict(&wake_pipe, guard, stalled)
    };
    lock.with_queue_if_present(pass_over).await?;
    Ok(Peek::Gone)
}

/// What the waiters with `tickets` have to do after their lock was `checked`.
pub(crate) fn results(
    tickets: impl Iterator<Item = Option<u64>>,
    checked: &Peek,
) -> Vec<WaiterCheck> {
    let next = match checked {
        Peek::Queue(queue) => queue.next_to_hold(),
        Peek::Busy | Peek::Gone => None,
    };
    let result = |ticket: Option<u64>| {
        let attempt = match checked {
            Peek::Busy => false,
            Peek::Gone => true,
            // A waiter whose entry is gone, or whose turn has come, missed its wake-up or is about
            // to get it.
            Peek::Queue(queue) => {
                ticket.and_then(|ticket| queue.position(ticket)).is_none_or(|at| next == Some(at))
            }
        };
        if attempt { WaiterCheck::Attempt } else { WaiterCheck::Again(CHECK_INTERVAL) }
    };
    tickets.map(result).collect()
}
