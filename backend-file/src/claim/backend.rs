//! The connected file store, as the core calls it.
//!
//! Its locks need no renewal: a holder holds for as long as its pipe is open.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use fencelock_core::{
    Acquisition, Claim, Clock, DistributedLock, Error, ErrorKind, Liveness, LockName, Modes, Order,
    ParticipantId, Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Result, Snapshot,
    TokenOrder, Ttl, WaiterCheck,
};

use crate::claim::acquisition::FileAcquisition;
use crate::claim::operator;
use crate::claim::store::Store;
use crate::claim::waiter_check::{CHECK_INTERVAL, check_lock};

static ON_DISK: Profile = profile(TokenOrder::Data);
static IN_MEMORY: Profile = profile(TokenOrder::Boot);

const fn profile(tokens: TokenOrder) -> Profile {
    Profile {
        store: "file",
        reach: Reach::Machine,
        liveness: Liveness::Process,
        renewal: RenewalPlan::None,
        longest_ttl: Ttl::MAX,
        order: Order::Arrival,
        modes: Modes::ALL,
        tokens,
        exclusion_fails_when: Cow::Borrowed(&[
            "the lock's files are deleted, replaced or edited by hand while it is held",
            "someone force-releases the lock, until its holder has been notified",
        ]),
    }
}

/// The connected store, as the core uses it.
pub(crate) struct FileBackend {
    pub(crate) store: Arc<Store>,
}

impl DistributedLock for FileBackend {
    type Acquisition = FileAcquisition;

    fn profile(&self) -> &Profile {
        match self.store.context.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> FileAcquisition {
        let lock = self.store.lock(claim.name().shared_key());
        FileAcquisition::new(self.store.clone(), lock, claim)
    }

    /// The lock: one whose latch a stopped process holds does not delay other locks.
    fn shard(&self, acquisition: &FileAcquisition) -> impl Eq + Hash + Send {
        acquisition.claim().name().key()
    }

    async fn renew(&self, held: &FileAcquisition) -> Result<RenewOutcome> {
        let no_answer = || Error::new(ErrorKind::Unreachable, "the lock's queue could not be read");
        let confirmed = self.store.in_time(held.confirm()).await;
        confirmed.unwrap_or_else(|| Err(held.unanswered().unwrap_or_else(no_answer)))
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&FileAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        // One check for all of them, which keep the lock alive.
        let Some(first) = waiting.first() else { return Ok(Vec::new()) };
        let check = check_lock(self.store.clone(), first.lock().clone());
        let Some(checked) = self.store.in_time(check).await else {
            // The lock is busy, or its answer has just arrived: the waiters continue to wait.
            return match first.unanswered().filter(|error| error.kind() != ErrorKind::Busy) {
                Some(error) => Err(error),
                None => Ok(vec![WaiterCheck::Again(CHECK_INTERVAL); waiting.len()]),
            };
        };
        let checked = checked?;
        Ok(waiting.iter().map(|waiter| checked.of(waiter.ticket())).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.store.same_process()?;
        let lock = self.store.lock(name.shared_key());
        let store = self.store.clone();
        let seen =
            lock.with_queue_if_present(move |guard| operator::inspect(&store, guard)).await?;
        Ok(seen.unwrap_or_default())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        self.store.same_process()?;
        let lock = self.store.lock(name.shared_key());
        let Ok(ticket) = who.as_str().parse() else { return Ok(ReleaseOutcome::Absent) };
        let (store, at) = (self.store.clone(), lock.clone());
        let removal =
            lock.with_queue_if_present(move |guard| operator::evict(&store, &at, guard, ticket));
        Ok(removal.await?.unwrap_or(ReleaseOutcome::Absent))
    }

    async fn close(&self) -> Result<()> {
        self.store.wake_pipe.close();
        for closed in self.store.close_files() {
            // An error if no thread could be started.
            let _ = closed.await;
        }
        Ok(())
    }
}
