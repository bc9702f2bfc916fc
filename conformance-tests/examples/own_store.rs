//! A complete store of your own, and the suite that checks it:
//! `cargo run -p fencelock-conformance --example own_store`.
//!
//! A table has a record for each lock: its `Queue`, whose rules are the core's. Each method changes a
//! record in one step and then wakes the waiters whose turn has come. A store across a network
//! differs in three ways: the step is a request that can fail, a transaction or a compare-and-swap;
//! the clock is a `BootClock`, read before the request is sent; and a waiter in another process is
//! woken by a message, so that its `waker` is an address.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::backend::{Entry, LastNumbers, Queue, QueueStep};
use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, Liveness, LockName, Locks, Modes,
    Order, ParticipantId, Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Result,
    Snapshot, TokenOrder, TokioClock, Ttl, WaiterCheck,
};

static PROFILE: Profile = Profile {
    store: "own",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    downgrade: true,
    tokens: TokenOrder::Process,
    max_local_handoffs: 1_024,
    cells: None,
    exclusion_fails_when: Cow::Borrowed(&[]),
};

#[derive(Default)]
struct OwnStore {
    /// Of all clients together, as they are one process: each `TokioClock` has a zero of its own.
    clock: TokioClock,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The records, by the key of their lock.
    records: HashMap<String, Queue<Weak<Claim>>>,
    /// The numbers that all records share.
    last: LastNumbers,
}

impl OwnStore {
    /// Changes the record of a lock in one step, and then wakes the waiters whose turn has come.
    fn change<T>(
        &self,
        lock: &LockName,
        change: impl FnOnce(&mut QueueStep<'_, Weak<Claim>>) -> T,
    ) -> T {
        let mut table = self.table.lock();
        let Table { records, last } = &mut *table;
        let record = records.entry(lock.key().to_owned()).or_default();
        // A dead waiter goes: with its connection, or after some time without a check.
        record.entries.retain(|entry| entry.is_granted() || entry.waker.strong_count() > 0);
        let (result, woken) = record.change(self.clock.now(), last, change);
        if record.entries.is_empty() {
            records.remove(lock.key());
        }
        drop(table);
        for claim in woken.iter().filter_map(Weak::upgrade) {
            claim.wake();
        }
        result
    }
}

impl DistributedLock for OwnStore {
    type Acquisition = OwnAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> OwnAcquisition {
        OwnAcquisition { store: self.clone(), claim }
    }

    async fn renew(&self, held: &OwnAcquisition) -> Result<RenewOutcome> {
        Ok(self.change(held.claim.name(), |queue| queue.renew(&held.claim)))
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&OwnAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let claims = waiting.iter().map(|waiter| &*waiter.claim);
        Ok(self.change(lock, |queue| queue.check(claims)))
    }

    async fn inspect(&self, lock: &LockName) -> Result<Snapshot> {
        Ok(self.change(lock, |queue| queue.snapshot()))
    }

    async fn evict(&self, lock: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(self.change(lock, |queue| queue.evict(who)))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

struct OwnAcquisition {
    store: Arc<OwnStore>,
    claim: Arc<Claim>,
}

impl Acquisition for OwnAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let (claim, waker) = (&self.claim, Arc::downgrade(&self.claim));
        Ok(self.store.change(claim.name(), |queue| queue.attempt(claim, waker)))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        Ok(self.store.change(self.claim.name(), |queue| queue.release(&self.claim)))
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        Ok(self.store.change(self.claim.name(), |queue| queue.downgrade(&self.claim)))
    }
}

struct OwnHarness;

/// What one behaviour uses: a store of its own, and the prefix of its names.
struct OwnPart(Arc<OwnStore>, String);

#[async_trait]
impl Harness for OwnHarness {
    fn name(&self) -> &str {
        "own"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(OwnPart(Arc::default(), prefix.to_owned())))
    }
}

#[async_trait]
impl Store for OwnPart {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        Locks::new(self.0.clone(), "own://", params.settings()?)
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Inspect, Backdoor::Expire]
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        Ok(self.0.table.lock().records.keys().cloned().collect())
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        let name = LockName::with_prefix(&self.1, name)?;
        Ok(self.0.change(&name, |queue| queue.entries.iter().any(Entry::is_granted)))
    }

    async fn expire(&self, name: &str) -> Result<()> {
        let name = LockName::with_prefix(&self.1, name)?;
        self.0.change(&name, |queue| queue.entries.retain(|entry| !entry.is_granted()));
        Ok(())
    }
}

fn main() {
    fencelock_conformance::main(OwnHarness);
}
