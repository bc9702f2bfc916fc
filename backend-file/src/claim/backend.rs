//! The connected file store, as the core calls it.
//!
//! Its locks need no renewal: a holder holds for as long as its pipe is open.

use std::any::Any;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{
    Acquisition, Claim, Clock, DistributedLock, ErrorKind, Liveness, LockName, Modes, Order,
    ParticipantId, Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Report, Result,
    Snapshot, TokenOrder, Ttl, WaiterCheck,
};
use tokio::task::JoinSet;

use crate::claim::acquisition::FileAcquisition;
use crate::claim::operator;
use crate::claim::store::Store;
use crate::claim::waiter_check::{CHECK_INTERVAL, LockCheck, check_lock};

/// The time limit of one batch of waiter checks or renewals.
const BATCH_LIMIT: Duration = Duration::from_secs(2);

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

#[async_trait]
impl DistributedLock for FileBackend {
    fn profile(&self) -> &Profile {
        match self.store.context.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn Acquisition> {
        let lock = self.store.lock(claim.name().shared_key());
        FileAcquisition::new(self.store.clone(), lock, claim)
    }

    async fn renew(&self, held: &[Arc<dyn Acquisition>], report: Report<'_, RenewOutcome>) {
        let mut confirming = JoinSet::new();
        for (index, acquisition) in held.iter().enumerate() {
            if let Some(acquisition) = own(acquisition).and_then(FileAcquisition::this) {
                confirming.spawn(async move { (index, acquisition.confirm().await) });
            }
        }
        self.each_in_time(confirming, |(index, confirmed)| report(index, confirmed)).await;
    }

    async fn check_waiters(
        &self,
        waiting: &[Arc<dyn Acquisition>],
        report: Report<'_, WaiterCheck>,
    ) {
        // One check for all waiters of a lock, which this batch keeps alive.
        let mut by_lock: HashMap<usize, Vec<(usize, &FileAcquisition)>> = HashMap::new();
        for (index, acquisition) in waiting.iter().enumerate() {
            if let Some(acquisition) = own(acquisition) {
                let lock = Arc::as_ptr(acquisition.lock()).addr();
                by_lock.entry(lock).or_default().push((index, acquisition));
            }
        }
        let mut checking = JoinSet::new();
        for (at, acquisitions) in &by_lock {
            let (at, lock, store) = (*at, acquisitions[0].1.lock().clone(), self.store.clone());
            checking.spawn(async move { (at, check_lock(store, lock).await) });
        }
        let late: Mutex<HashSet<usize>> = Mutex::new(by_lock.keys().copied().collect());
        let late = || late.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |(at, seen): (usize, Result<LockCheck>)| {
            late().remove(&at);
            for (index, acquisition) in &by_lock[&at] {
                let check = seen.as_ref().map(|seen| seen.of(acquisition.ticket()));
                report(*index, check.map_err(Clone::clone));
            }
        };
        self.each_in_time(checking, answer).await;
        let unanswered = std::mem::take(&mut *late());
        for at in unanswered {
            let acquisitions = &by_lock[&at];
            let error = acquisitions[0].1.unanswered();
            // The lock is busy, or its answer has just arrived: the waiters continue to wait.
            let error = error.filter(|error| error.kind() != ErrorKind::Busy);
            for (index, _) in acquisitions {
                report(*index, error.clone().map_or(Ok(WaiterCheck::Again(CHECK_INTERVAL)), Err));
            }
        }
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

impl FileBackend {
    /// Calls `answer` for each of `requests` when it is done. Requests that take too long are
    /// abandoned, and the core repeats them: a lock whose latch a stopped process holds does not
    /// delay other locks.
    async fn each_in_time<T: 'static>(&self, mut requests: JoinSet<T>, answer: impl Fn(T)) {
        let all = async {
            while let Some(done) = requests.join_next().await {
                done.into_iter().for_each(&answer);
            }
        };
        let bound = self.store.clock.now() + BATCH_LIMIT;
        tokio::select! {
            biased;
            () = all => {}
            () = self.store.clock.sleep_until(bound) => {}
        }
    }
}

fn own(acquisition: &Arc<dyn Acquisition>) -> Option<&FileAcquisition> {
    let any: &dyn Any = acquisition.as_ref();
    any.downcast_ref()
}
