//! What one script of the server with leases does to one lock, step by step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fencelock_core::{IfBusy, Mode};

use crate::lease::server::LeaseServer;
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
    /// How many tokens it needs: one for each turn.
    pub(crate) tokens: u64,
}

const CLAIM_TTL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted { token: u64 },
    Waiting { check_after: Duration, epoch: u64 },
    Busy,
}

/// Which of its claims a process should attempt for, by a waiter check.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) attempt: Vec<u64>,
    pub(crate) epoch: u64,
}

#[derive(Default)]
pub(crate) struct Lock {
    pub(crate) holders: Vec<Holder>,
    /// By arrival.
    pub(crate) queue: BTreeMap<u64, Waiter>,
    pub(crate) processes: BTreeMap<u32, Process>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) entry: Entry,
    pub(crate) token: u64,
    pub(crate) until: u64,
    pub(crate) arrival: u64,
    pub(crate) confirmed: bool,
    pub(crate) since: u64,
}

impl Holder {
    /// One for each turn.
    pub(crate) fn tokens(&self) -> Range<u64> {
        self.token..self.token + self.entry.tokens
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) entry: Entry,
    /// Granted once and not confirmed in time: it keeps its place and is passed over.
    pub(crate) passed_over: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) deadline: u64,
    pub(crate) epoch: u64,
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One script while it runs.
pub(crate) struct Script<'a> {
    pub(crate) server: &'a LeaseServer,
    pub(crate) name: usize,
    pub(crate) lock: &'a mut Lock,
    pub(crate) last_token: &'a mut u64,
    pub(crate) last_epoch: &'a mut u64,
    pub(crate) now: u64,
    pub(crate) granted: Vec<Holder>,
}

impl Script<'_> {
    pub(crate) fn expire(&mut self) {
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

    pub(crate) fn refresh(&mut self, process: u32) -> u64 {
        let deadline = self.now + 5 * nanos(self.server.check_every);
        let last_epoch = &mut *self.last_epoch;
        let record = self.lock.processes.entry(process).or_insert_with(|| {
            *last_epoch += 1;
            Process { deadline, epoch: *last_epoch }
        });
        record.deadline = deadline;
        record.epoch
    }

    pub(crate) fn mint(&mut self, arrival: u64, tokens: u64) -> u64 {
        let time = match self.server.mutant {
            Some(Mutant::TokenFromIncr) => 0,
            _ => self.now / 1_000,
        };
        let first = time.max(*self.last_token + 1);
        let reserved =
            if self.server.mutant == Some(Mutant::NoTokensReserved) { 1 } else { tokens };
        *self.last_token = first + reserved - 1;
        self.server.history.gave(self.name, first, arrival);
        first
    }

    pub(crate) fn hold(
        &mut self,
        entry: Entry,
        token: u64,
        until: u64,
        arrival: u64,
        confirmed: bool,
    ) {
        let holder = Holder { entry, token, until, arrival, confirmed, since: self.now };
        self.lock.holders.push(holder);
    }

    fn fits(&self, mode: Mode) -> bool {
        if mode == Mode::Shared && self.server.mutant == Some(Mutant::ReadersAlways) {
            return true;
        }
        if self.server.mutant == Some(Mutant::DoubleGrant) && *self.last_token % 10 == 9 {
            return true;
        }
        mode.is_compatible_with(self.lock.holders.iter().map(|holder| holder.entry.mode))
    }

    /// Grants the heads of the queue while they fit; those of processes that have gone silent
    /// leave it.
    pub(crate) fn serve(&mut self) {
        let alive = &self.lock.processes;
        self.lock.queue.retain(|_, waiter| alive.contains_key(&waiter.entry.who.process));
        loop {
            let mut waiting = self.lock.queue.iter().filter(|(_, waiter)| !waiter.passed_over);
            let next = match self.server.mutant {
                Some(Mutant::LastComeFirstServed) => waiting.next_back(),
                _ => waiting.next(),
            };
            let Some((&arrival, &Waiter { entry, .. })) = next else { return };
            if !self.fits(entry.mode) {
                return;
            }
            self.lock.queue.remove(&arrival);
            let token = self.mint(arrival, entry.tokens);
            let until = match self.server.mutant {
                Some(Mutant::FrozenWaiterBlocks) => u64::MAX,
                _ => self.now + nanos(CLAIM_TTL.min(entry.ttl)),
            };
            self.hold(entry, token, until, arrival, false);
            self.granted.extend(self.lock.holders.last());
        }
    }

    pub(crate) fn attempt(&mut self, entry: Entry) -> Answer {
        let Entry { who, lock, .. } = entry;
        self.server.history.note(who.process, "server attempt", lock as u64, who.claim);
        if self.lock.queue.is_empty() && self.fits(entry.mode) && self.confirm(entry).is_none() {
            let arrival = self.server.history.arrives();
            let token = self.mint(arrival, entry.tokens);
            self.hold(entry, token, self.now + nanos(entry.ttl), arrival, true);
            return Answer::Granted { token };
        }
        if let Some(token) = self.confirm(entry) {
            return Answer::Granted { token };
        }
        if entry.if_busy == IfBusy::Refuse {
            self.serve();
            if self.server.mutant != Some(Mutant::TryStaysQueued) {
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
        // The answer reports it; a push would only repeat that.
        self.granted.retain(|holder| holder.entry.who != who);
        match self.confirm(entry) {
            Some(token) => Answer::Granted { token },
            None if entry.if_busy == IfBusy::Refuse => Answer::Busy,
            None => Answer::Waiting { check_after: self.check_after(), epoch },
        }
    }

    /// The same grant however often it is asked for, with a whole lease.
    fn confirm(&mut self, entry: Entry) -> Option<u64> {
        let (now, history) = (self.now, &self.server.history);
        let until = now + nanos(entry.ttl);
        let holder = self.lock.holders.iter_mut().find(|it| it.entry.who == entry.who)?;
        if !holder.confirmed && history.is_calm() && now - holder.since > 100_000_000 {
            history.fail(format!("lock {}: {holder:?} was not notified", entry.lock));
        }
        (holder.until, holder.confirmed) = (until, true);
        Some(holder.token)
    }

    /// An expiry pops no waiter: a waiter checks when the first holder's lease ends.
    fn check_after(&self) -> Duration {
        let ends = self.lock.holders.iter().map(|holder| holder.until).min();
        let left = ends.map_or(Duration::MAX, |end| Duration::from_nanos(end - self.now));
        self.server.check_every.min(left.saturating_add(Duration::from_millis(1)))
    }
}
