//! A server with leases: keys that expire by its own clock, a queue, and hand-off in the release
//! itself, with a short claim TTL until the new owner confirms. The shape of Redis.
//!
//! Each method is one atomic script. Nothing happens here by itself: what has expired is found at
//! the next request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::Mode;

use crate::lease::backend::LeaseBackend;
use crate::lease::script::{Answer, Checked, Entry, Holder, Lock, Script, Who, nanos};
use crate::mutant::Mutant;
use crate::world::history::History;

pub(crate) struct LeaseServer {
    pub(crate) history: Arc<History>,
    pub(crate) mutant: Option<Mutant>,
    /// How often a process checks its waiters. It is forgotten after five times that.
    pub(crate) check_every: Duration,
    /// How much faster this clock runs, in millionths.
    rate: i64,
    state: Mutex<State>,
    processes: Mutex<BTreeMap<u32, Weak<LeaseBackend>>>,
}

#[derive(Default)]
struct State {
    locks: BTreeMap<usize, Lock>,
    last_token: u64,
    last_epoch: u64,
}

impl LeaseServer {
    pub(crate) fn new(
        history: Arc<History>,
        mutant: Option<Mutant>,
        check_every: Duration,
        rate: i64,
    ) -> LeaseServer {
        let (state, processes) = (Mutex::default(), Mutex::default());
        LeaseServer { history, mutant, check_every, rate, state, processes }
    }

