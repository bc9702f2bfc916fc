//! A server with leases: keys that expire by its own clock, a queue, and hand-over in the release
//! itself, with a short claim TTL until the new owner confirms. The shape of Redis.
//!
//! Each method is one atomic script. Nothing happens here by itself: what has expired is found at
//! the next request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{IfBusy, Mode};

use crate::history::History;
use crate::lease_driver::LeaseDriver;
use crate::mutant::Mutant;

/// One claim of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Who {
    pub(crate) process: u32,
    pub(crate) claim: u64,
}

/// What a claim writes into the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) who: Who,
    pub(crate) lock: usize,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) if_busy: IfBusy,
}

const CLAIM_TTL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted { token: u64 },
    Waiting { look_in: Duration, epoch: u64 },
    Busy,
}

/// Which of its claims a process should attempt for, by a look.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    pub(crate) attempt: Vec<u64>,
    pub(crate) epoch: u64,
}

pub(crate) struct LeaseServer {
    pub(crate) history: Arc<History>,
    pub(crate) mutant: Option<Mutant>,
    /// How often a process looks. It is forgotten after five times that.
    pub(crate) look_every: Duration,
    /// How much faster this clock runs, in millionths.
    rate: i64,
    state: Mutex<State>,
    processes: Mutex<BTreeMap<u32, Weak<LeaseDriver>>>,
}

#[derive(Default)]
struct State {
    locks: BTreeMap<usize, Lock>,
    last_token: u64,
    last_epoch: u64,
}

