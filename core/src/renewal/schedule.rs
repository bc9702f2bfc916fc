//! The worker's tasks ordered by time: holds to renew or to expire, waiters to check.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::timing::{CHECK_GRID, join_window, resend_after};
use crate::claim::hold::Hold;
use crate::claim::wait::Wait;
use crate::store::erased::ErasedAcquisition;
use crate::telemetry::metrics::Metrics;
use crate::time::moment::Moment;
use crate::types::mode::Mode;
use crate::types::name::LockName;

/// How many entries are searched for holds: some 10 us.
const SEARCHED: usize = 1_000;

/// While it is locked, no hold ends and none is dropped: the program's subscriber, which sees both, may
/// use the client.
#[derive(Default)]
pub(super) struct Schedule {
    /// Their keys are the client's own numbers, which need no hash that withstands an attacker: that was a
    /// thirtieth of a pair of the memory store.
    entries: FxHashMap<u64, Entry>,
    by_due: BTreeSet<(Moment, u64)>,
    /// Until when the worker sleeps; only an earlier task wakes it.
    pub(super) sleeps_until: Option<Moment>,
    pub(super) stopped: bool,
}

pub(super) struct Entry {
    due: Moment,
    pub(super) in_flight: InFlight,
    pub(super) task: Task,
}

pub(super) enum Task {
    Hold(Arc<Hold>),
    Wait(Arc<Wait>),
}

/// Whether a batch with this entry is in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InFlight {
    No,
    Yes,
    /// The claim was woken meanwhile: the answer may be older than the reason for the wake-up.
    YesAndWoken,
}

/// The tasks that are due now.
#[derive(Default)]
pub(super) struct Due {
    pub(super) expired: Vec<(Arc<Hold>, Moment)>,
    pub(super) renew: Vec<Arc<dyn ErasedAcquisition>>,
    pub(super) check: Vec<Arc<dyn ErasedAcquisition>>,
    /// Waiters whose check was never answered.
    pub(super) unanswered: Vec<Arc<Wait>>,
    /// What is waited for without a limit, and long: this client may hold it itself.
    pub(super) long_waits: HashSet<(LockName, Mode)>,
    pub(super) metrics: Option<Arc<Metrics>>,
    /// Holds that have ended, to be dropped once the schedule is unlocked.
    pub(super) ended: Vec<Entry>,
}

impl Schedule {
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(super) fn insert(&mut self, id: u64, due: Moment, task: Task) {
        let entry = Entry { due, in_flight: InFlight::No, task };
        if let Some(before) = self.entries.insert(id, entry) {
            self.by_due.remove(&(before.due, id));
        }
        self.by_due.insert((due, id));
    }

    #[must_use = "it is to be dropped once the schedule is unlocked"]
    pub(super) fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.by_due.remove(&(entry.due, id));
        Some(entry)
    }

    pub(super) fn move_to(&mut self, id: u64, due: Moment, in_flight: InFlight) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.by_due.remove(&(entry.due, id));
            (entry.due, entry.in_flight) = (due, in_flight);
            self.by_due.insert((due, id));
        }
    }

    /// The holds of `lock`, the oldest first.
    pub(super) fn holds_of(&self, lock: &LockName, now: Moment) -> Vec<Arc<Hold>> {
        if self.entries.len() > SEARCHED {
            return Vec::new();
        }
        let is_held = |hold: &Hold| hold.valid_until().is_some_and(|until| now < until);
        let own = self.entries.values().filter_map(|entry| match &entry.task {
            Task::Hold(hold) if hold.claim().name() == lock && is_held(hold) => Some(hold.clone()),
            _ => None,
        });
        let mut own: Vec<_> = own.collect();
        own.sort_by_key(|hold| hold.claim().id);
        own
    }

    /// Removes all tasks, in the order in which they were due, and accepts no more.
    pub(super) fn stop(&mut self) -> Vec<Task> {
        self.stopped = true;
        let order = std::mem::take(&mut self.by_due);
        let entries = order.into_iter().filter_map(|(_, id)| self.entries.remove(&id));
        entries.map(|entry| entry.task).collect()
    }

    /// Takes what is due now, with the renewals due soon, and returns when to call again: when the
    /// next task is due, but no later than `at_latest`.
    pub(super) fn take_due(&mut self, now: Moment, at_latest: Moment) -> (Due, Moment) {
        let mut due = Due::default();
        let horizon = self.horizon(now);
        let candidates: Vec<u64> =
            self.by_due.range(..=(horizon, u64::MAX)).map(|(_, id)| *id).collect();
        for id in candidates {
            let Some(entry) = self.entries.get(&id) else { continue };
            let known = (entry.due, entry.in_flight);
            let next = match &entry.task {
                Task::Hold(hold) => entry.take_hold(hold, now, &mut due),
                Task::Wait(wait) => Some(entry.take_wait(wait, now, &mut due)),
            };
            match next {
                // Not due yet: most waiters whose check comes shortly after a renewal.
                Some(next) if next == known => {}
                Some((at, in_flight)) => self.move_to(id, at, in_flight),
                None => due.ended.extend(self.remove(id)),
            }
        }
        let next = self.by_due.first().map_or(at_latest, |(due, _)| at_latest.min(*due));
        self.sleeps_until = Some(next);
        (due, next)
    }

    /// Until when a renewal must be due to join one that is due now: `now`, if none is.
    fn horizon(&self, now: Moment) -> Moment {
        let mut horizon = now;
        for (_, id) in self.by_due.range(..=(now, u64::MAX)) {
            if let Some(Entry { task: Task::Hold(hold), .. }) = self.entries.get(id) {
                horizon = horizon.max(now + join_window(hold));
            }
        }
        horizon
    }
}

impl Entry {
    /// Adds what is due now to `due`, and returns when the entry is due next; `None` when the hold
    /// has ended.
    fn take_hold(
        &self,
        hold: &Arc<Hold>,
        now: Moment,
        due: &mut Due,
    ) -> Option<(Moment, InFlight)> {
        let until = hold.valid_until()?;
        if now >= until {
            due.expired.push((hold.clone(), until));
            return None;
        }
        // A renewal in flight joins no other: it is sent again when its answer takes too long.
        let early = match self.in_flight {
            InFlight::No => join_window(hold),
            InFlight::Yes | InFlight::YesAndWoken => Duration::ZERO,
        };
        if self.due < until && self.due - early <= now {
            due.renew.push(hold.cleanup.acquisition.clone());
            due.metrics.get_or_insert_with(|| hold.metrics.clone());
            return Some((until.min(now + resend_after(hold)), InFlight::Yes));
        }
        // A renewal may have moved the end at which this entry was due.
        Some((if self.due <= now { until } else { self.due }, self.in_flight))
    }

    /// Adds what is due now to `due`, and returns when the entry is due next.
    fn take_wait(&self, wait: &Arc<Wait>, now: Moment, due: &mut Due) -> (Moment, InFlight) {
        if self.due > now {
            return (self.due, self.in_flight);
        }
        if self.in_flight == InFlight::No {
            if wait.is_long(now) {
                let claim = wait.cleanup.claim();
                due.long_waits.insert((claim.name().clone(), claim.mode()));
            }
            wait.asked(now);
            due.check.push(wait.cleanup.acquisition.clone());
            return (wait.silence_ends().max(now + CHECK_GRID), InFlight::Yes);
        }
        due.unanswered.push(wait.clone());
        (Moment::NEVER, InFlight::Yes)
    }
}
