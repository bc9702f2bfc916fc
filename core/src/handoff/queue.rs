//! Who may begin the next turn: what the hand-offs of one group decide, without a client, a clock or a task. What
//! has happened goes in, and what is to be done comes out.

use std::collections::BTreeMap;

use crate::time::moment::Moment;
use crate::types::error::ErrorKind;

/// `W` is how a waiter is told, `H` what a tenure holds.
pub(super) struct Queue<W, H> {
    /// In order of arrival; who was offered a turn and could not take it in time comes back ahead of all.
    waiting: BTreeMap<i64, W>,
    first_place: i64,
    last_place: i64,
    tenure: Option<Tenure<H>>,
    /// The number of the claim in the store's queue.
    contention: Option<u64>,
    last_id: u64,
}

/// One grant of the store.
pub(super) struct Tenure<H> {
    pub(super) held: H,
    pub(super) id: u64,
    /// When no further turn begins, and when not even the first one.
    pub(super) ends: Moment,
    pub(super) first_ends: Moment,
    used: u32,
    /// The number of the offer that was made last, 0 before the first, and whether it was accepted.
    offer: u64,
    is_running: bool,
}

/// Which turn of which tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnNumber {
    tenure: u64,
    offer: u64,
}

/// What is to be done so that those who wait are served.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Need {
    Nothing,
    /// The store is to be asked, under this number.
    Contention(u64),
    /// The tenure is to be watched, unless it is already.
    Watch,
}

/// What became of a tenure at the end of a turn or an offer.
pub(super) enum Next<W, H> {
    /// This waiter is to be offered the next turn, and the tenure to be watched.
    Offer(W, TurnNumber),
    Ended(H),
}

/// What became of an offer that a waiter took.
pub(super) enum Accepted<'a, H> {
    /// It is the turn after so many.
    Turn(&'a H, u32),
    /// What is held was lost.
    Lost(H),
    /// It was revoked.
    Revoked,
}

impl<W, H> Default for Queue<W, H> {
    fn default() -> Queue<W, H> {
        let (waiting, tenure, contention) = (BTreeMap::new(), None, None);
        Queue { waiting, first_place: 0, last_place: 0, tenure, contention, last_id: 0 }
    }
}

impl<W, H> Queue<W, H> {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.tenure.is_none() && self.contention.is_none()
    }

    pub(super) fn tenure(&mut self) -> Option<&mut Tenure<H>> {
        self.tenure.as_mut()
    }

    /// Behind all who wait.
    pub(super) fn join(&mut self, waiter: W) -> i64 {
        self.last_place += 1;
        self.waiting.insert(self.last_place, waiter);
        self.last_place
    }

    /// Ahead of all: its offer was revoked.
    pub(super) fn come_back(&mut self, waiter: W) -> i64 {
        self.first_place -= 1;
        self.waiting.insert(self.first_place, waiter);
        self.first_place
    }

    /// The waiter that left, and whether the store need not be asked any more: it was the last one.
    pub(super) fn leave(&mut self, place: i64) -> (Option<W>, bool) {
        let left = self.waiting.remove(&place);
        let is_last = self.waiting.is_empty() && self.contention.take().is_some();
        (left, is_last)
    }

    /// What those who wait need, if nothing else will serve them. Asked after each change that leaves some.
    pub(super) fn need(&mut self) -> Need {
        match self.tenure {
            _ if self.waiting.is_empty() => Need::Nothing,
            Some(_) => Need::Watch,
            None if self.contention.is_some() => Need::Nothing,
            None => {
                self.last_id += 1;
                self.contention = Some(self.last_id);
                Need::Contention(self.last_id)
            }
        }
    }

    /// The store has granted. Nobody may wait any more: then it is given back.
    pub(super) fn grant(
        &mut self,
        contention: u64,
        held: H,
        ends: Moment,
        first_ends: Moment,
    ) -> Result<TurnNumber, H> {
        if self.contention.take_if(|id| *id == contention).is_none() {
            return Err(held);
        }
        self.last_id += 1;
        let (id, is_running) = (self.last_id, false);
        let tenure = Tenure { held, id, ends, first_ends, used: 0, offer: 0, is_running };
        Ok(self.tenure.insert(tenure).number())
    }

    /// The store has refused. A grant that came too late is the misfortune of one; the others ask again.
    /// Who is told so; `None` where nobody waits for that answer any more.
    pub(super) fn refuse(&mut self, contention: u64, why: ErrorKind) -> Option<Vec<W>> {
        self.contention.take_if(|id| *id == contention)?;
        let refused = match why {
            ErrorKind::Lost => self.waiting.pop_first().into_iter().collect(),
            _ => std::mem::take(&mut self.waiting),
        };
        Some(refused.into_values().collect())
    }

    /// The turn or the offer of this number is over: `None` if others have gone on meanwhile.
    pub(super) fn pass_on(
        &mut self,
        number: TurnNumber,
        now: Moment,
        most: u32,
        is_valid: impl Fn(&H) -> bool,
    ) -> Option<Next<W, H>> {
        let tenure = self.tenure.as_mut().filter(|tenure| tenure.number() == number)?;
        let may_begin = tenure.used < most && now < tenure.next_turn_by();
        if may_begin
            && is_valid(&tenure.held)
            && let Some((_, waiter)) = self.waiting.pop_first()
        {
            tenure.offer += 1;
            tenure.is_running = false;
            return Some(Next::Offer(waiter, tenure.number()));
        }
        self.tenure.take().map(|tenure| Next::Ended(tenure.held))
    }

    pub(super) fn accept(
        &mut self,
        number: TurnNumber,
        is_valid: impl Fn(&H) -> bool,
    ) -> Accepted<'_, H> {
        let is_lost = |it: &mut Tenure<H>| it.number() == number && !is_valid(&it.held);
        if let Some(lost) = self.tenure.take_if(is_lost) {
            return Accepted::Lost(lost.held);
        }
        let Some(tenure) = self.tenure.as_mut().filter(|it| it.number() == number) else {
            return Accepted::Revoked;
        };
        let before = tenure.used;
        (tenure.is_running, tenure.used) = (true, before + 1);
        Accepted::Turn(&tenure.held, before)
    }

    /// Ends a tenure whose next turn was not begun in time, or whose hold is lost.
    pub(super) fn end(&mut self, tenure: u64, now: Moment, is_lost: bool) -> Option<H> {
        let is_over = |it: &mut Tenure<H>| {
            it.id == tenure && (is_lost || !it.is_running && now >= it.next_turn_by())
        };
        self.tenure.take_if(is_over).map(|tenure| tenure.held)
    }
}