#[derive(Default)]
struct Lock {
    holders: Vec<Holder>,
    /// By arrival.
    queue: BTreeMap<u64, Waiter>,
    processes: BTreeMap<u32, Process>,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    entry: Entry,
    token: u64,
    until: u64,
    arrival: u64,
    confirmed: bool,
    since: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    entry: Entry,
    /// Granted once and not confirmed in time: it keeps its place and is passed over.
    passed_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    deadline: u64,
    epoch: u64,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseServer {
    pub(crate) fn new(
        history: Arc<History>,
        mutant: Option<Mutant>,
        look_every: Duration,
        rate: i64,
    ) -> LeaseServer {
        let (state, processes) = (Mutex::default(), Mutex::default());
        LeaseServer { history, mutant, look_every, rate, state, processes }
    }

    pub(crate) fn subscribe(&self, process: u32, driver: Weak<LeaseDriver>) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(process, driver);
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
            self.history.compare(lock, |token| holders.iter().any(|holder| holder.token == token));
            (result, script_run.granted)
        };
        if self.mutant != Some(Mutant::NobodyIsTold) {
            granted.into_iter().for_each(|holder| self.publish(holder));
        }
        result
    }

    fn publish(&self, holder: Holder) {
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        let Who { process, claim } = holder.entry.who;
        let Some(driver) = processes.get(&process).and_then(Weak::upgrade) else { return };
        drop(processes);
        let link = driver.link.clone();
        let driver = Arc::downgrade(&driver);
        link.push(claim, move || {
            if let Some(driver) = driver.upgrade() {
                driver.pushed(holder.entry, holder.token);
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
            script.lock.holders.retain(|holder| holder.entry.who != who);
            script.lock.queue.retain(|_, waiter| waiter.entry.who != who);
            let mut removed = script.lock.holders.len() + script.lock.queue.len() < before;
            if !removed && self.mutant == Some(Mutant::ReleaseWithoutCompare) {
                removed = script.lock.holders.pop().is_some();
            }
            if removed {
                self.history.freed(lock);
            }
            script.serve();
            removed
        })
    }

    pub(crate) fn renew(&self, entry: Entry) -> bool {
        let Entry { who, lock, .. } = entry;
        self.history.note(who.process, "server renew", lock as u64, who.claim);
        self.script(lock, |script| {
            let until = script.now + nanos(entry.ttl);
            let Some(holder) = script.lock.holders.iter_mut().find(|it| it.entry.who == who) else {
                if self.mutant == Some(Mutant::RenewalBySet) {
                    let token = script.mint(0);
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

    /// One look of one process at one lock, with a few of its waiters to be verified.
    pub(crate) fn look(&self, process: u32, lock: usize, sample: &[u64]) -> Looked {
        self.history.note(process, "server look", lock as u64, sample.len() as u64);
        self.script(lock, |script| {
            let epoch = script.refresh(process);
            script.serve();
            let own = |entry: &Entry| (entry.who.process == process).then_some(entry.who.claim);
            let lock = &script.lock;
            let mut attempt = Vec::new();
            if self.mutant != Some(Mutant::NobodyIsTold) {
                let granted = lock.holders.iter().filter(|holder| !holder.confirmed);
                attempt.extend(granted.filter_map(|holder| own(&holder.entry)));
                let passed_over = lock.queue.values().filter(|waiter| waiter.passed_over);
                attempt.extend(passed_over.filter_map(|waiter| own(&waiter.entry)));
                let waits = |claim: &u64| {
                    lock.queue.values().any(|waiter| own(&waiter.entry) == Some(*claim))
                };
                attempt.extend(sample.iter().filter(|claim| !waits(claim)));
            }
            Looked { attempt, epoch }
        })
    }

    /// A person deletes the key.
    pub(crate) fn evict(&self, lock: usize) {
        self.history.note(0, "evicted", lock as u64, 0);
        self.script(lock, |script| {
            for holder in std::mem::take(&mut script.lock.holders) {
                let told = holder.entry.ttl / 3 + Duration::from_secs(1);
                self.history.excuse(lock, holder.token, told);
            }
            self.history.freed(lock);
            script.serve();
        });
    }

    /// All data is lost. Locks are not promised to survive that, but tokens still rise.
    pub(crate) fn wipe(&self) {
        self.history.note(0, "wiped", 0, 0);
        for (lock, token) in self.history.believed() {
            self.history.excuse(lock, token, Duration::from_secs(3600));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, lock) in &state.locks {
            for holder in &lock.holders {
                self.history.excuse(*name, holder.token, Duration::from_secs(3600));
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

/// One script while it runs.
struct Script<'a> {
    server: &'a LeaseServer,
    name: usize,
    lock: &'a mut Lock,
    last_token: &'a mut u64,
    last_epoch: &'a mut u64,
    now: u64,
    granted: Vec<Holder>,
}

impl Script<'_> {
    fn expire(&mut self) {
        let (now, history, name) = (self.now, &self.server.history, self.name);
        if self.server.mutant == Some(Mutant::NoTtl) {
            return;
        }
        let queue = &mut self.lock.queue;
        self.lock.holders.retain(|holder| {
            let stays = holder.until > now;
            if !stays && !holder.confirmed {
                let waiter = Waiter { entry: holder.entry, passed_over: true };
                queue.insert(holder.arrival, waiter);
            }
            if !stays && history.is_calm() && !holder.confirmed {
                history.fail(format!("lock {name}: {holder:?} was never confirmed"));
            }
            stays
        });
        self.lock.processes.retain(|_, process| process.deadline > now);
    }

    fn refresh(&mut self, process: u32) -> u64 {
        let deadline = self.now + 5 * nanos(self.server.look_every);
        let last_epoch = &mut *self.last_epoch;
        let record = self.lock.processes.entry(process).or_insert_with(|| {
            *last_epoch += 1;
            Process { deadline, epoch: *last_epoch }
        });
        record.deadline = deadline;
        record.epoch
    }

    fn mint(&mut self, arrival: u64) -> u64 {
        let time = match self.server.mutant {
            Some(Mutant::CountedTokens) => 0,
            _ => self.now / 1_000,
        };
        *self.last_token = time.max(*self.last_token + 1);
        self.server.history.gave(self.name, *self.last_token, arrival);
        *self.last_token
    }

    fn hold(&mut self, entry: Entry, token: u64, until: u64, arrival: u64, confirmed: bool) {
        let holder = Holder { entry, token, until, arrival, confirmed, since: self.now };
        self.lock.holders.push(holder);
    }

    fn fits(&self, mode: Mode) -> bool {
        if mode == Mode::Shared && self.server.mutant == Some(Mutant::ReadersAlways) {
            return true;
        }
        mode.fits_beside(self.lock.holders.iter().map(|holder| holder.entry.mode))
    }

    /// Grants the heads of the queue while they fit; those of processes that have gone silent
    /// leave it.
    fn serve(&mut self) {
        let alive = &self.lock.processes;
        self.lock.queue.retain(|_, waiter| alive.contains_key(&waiter.entry.who.process));
        loop {
            let mut waiting = self.lock.queue.iter().filter(|(_, waiter)| !waiter.passed_over);
            let next = match self.server.mutant {
                Some(Mutant::LastFirst) => waiting.next_back(),
                _ => waiting.next(),
            };
            let Some((&arrival, &Waiter { entry, .. })) = next else { return };
            if !self.fits(entry.mode) {
                return;
            }
            self.lock.queue.remove(&arrival);
            let token = self.mint(arrival);
            let until = match self.server.mutant {
                Some(Mutant::NoClaimTtl) => u64::MAX,
                _ => self.now + nanos(CLAIM_TTL.min(entry.ttl)),
            };
            self.hold(entry, token, until, arrival, false);
            self.granted.extend(self.lock.holders.last());
        }
    }

    fn attempt(&mut self, entry: Entry) -> Answer {
        let Entry { who, lock, .. } = entry;
        self.server.history.note(who.process, "server attempt", lock as u64, who.claim);
        if self.lock.queue.is_empty() && self.fits(entry.mode) && self.confirm(entry).is_none() {
            let arrival = self.server.history.arrives();
            let token = self.mint(arrival);
            self.hold(entry, token, self.now + nanos(entry.ttl), arrival, true);
            return Answer::Granted { token };
        }
        if let Some(token) = self.confirm(entry) {
            return Answer::Granted { token };
        }
        if entry.if_busy == IfBusy::Refuse {
            self.serve();
            if self.server.mutant != Some(Mutant::TryQueues) {
                return Answer::Busy;
            }
        }
        match self.lock.queue.values_mut().find(|waiter| waiter.entry.who == who) {
            Some(waiter) => waiter.passed_over = false,
            None => {
                let arrival = self.server.history.arrives();
                self.lock.queue.insert(arrival, Waiter { entry, passed_over: false });
            }
        }
        let epoch = self.refresh(who.process);
        self.serve();
        // The answer tells it; a push would only repeat that.
        self.granted.retain(|holder| holder.entry.who != who);
        match self.confirm(entry) {
            Some(token) => Answer::Granted { token },
            None if entry.if_busy == IfBusy::Refuse => Answer::Busy,
            None => Answer::Waiting { look_in: self.look_in(), epoch },
        }
    }

    /// The same grant however often it is asked for, with a whole lease.
    fn confirm(&mut self, entry: Entry) -> Option<u64> {
        let (now, history) = (self.now, &self.server.history);
        let until = now + nanos(entry.ttl);
        let holder = self.lock.holders.iter_mut().find(|it| it.entry.who == entry.who)?;
        if !holder.confirmed && history.is_calm() && now - holder.since > 100_000_000 {
            history.fail(format!("lock {}: {holder:?} was not told", entry.lock));
        }
        (holder.until, holder.confirmed) = (until, true);
        Some(holder.token)
    }

    /// Nobody is popped by an expiry: a waiter looks when the first holder's lease is over.
    fn look_in(&self) -> Duration {
        let ends = self.lock.holders.iter().map(|holder| holder.until).min();
        let left = ends.map_or(Duration::MAX, |end| Duration::from_nanos(end - self.now));
        self.server.look_every.min(left.saturating_add(Duration::from_millis(1)))
    }
}
