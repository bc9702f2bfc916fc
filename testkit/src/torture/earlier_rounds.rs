//! What earlier rounds have left in the store, as events before a round: tokens rise, counters count and
//! ticks stay done through all of them.

use std::collections::{BTreeMap, HashSet};

use fencelock_conformance::How;
use fencelock_conformance::history::{Event, What};
use fencelock_conformance::workload::NEVER_TWICE;

#[derive(Debug, Default)]
pub(super) struct EarlierRounds {
    /// The largest token of each lock.
    tokens: BTreeMap<String, u64>,
    /// The value of each counter.
    sums: BTreeMap<String, i64>,
    /// The ticks of each job that have been run.
    ticks: BTreeMap<String, BTreeMap<u64, Tick>>,
}

/// What is known of a tick that a claim may have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Tick {
    /// It was run, and the store has not lost its data since.
    is_begun: bool,
    /// It was marked as done, likewise.
    is_marked: bool,
}

/// A claim of a tick.
struct Claim<'a> {
    job: &'a str,
    tick: u64,
    /// Others may be told that the tick is over.
    may_be_over: bool,
    left: Tick,
}

impl EarlierRounds {
    /// What the checker has to know to judge these events.
    pub(super) fn as_events(&self, events: &[Event]) -> Vec<Event> {
        let mut before = Before::default();
        for (lock, &token) in &self.tokens {
            let exclusive = What::Invoked { how: How::Exclusive };
            before.claim(lock, &[exclusive, What::Granted { token, valid_until: 0 }]);
        }
        for (counter, &sum) in &self.sums {
            before.claim(counter, &[What::AddInvoked { n: sum }, What::Added { sum }]);
        }
        for (job, tick) in self.near_those_of(events) {
            let Tick { is_begun, is_marked } = self.ticks[job][&tick];
            let mut whole = vec![What::ForTick { tick, never_twice: job == NEVER_TWICE }];
            // Not a grant of the lock, whose token is not known.
            whole.extend(is_begun.then_some(What::Granted { token: 0, valid_until: 0 }));
            whole.push(What::MarkInvoked);
            whole.extend(is_marked.then_some(What::Marked));
            before.claim(job, &whole);
        }
        before.events
    }

    /// The ticks that the events ask for, and their neighbours, which say how wide a gap is.
    fn near_those_of(&self, events: &[Event]) -> HashSet<(&str, u64)> {
        let mut near = HashSet::new();
        for event in events {
            let What::ForTick { tick, .. } = event.what else { continue };
            let Some((job, ticks)) = self.ticks.get_key_value(&event.lock) else { continue };
            let known = [ticks.range(..=tick).next_back(), ticks.range(tick..).next()];
            near.extend(known.into_iter().flatten().map(|(tick, _)| (&**job, *tick)));
        }
        near
    }

    /// Keeps what these events, which are in order, have left. After a loss of data it is unknown what
    /// the store remembers of ticks.
    pub(super) fn remember(&mut self, events: &[Event], may_have_lost_data: bool) {
        let mut exclusive = HashSet::new();
        let mut claims: BTreeMap<(u64, u64), Claim<'_>> = BTreeMap::new();
        for event in events {
            let claim = (event.worker, event.claim);
            if let What::ForTick { tick, never_twice } = event.what {
                let job = &event.lock;
                claims.insert(
                    claim,
                    Claim { job, tick, may_be_over: never_twice, left: Tick::default() },
                );
            }
            match event.what {
                What::Invoked { how: How::Exclusive } => {
                    exclusive.insert(claim);
                }
                What::Granted { token, .. } if exclusive.contains(&claim) => {
                    let largest = self.tokens.entry(event.lock.clone()).or_default();
                    *largest = token.max(*largest);
                }
                What::Added { sum } => {
                    let value = self.sums.entry(event.lock.clone()).or_default();
                    *value = if may_have_lost_data { sum } else { sum.max(*value) };
                }
                _ => {}
            }
            let Some(claim) = claims.get_mut(&claim) else { continue };
            match event.what {
                What::Granted { .. } => claim.left.is_begun = true,
                What::MarkInvoked => claim.may_be_over = true,
                What::Marked => claim.left.is_marked = true,
                What::Refused | What::AlreadyDone => claim.may_be_over = false,
                _ => {}
            }
        }
        for Claim { job, tick, left, .. } in claims.into_values().filter(|it| it.may_be_over) {
            let known = self.ticks.entry(job.to_owned()).or_default().entry(tick).or_default();
            known.is_begun |= left.is_begun;
            known.is_marked |= left.is_marked;
        }
        if may_have_lost_data {
            self.ticks
                .values_mut()
                .flat_map(BTreeMap::values_mut)
                .for_each(|it| *it = Tick::default());
        }
    }
}