    pub(crate) fn subscribe(&self, process: u32, backend: Weak<LeaseBackend>) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(process, backend);
    }

    fn now(&self) -> u64 {
        let now = i128::from(self.history.now().as_nanos());
        u64::try_from(now + now * i128::from(self.rate) / 1_000_000).unwrap_or(0)
    }

    /// Runs one script, and publishes what it granted.
    fn script<T>(&self, lock: usize, script: impl FnOnce(&mut Script<'_>) -> T) -> T {
        let (result, granted) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { locks, last_token, last_epoch } = &mut *state;
            let mut script_run = Script {
                server: self,
                name: lock,
                lock: locks.entry(lock).or_default(),
                last_token,
                last_epoch,
                now: self.now(),
                granted: Vec::new(),
            };
            script_run.expire();
            let result = script(&mut script_run);
            let holders = &script_run.lock.holders;
            self.history.compare(lock, |token| {
                holders.iter().any(|holder| holder.tokens().contains(&token))
            });
            (result, script_run.granted)
        };
        if self.mutant != Some(Mutant::GrantNotReported) {
            granted.into_iter().for_each(|holder| self.publish(holder));
        }
        result
    }

    fn publish(&self, holder: Holder) {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let Who { process, claim } = holder.entry.who;
        let Some(backend) = processes.get(&process).and_then(Weak::upgrade) else { return };
        drop(processes);
        let link = backend.link.clone();
        let backend = Arc::downgrade(&backend);
        link.push(claim, move || {
            if let Some(backend) = backend.upgrade() {
                backend.pushed(holder.entry, holder.token);
            }
        });
    }

    /// Acquire, queue and confirm in one.
    pub(crate) fn attempt(&self, entry: Entry) -> Answer {
        self.script(entry.lock, |script| script.attempt(entry))
    }

    /// Leaves the queue or the lock. `false` when it was in neither.
    pub(crate) fn release(&self, entry: Entry) -> bool {
        let Entry { who, lock, .. } = entry;
        self.history.note(who.process, "server release", lock as u64, who.claim);
        self.script(lock, |script| {
            let before = script.lock.holders.len() + script.lock.queue.len();
            let held = |holder: &Holder| holder.entry.who == who && holder.confirmed;
            let takes_its_turn_along = self.mutant == Some(Mutant::WakeLostOnCancel)
                && !script.lock.holders.iter().any(held);
            let keeps = |holder: &Holder| {
                let is_in_other_form = holder.entry.mode != entry.mode;
                self.mutant == Some(Mutant::ReleaseKnowsOneForm) && is_in_other_form
            };
            script.lock.holders.retain(|holder| holder.entry.who != who || keeps(holder));
            script.lock.queue.retain(|_, waiter| waiter.entry.who != who);
            let mut removed = script.lock.holders.len() + script.lock.queue.len() < before;
            if !removed && self.mutant == Some(Mutant::ReleaseFreesAnybody) {
                removed = script.lock.holders.pop().is_some();
            }
            if removed {
                self.history.freed(lock);
            }
            if !takes_its_turn_along {
                script.serve();
            }
            removed
        })
    }

    /// Makes a writer a reader; one that is a reader stays one.
    pub(crate) fn downgrade(&self, entry: Entry) -> bool {
        let Entry { who, lock, .. } = entry;
        self.history.note(who.process, "server downgrade", lock as u64, who.claim);
        self.script(lock, |script| {
            let until = script.now + nanos(entry.ttl);
            let holders = &mut script.lock.holders;
            let own = |holder: &Holder| holder.entry.who == who;
            let Some(at) = holders.iter().position(own) else { return false };
            let mut holder = holders.remove(at);
            if self.mutant == Some(Mutant::DowngradeLetsGo) {
                script.serve();
            }
            (holder.entry.mode, holder.until) = (Mode::Shared, until);
            script.lock.holders.push(holder);
            self.history.freed(lock);
            script.serve();
            true
        })
    }

    pub(crate) fn renew(&self, entry: Entry) -> bool {
        let Entry { who, lock, .. } = entry;
        self.history.note(who.process, "server renew", lock as u64, who.claim);
        self.script(lock, |script| {
            let until = script.now + nanos(entry.ttl);
            let Some(holder) = script.lock.holders.iter_mut().find(|it| it.entry.who == who) else {
                if self.mutant == Some(Mutant::RenewalResurrects) {
                    let token = script.mint(0, entry.tokens);
                    script.lock.holders.clear();
                    script.hold(entry, token, until, 0, true);
                    return true;
                }
                return false;
            };
            holder.until = until;
            true
        })
    }

    /// One waiter check of one process at one lock, with a few of its waiters to be verified.
    pub(crate) fn check_waiters(&self, process: u32, lock: usize, sample: &[u64]) -> Checked {
        self.history.note(process, "server checks waiters", lock as u64, sample.len() as u64);
        self.script(lock, |script| {
            let epoch = script.refresh(process);
            script.serve();
            let own = |entry: &Entry| (entry.who.process == process).then_some(entry.who.claim);
            let lock = &script.lock;
            let mut attempt = Vec::new();
            if self.mutant != Some(Mutant::GrantNotReported) {
                let granted = lock.holders.iter().filter(|holder| !holder.confirmed);
                attempt.extend(granted.filter_map(|holder| own(&holder.entry)));
                let passed_over = lock.queue.values().filter(|waiter| waiter.passed_over);
                attempt.extend(passed_over.filter_map(|waiter| own(&waiter.entry)));
                let waits = |claim: &u64| {
                    lock.queue.values().any(|waiter| own(&waiter.entry) == Some(*claim))
                };
                if self.mutant != Some(Mutant::WaitersNotVerified) {
                    attempt.extend(sample.iter().filter(|claim| !waits(claim)));
                }
            }
            Checked { attempt, epoch }
        })
    }

    /// A person deletes the key.
    pub(crate) fn evict(&self, lock: usize) {
        self.history.note(0, "evicted", lock as u64, 0);
        self.script(lock, |script| {
            for holder in std::mem::take(&mut script.lock.holders) {
                let reported_within = holder.entry.ttl / 3 + Duration::from_secs(1);
                self.history.excuse(lock, holder.tokens(), reported_within);
            }
            self.history.freed(lock);
            script.serve();
        });
    }

    /// All data is lost. Locks are not promised to survive that, but tokens still rise.
    pub(crate) fn wipe(&self) {
        self.history.note(0, "wiped", 0, 0);
        for (lock, token) in self.history.believed() {
            self.history.excuse(lock, token..token + 1, Duration::from_secs(3600));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, lock) in &state.locks {
            for holder in &lock.holders {
                self.history.excuse(*name, holder.tokens(), Duration::from_secs(3600));
            }
        }
        // The epochs of a real server are unique for ever; only the tokens are at stake.
        *state = State { last_epoch: state.last_epoch, ..State::default() };
    }

    /// What is left, apart from what its own TTL has removed.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let now = self.now();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = Vec::new();
        for (name, lock) in &state.locks {
            let holders = lock.holders.iter().filter(|holder| holder.until > now);
            left.extend(holders.map(|holder| format!("lock {name}: {holder:?}")));
            // The queue's key is kept by its processes only.
            if lock.processes.values().any(|process| process.deadline > now) {
                left.extend(lock.queue.values().map(|waiter| format!("lock {name}: {waiter:?}")));
            }
        }
        left
    }
}