impl<H> Tenure<H> {
    fn number(&self) -> TurnNumber {
        TurnNumber { tenure: self.id, offer: self.offer }
    }

    fn next_turn_by(&self) -> Moment {
        if self.used == 0 { self.first_ends } else { self.ends }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MOST: u32 = 2;
    const ENDS: u64 = 10;
    const FIRST_ENDS: u64 = 20;
    const STEPS: &[u8] = &[0, 0, 0, 1, 2, 2, 3, 4, 5, 5, 5, 6, 6, 6, 7, 8, 9, 10, 10];

    /// A store, the tasks of a group and its waiters, in one.
    #[derive(Default)]
    struct World {
        queue: Queue<u64, u64>,
        now: u64,
        joined: u64,
        /// Who waits, with the place, in the order in which they are to be served.
        waiting: VecDeque<(u64, i64)>,
        contention: Option<u64>,
        asked: u64,
        /// What the store has granted and not got back, since when, its turns, and that which was lost.
        held: Option<u64>,
        since: u64,
        turns: u32,
        lost: Option<u64>,
        offered: Option<(u64, TurnNumber)>,
        running: Option<TurnNumber>,
        /// Who does not know yet that an offer was revoked.
        frozen: Vec<(u64, TurnNumber)>,
    }

    impl World {
        /// What a group does at the end of each change.
        fn serve(&mut self) {
            if let Need::Contention(id) = self.queue.need() {
                assert_eq!(self.contention.replace(id), None, "asked twice");
                assert!(self.queue.tenure.is_none(), "asked beside a tenure");
                assert!(std::mem::replace(&mut self.asked, id) < id, "asked under an old number");
            }
        }

        fn is_late(&self) -> bool {
            self.now >= self.since + if self.turns == 0 { FIRST_ENDS } else { ENDS }
        }

        fn is_lost(&self) -> bool {
            self.lost.is_some() && self.lost == self.held
        }

        fn give_back(&mut self, held: u64) {
            assert_eq!(self.held.take(), Some(held), "given back once");
            self.running = None;
            self.frozen.extend(self.offered.take());
        }

        fn pass_on(&mut self, number: TurnNumber) {
            let (lost, now) = (self.lost, Moment::from_nanos(self.now));
            let may_begin = !self.is_lost() && !self.is_late() && self.turns < MOST;
            match self.queue.pass_on(number, now, MOST, |it| Some(*it) != lost) {
                None => {}
                Some(Next::Offer(waiter, number)) => {
                    assert!(self.running.is_none() && self.offered.is_none(), "two at once");
                    assert!(may_begin, "too late, one too many, or of what is lost");
                    assert_eq!(self.waiting.pop_front().unwrap().0, waiter, "in order");
                    self.offered = Some((waiter, number));
                }
                Some(Next::Ended(held)) => {
                    assert!(!may_begin || self.waiting.is_empty(), "somebody could go on");
                    self.give_back(held);
                }
            }
            self.serve();
        }

        fn come_back(&mut self, waiter: u64) {
            self.waiting.push_front((waiter, self.queue.come_back(waiter)));
        }

        fn step(&mut self, what: u8) {
            let (lost, at) = (self.lost, |nanos| Moment::from_nanos(nanos));
            match what {
                0 => {
                    self.joined += 1;
                    self.waiting.push_back((self.joined, self.queue.join(self.joined)));
                    self.serve();
                }
                1 => {
                    let left = self.waiting.remove(self.waiting.len() / 2);
                    let Some((waiter, place)) = left else { return };
                    let (left, is_last) = self.queue.leave(place);
                    assert_eq!((left, is_last && !self.waiting.is_empty()), (Some(waiter), false));
                    if is_last {
                        let id = self.contention.take().expect("it is under way");
                        assert!(self.queue.grant(id, id, at(0), at(0)).is_err(), "too late");
                    }
                }
                2 => {
                    let Some(id) = self.contention.take() else { return };
                    assert_eq!(self.held.replace(id), None, "two tenures");
                    (self.since, self.turns) = (self.now, 0);
                    let [ends, first_ends] = [ENDS, FIRST_ENDS].map(|after| at(self.now + after));
                    let granted = self.queue.grant(id, id, ends, first_ends);
                    self.pass_on(granted.expect("somebody waits"));
                }
                3 | 4 => {
                    let Some(id) = self.contention.take() else { return };
                    let (why, told) = match what {
                        3 => (ErrorKind::Lost, 1),
                        _ => (ErrorKind::Unreachable, self.waiting.len()),
                    };
                    let told: Vec<u64> = self.waiting.drain(..told).map(|(it, _)| it).collect();
                    assert_eq!(self.queue.refuse(id, why), Some(told));
                    self.serve();
                }
                5 => {
                    let Some((waiter, number)) = self.offered.take() else { return };
                    match self.queue.accept(number, |it| Some(*it) != lost) {
                        Accepted::Turn(_, before) => {
                            assert!(!self.is_lost());
                            assert_eq!(before, self.turns);
                            (self.running, self.turns) = (Some(number), before + 1);
                        }
                        Accepted::Lost(held) => {
                            self.give_back(held);
                            self.come_back(waiter);
                        }
                        Accepted::Revoked => unreachable!("it was not revoked"),
                    }
                    self.serve();
                }
                6 => {
                    let over = self.offered.take().map(|(_, number)| number);
                    let Some(number) = over.or(self.running.take()) else { return };
                    self.pass_on(number);
                    self.pass_on(number);
                }
                7 => self.lost = self.held,
                8 => {
                    // What is late, or never was.
                    assert!(self.queue.grant(0, 0, at(0), at(0)).is_err());
                    assert_eq!(self.queue.refuse(0, ErrorKind::Lost), None);
                    assert_eq!(self.queue.end(0, at(self.now), true), None);
                }
                9 => {
                    let Some((waiter, number)) = self.frozen.pop() else { return };
                    let accepted = self.queue.accept(number, |it| Some(*it) != lost);
                    assert!(matches!(accepted, Accepted::Revoked));
                    self.come_back(waiter);
                    self.serve();
                }
                _ => {
                    self.now += ENDS / 2;
                    let Some(Tenure { id, .. }) = self.queue.tenure else { return };
                    let ends = self.is_lost() || self.running.is_none() && self.is_late();
                    let ended = self.queue.end(id, at(self.now), self.is_lost());
                    assert_eq!(ended.is_some(), ends);
                    ended.into_iter().for_each(|held| self.give_back(held));
                    self.serve();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn who_waits_is_served_in_order_and_one_at_a_time(
            steps in proptest::collection::vec(prop::sample::select(STEPS), 0..200),
        ) {
            let mut world = World::default();
            for what in steps {
                world.step(what);
                let is_served = world.contention.is_some() || world.held.is_some();
                prop_assert!(world.waiting.is_empty() || is_served, "nobody serves them");
            }
            while !world.queue.is_idle() || !world.frozen.is_empty() {
                [9, 2, 5, 6, 10].into_iter().for_each(|what| world.step(what));
            }
            prop_assert!(world.waiting.is_empty() && world.held.is_none());
        }
    }
}
