//! The inspection of a lock, and the eviction of one of its participants.

use std::time::Duration;

use fencelock_core::{FencingToken, Participant, ParticipantId, ReleaseOutcome, Snapshot};

use crate::lock::queue_cache::StepError;
use crate::lock::queue_guard::QueueGuard;
use crate::platform::centiseconds;
use crate::queue::entry::Entry;
use crate::queue::rules::Queue;
use crate::storage::{inheritance, slot_pipe};
use crate::wake::wake_pipe::WakePipe;

/// Those holders and waiters whose owners live.
pub(crate) fn inspect(
    wake_pipe: &WakePipe,
    mut guard: QueueGuard<'_>,
    which: fn(&Entry) -> bool,
) -> Result<Snapshot, StepError> {
    // Labels are in files.
    guard.needs_disk()?;
    let entries: Vec<_> =
        guard.queue().entries.iter().filter(|entry| which(entry)).copied().collect();
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
        let label = match entry.labelled {
            true => label,
            false => wake_pipe.label_at(entry.wake_pipe, entry.since),
        };
        let age = Duration::from_millis(10) * now.wrapping_sub(entry.since);
        let id = ParticipantId::new(entry.ticket.to_string());
        let mut participant = Participant::new(id, entry.mode).since(age);
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

/// Removes the holder or waiter that `find` finds.
pub(crate) fn evict(
    wake_pipe: &WakePipe,
    mut guard: QueueGuard<'_>,
    find: impl Fn(&Queue) -> Option<usize>,
) -> Result<ReleaseOutcome, StepError> {
    let Some(at) = find(guard.queue()) else { return Ok(ReleaseOutcome::Absent) };
    let (removed, mut notifications) = guard.remove(at);
    notifications.with_pipe_open();
    // The owner is notified before the commit. If this process dies now, the owner finds its entry
    // still there; if it died after the commit, a holder that was not notified could continue for
    // ever. The owner waits for the latch before it reads.
    notifications.notify(&removed, wake_pipe);
    inheritance::revoke(guard.files()?.dir(), &removed);
    guard.commit()?;
    drop(guard);
    notifications.send(wake_pipe);
    Ok(ReleaseOutcome::Removed)
}
