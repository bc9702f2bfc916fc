//! What the keeper has to do, by time: holds to renew or to end, waiters to send to look.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::erased::AnyContender;
use crate::hold::Hold;
use crate::observe::Meters;
use crate::validity::Moment;
use crate::wait::Wait;

/// When to ask again about a rung hold that is not renewed by time.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Looks this far ahead are taken at whole seconds, so that all waiters of a lock look together.
const GRID: Duration = Duration::from_secs(1);
/// No waiter looks more often, whatever its driver says.
const LOOK_AT_LEAST: Duration = Duration::from_millis(1);
/// So close to its end a hold is not asked about any more.
const TOO_LATE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Agenda {
    entries: HashMap<u64, Entry>,
    by_due: BTreeSet<(Moment, u64)>,
    /// Until when the keeper sleeps; only something earlier wakes it.
    pub(crate) sleeps_until: Option<Moment>,
    pub(crate) stopped: bool,
}

pub(crate) struct Entry {
    due: Moment,
    pub(crate) asked: Asked,
    pub(crate) what: What,
}

pub(crate) enum What {
    Hold(Arc<Hold>),
    Wait(Arc<Wait>),
}

/// Whether a batch with this entry is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    No,
    Yes,
    /// And it was rung meanwhile: the answer may be older than what the ring meant.
    YesAndAgain,
}

/// What there is to do now.
#[derive(Default)]
pub(crate) struct Due {
    pub(crate) expired: Vec<(Arc<Hold>, Moment)>,
    pub(crate) renew: Vec<Arc<dyn AnyContender>>,
    pub(crate) look: Vec<Arc<dyn AnyContender>>,
    /// Waiters whose look was never answered.
    pub(crate) find_out: Vec<Arc<Wait>>,
    pub(crate) meters: Option<Arc<Meters>>,
}

impl Agenda {
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(crate) fn insert(&mut self, id: u64, due: Moment, what: What) {
        self.remove(id);
        self.by_due.insert((due, id));
        self.entries.insert(id, Entry { due, asked: Asked::No, what });
    }

    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_due.remove(&(entry.due, id));
        }
    }

    pub(crate) fn move_to(&mut self, id: u64, due: Moment, asked: Asked) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.by_due.remove(&(entry.due, id));
            (entry.due, entry.asked) = (due, asked);
            self.by_due.insert((due, id));
        }
    }

    /// Everything, in the order it was due in, and nothing more from now on.
    pub(crate) fn stop(&mut self) -> Vec<What> {
        self.stopped = true;
        let order = std::mem::take(&mut self.by_due);
        let entries = order.into_iter().filter_map(|(_, id)| self.entries.remove(&id));
        entries.map(|entry| entry.what).collect()
    }

    /// Takes what is due now, with the renewals due soon, and says when to come again: when the
    /// next is due, but not after `at_latest`.
    pub(crate) fn take_due(&mut self, now: Moment, at_latest: Moment) -> (Due, Moment) {
        let mut due = Due::default();
        let horizon = self.horizon(now);
        let candidates: Vec<u64> =
            self.by_due.range(..=(horizon, u64::MAX)).map(|(_, id)| *id).collect();
        for id in candidates {
            let Some(entry) = self.entries.get(&id) else { continue };
            match &entry.what {
                What::Hold(hold) => {
                    let hold = hold.clone();
                    self.take_hold(id, &hold, now, &mut due);
                }
                What::Wait(wait) if entry.due <= now => {
                    let wait = wait.clone();
                    self.take_wait(id, wait, now, &mut due);
                }
                What::Wait(_) => {}
            }
        }
        let next = self.by_due.first().map_or(at_latest, |(due, _)| at_latest.min(*due));
        self.sleeps_until = Some(next);
        (due, next)
    }

    fn take_hold(&mut self, id: u64, hold: &Arc<Hold>, now: Moment, due: &mut Due) {
        let Some(entry) = self.entries.get(&id) else { return };
        match hold.valid_until() {
            None => self.remove(id),
            Some(until) if now >= until => {
                due.expired.push((hold.clone(), until));
                self.remove(id);
            }
            Some(until) => {
                // What was asked already joins nobody: it is asked again when that took too long.
                let early = match (entry.asked, hold.period()) {
                    (Asked::No, Some(period)) => period / 8,
                    _ => Duration::ZERO,
                };
                if entry.due < until && entry.due - early <= now {
                    due.renew.push(hold.seat().contender().clone());
                    due.meters.get_or_insert_with(|| hold.meters().clone());
                    let again = hold.period().map_or(ASK_AGAIN, |period| period / 2);
                    self.move_to(id, until.min(now + again), Asked::Yes);
                } else if entry.due <= now {
                    // What it waited for was an end that has been moved since.
                    let asked = entry.asked;
                    self.move_to(id, until, asked);
                }
            }
        }
    }

    fn take_wait(&mut self, id: u64, wait: Arc<Wait>, now: Moment, due: &mut Due) {
        let Some(entry) = self.entries.get(&id) else { return };
        match entry.asked {
            Asked::No => {
                wait.asked(now);
                due.look.push(wait.seat().contender().clone());
                self.move_to(id, wait.silence_ends().max(now + GRID), Asked::Yes);
            }
            Asked::Yes | Asked::YesAndAgain => {
                self.move_to(id, Moment::NEVER, Asked::Yes);
                due.find_out.push(wait);
            }
        }
    }

    /// Up to when renewals may join one that is due now: nowhere, if none is.
    fn horizon(&self, now: Moment) -> Moment {
        let mut horizon = now;
        for (_, id) in self.by_due.range(..=(now, u64::MAX)) {
            if let Some(Entry { what: What::Hold(hold), .. }) = self.entries.get(id) {
                horizon = horizon.max(now + hold.period().map_or(Duration::ZERO, |it| it / 8));
            }
        }
        horizon
    }
}

