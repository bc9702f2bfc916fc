//! The connected file store, as the core calls it.
//!
//! Its locks need no renewal: a holder holds for as long as its pipe is open.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use fencelock_core::{
    Acquisition, CellDurability, Cells, Claim, Clock, DistributedLock, Error, ErrorKind, Liveness,
    LockName, Modes, Order, ParticipantId, Profile, Reach, ReleaseOutcome, RenewOutcome,
    RenewalPlan, Result, Snapshot, TokenOrder, Ttl, WaiterCheck,
};

use crate::claim::acquisition::FileAcquisition;
use crate::claim::operator;
use crate::claim::store::Store;
use crate::claim::waiter_check::{CHECK_INTERVAL, check_lock, results};
use crate::lock::queue_guard::QueueGuard;
use crate::queue::entry::Entry;
use crate::queue::rules::MOST_TOKENS;

static ON_DISK: Profile = profile(TokenOrder::Data, CellDurability::Synced);
static IN_MEMORY: Profile = profile(TokenOrder::Boot, CellDurability::Boot);

const fn profile(tokens: TokenOrder, cells: CellDurability) -> Profile {
    Profile {
        store: "file",
        reach: Reach::Machine,
        liveness: Liveness::Process,
        renewal: RenewalPlan::None,
        longest_ttl: Ttl::MAX,
        order: Order::Arrival,
        modes: Modes::ALL,
        downgrade: true,
        tokens,
        max_local_handoffs: MOST_TOKENS as u32,
        cells: Some(cells),
        exclusion_fails_when: Cow::Borrowed(&[
            "the lock's files are deleted, replaced or edited by hand while it is held",
            "someone force-releases the lock, until its holder has been notified",
        ]),
    }
}

impl Store {
    async fn inspect_those(&self, name: &LockName, which: fn(&Entry) -> bool) -> Result<Snapshot> {
        self.context.same_process()?;
        let lock = self.lock(name.shared_key());
        let wake_pipe = self.wake_pipe.clone();
        let inspect = move |guard: QueueGuard<'_>| operator::inspect(&wake_pipe, guard, which);
        // An operator who asks is told at once what keeps the lock.
        let seen = self.in_time(lock.with_queue_if_present(inspect)).await;
        let why = || lock.unanswered().unwrap_or_else(crate::error::no_answer);
        Ok(seen.unwrap_or_else(|| Err(why()))?.unwrap_or_default())
    }
}

impl DistributedLock for Store {
    type Acquisition = FileAcquisition;

    fn profile(&self) -> &Profile {
        if self.context.directory.in_memory { &IN_MEMORY } else { &ON_DISK }
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> FileAcquisition {
        let lock = self.lock(claim.name().shared_key());
        FileAcquisition::new(self.clone(), lock, claim)
    }

    /// The lock: one whose latch a stopped process holds does not delay other locks.
    fn shard(&self, acquisition: &FileAcquisition) -> impl Eq + Hash + Send {
        acquisition.claim().name().key()
    }

    async fn renew(&self, held: &FileAcquisition) -> Result<RenewOutcome> {
        let no_answer = || Error::new(ErrorKind::Unreachable, "the lock's queue could not be read");
        let confirmed = self.in_time(held.confirm()).await;
        confirmed.unwrap_or_else(|| Err(held.unanswered().unwrap_or_else(no_answer)))
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&FileAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        // One check for all of them, which keep the lock alive.
        let Some(first) = waiting.first() else { return Ok(Vec::new()) };
        let Some(checked) = self.in_time(check_lock(self, first.lock())).await else {
            // The lock is busy, or its answer has just arrived: the waiters continue to wait.
            return match first.unanswered().filter(|error| error.kind() != ErrorKind::Busy) {
                Some(error) => Err(error),
                None => Ok(vec![WaiterCheck::Again(CHECK_INTERVAL); waiting.len()]),
            };
        };
        let checked = checked?;
        Ok(results(waiting.iter().map(|waiter| waiter.ticket()), &checked))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.inspect_those(name, |_| true).await
    }

    async fn inspect_holders(&self, name: &LockName) -> Result<Snapshot> {
        self.inspect_those(name, |entry| entry.held).await
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        self.context.same_process()?;
        let Ok(ticket) = who.as_str().parse() else { return Ok(ReleaseOutcome::Absent) };
        let lock = self.lock(name.shared_key());
        let wake_pipe = self.wake_pipe.clone();
        let evict = move |guard: QueueGuard<'_>| {
            operator::evict(&wake_pipe, guard, |queue| queue.position(ticket))
        };
        Ok(lock.with_queue_if_present(evict).await?.unwrap_or(ReleaseOutcome::Absent))
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    async fn close(&self) -> Result<()> {
        self.wake_pipe.close();
        for closed in self.close_files() {
            // An error if no thread could be started.
            let _ = closed.await;
        }
        Ok(())
    }
}
