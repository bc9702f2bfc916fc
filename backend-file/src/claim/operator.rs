//! What an operator can do to a lock: inspect it, and evict one of its participants.

use std::time::Duration;

use fencelock_core::{FencingToken, Participant, ParticipantId, ReleaseOutcome, Snapshot};

use crate::claim::store::Store;
use crate::lock::file_lock::FileLock;
use crate::lock::queue_cache::StepError;
use crate::lock::queue_guard::QueueGuard;
use crate::platform::centiseconds;
use crate::queue::entry::Entry;
use crate::storage::{inheritance, slot_pipe};
use crate::wake::notifications::Notifications;

/// The holders and waiters whose owners live.
pub(crate) fn inspect(store: &Store, mut guard: QueueGuard<'_>) -> Result<Snapshot, StepError> {
    // Labels are in files.
    guard.needs_disk()?;
    let entries = guard.queue().entries.clone();
    let files = guard.files()?;
    let state = files.state()?;
    let own_labels: Vec<_> = entries
        .iter()
        .map(|entry| if entry.labelled { state.read_label(entry.slot) } else { None })
        .collect();
    drop(guard);
    let now = centiseconds();
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (entry, label) in entries.iter().zip(own_labels) {
        // The next waiter removes a dead entry.
        if matches!(slot_pipe::watch(files.dir(), entry.slot), Ok(None)) {
            continue;
        }
        let label = label.or_else(|| match entry.labelled {
            true => None,
            false => store.wake_pipe.label_at(entry.wake_pipe, entry.since),
        });
        let mut participant =
            Participant::new(ParticipantId::new(entry.ticket.to_string()), entry.mode)
                .since(age(entry, now));
        if let Some(label) = label {
            participant = participant.labelled(label);
        }
        match entry.held {
            // The token of a holder whose queue was lost is unknown.
            true if entry.token == 0 => holders.push(participant),
            true => holders.push(participant.token(FencingToken::new(entry.token))),
            false => waiters.push(participant),
        }
    }
    Ok(Snapshot::new(holders, waiters))
}

fn age(entry: &Entry, now: u32) -> Duration {
    Duration::from_millis(10) * now.wrapping_sub(entry.since)
}

/// Removes the holder or waiter with `ticket`.
pub(crate) fn evict(
    store: &Store,
    lock: &FileLock,
    mut guard: QueueGuard<'_>,
    ticket: u64,
) -> Result<ReleaseOutcome, StepError> {
    let queue = guard.queue();
    let Some(at) = queue.position(ticket) else { return Ok(ReleaseOutcome::Absent) };
    let removed = queue.entries.remove(at);
    let mut notifications = Notifications::new(lock.dir().hash());
    notifications.after_removal(queue, &removed);
    notifications.with_pipe_open();
    // The owner is notified before the commit. If this process dies now, the owner finds its entry
    // still there; if it died after the commit, a holder that was not notified could continue for
    // ever. The owner waits for the latch to look.
    notifications.notify(&removed, &store.wake_pipe);
    inheritance::revoke(guard.files()?.dir(), &removed);
    guard.commit()?;
    drop(guard);
    notifications.send(&store.wake_pipe);
    Ok(ReleaseOutcome::Removed)
}