/// When to renew a hold whose last renewal, or attempt, was sent at `sent`: a period later, or at
/// its end where nothing is renewed by time.
pub(crate) fn next_renewal(hold: &Hold, sent: Moment, now: Moment) -> Moment {
    match hold.period() {
        None => hold.valid_until().unwrap_or(now),
        Some(period) => in_time(hold, sent + period, now),
    }
}

/// When to ask again after no useful answer.
pub(crate) fn renewal_again(hold: &Hold, now: Moment) -> Moment {
    in_time(hold, now + hold.period().map_or(ASK_AGAIN, |period| period / 4), now)
}

/// `due`, or half-way to the end of a hold that would be over by then.
fn in_time(hold: &Hold, due: Moment, now: Moment) -> Moment {
    let until = hold.valid_until().unwrap_or(now);
    let left = until.duration_since(now);
    if due < until || until == hold.limit() || left < TOO_LATE {
        return due.min(until);
    }
    now + left / 2
}

/// When to look, `check_after` from now.
pub(crate) fn next_look(check_after: Duration, now: Moment) -> Moment {
    let at = now + check_after.max(LOOK_AT_LEAST);
    let beyond = Duration::from_nanos(at.as_nanos() % 1_000_000_000);
    match check_after >= GRID && at != Moment::NEVER {
        true => (at - beyond).max(now + LOOK_AT_LEAST),
        false => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_a_second_ahead_meet_at_whole_seconds() {
        let second = Moment::from_nanos(0) + Duration::from_secs(100);
        for ms in [1, 300, 999] {
            let now = second + Duration::from_millis(ms);
            let look = next_look(Duration::from_secs(1), now);
            assert_eq!(look, second + Duration::from_secs(1), "at {ms} ms");
        }
        let exact = next_look(Duration::from_millis(700), second);
        assert_eq!(exact, second + Duration::from_millis(700));
        assert_eq!(next_look(Duration::MAX, second), Moment::NEVER);
        assert!(next_look(Duration::ZERO, second) > second);
    }
}