/// Claims of before the round.
#[derive(Default)]
struct Before {
    events: Vec<Event>,
}

impl Before {
    fn claim(&mut self, lock: &str, whole: &[What]) {
        let claim = self.events.len() as u64;
        let event = |&what| Event { at: 0, worker: 0, claim, lock: lock.to_owned(), what };
        self.events.extend(whole.iter().map(event));
    }
}

#[cfg(test)]
mod tests {
    use fencelock_conformance::checker::{Rules, check};
    use fencelock_conformance::workload::ONCE;

    use super::*;

    fn events(lock: &str, claim: u64, at: u64, whole: &[What]) -> Vec<Event> {
        let event = |&what| Event { at, worker: 1, claim, lock: lock.to_owned(), what };
        whole.iter().map(event).collect()
    }

    fn granted(token: u64) -> [What; 2] {
        [What::Invoked { how: How::Exclusive }, What::Granted { token, valid_until: u64::MAX }]
    }

    /// Everything that is done to `name`, as one claim in each of two rounds: how much is wrong in the second,
    /// with and without a loss of data in the first.
    fn wrong(name: &str, first: &[What], second: &[What]) -> [usize; 2] {
        [false, true].map(|may_have_lost_data| {
            let mut earlier = EarlierRounds::default();
            earlier.remember(&events(name, 1, 10, first), may_have_lost_data);
            let second = events(name, 2, 20, second);
            let all = [earlier.as_events(&second), second].concat();
            check(all, Rules::default()).len()
        })
    }

    fn run(ends: &[What]) -> Vec<What> {
        let [invoked, granted] = granted(5);
        let for_tick = What::ForTick { tick: 7, never_twice: false };
        [&[invoked, for_tick, granted], ends].concat()
    }

    #[test]
    fn tokens_rise_over_rounds_whatever_is_lost() {
        assert_eq!(wrong("lock-0", &granted(5), &granted(6)), [0, 0]);
        assert_eq!(wrong("lock-0", &granted(5), &granted(4)), [1, 1]);
    }

    #[test]
    fn counters_go_on_from_the_last_value() {
        let add = |n, sum| [What::AddInvoked { n }, What::Added { sum }];
        assert_eq!(wrong("counter-0", &add(1, 1), &add(1, 2)), [0, 0]);
        assert_eq!(wrong("counter-0", &add(1, 1), &add(1, 3)), [1, 1]);
        let mut earlier = EarlierRounds::default();
        earlier.remember(&events("counter-0", 1, 10, &add(5, 5)), false);
        earlier.remember(&events("counter-0", 2, 20, &add(0, 2)), true);
        assert_eq!(earlier.sums["counter-0"], 2, "what was left of it");
    }

    #[test]
    fn ticks_stay_done_unless_data_may_be_lost() {
        let done = run(&[What::MarkInvoked, What::Marked]);
        let mut again = run(&[]);
        again[2] = What::Granted { token: 6, valid_until: u64::MAX };
        assert_eq!(wrong(ONCE, &done, &again), [1, 0]);
        assert_eq!(wrong(ONCE, &run(&[]), &again), [0, 0]);
        let told = [again[0], again[1], What::AlreadyDone];
        assert_eq!(wrong(ONCE, &done, &told), [0, 0]);
        assert_eq!(
            wrong(ONCE, &run(&[What::MarkInvoked]), &told),
            [0, 0],
            "it may have been marked"
        );
        assert_eq!(wrong(ONCE, &run(&[]), &told), [1, 1]);
    }

    #[test]
    fn a_tick_stays_begun() {
        let begun = |token| {
            let [invoked, granted] = granted(token);
            [invoked, What::ForTick { tick: 7, never_twice: true }, granted]
        };
        let (first, second) = (begun(5), begun(6));
        assert_eq!(wrong(NEVER_TWICE, &first, &second), [1, 0]);
    }
}
