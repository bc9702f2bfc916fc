//! What the clients of one run do: acquire in every mode and with every option, hold, lose,
//! release, drop, forget, and give up at any await.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Lock, Locks, LostReason, Moment};
use tokio::time::{sleep, timeout};

use crate::world::dice::Dice;
use crate::world::faulty::caught;
use crate::world::gate::{AtMostPolls, Gate};
use crate::world::history::{Granted, History};

/// What all clients of one run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) locks: usize,
    /// Of each lock, how many permits it has at most: each claim sets the limit anew.
    pub(crate) limit: u32,
    pub(crate) rounds: u64,
    pub(crate) ttl: Duration,
    /// In per cent: how often an acquisition or release is dropped half-way.
    pub(crate) impatience: u64,
    /// In per cent: how often a lock is held for longer than its TTL.
    pub(crate) endurance: u64,
    /// The longest of the usual holds.
    pub(crate) stamina_ms: u64,
    /// In per cent: how often a lock is exclusive.
    pub(crate) exclusive: u64,
    /// How many turns an exclusive lock has in its process for one grant.
    pub(crate) handoffs: u32,
    /// The client's own first poll is its arrival, as there is nothing between it and the store.
    pub(crate) at_once: bool,
}

pub(crate) struct Client {
    pub(crate) process: u32,
    pub(crate) locks: Locks,
    pub(crate) history: Arc<History>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) dice: Dice,
    pub(crate) habits: Habits,
}

/// What was asked for, for the checks of the answer.
struct Asked {
    lock: usize,
    called: Moment,
    hold_at_most: bool,
    fixed_lease: bool,
    /// Of a lock for readers and writers.
    writer: bool,
    /// The store knows of the first turn only: a later one comes before those who wait there.
    handed_on: bool,
}

enum Patience {
    Try,
    Limited,
    Unlimited,
}

impl Client {
    pub(crate) async fn run(mut self) {
        for _ in 0..self.habits.rounds {
            let pause = self.dice.pick(&[0, 0, 5, 30, 200]);
            let pause = self.dice.millis(0..=pause);
            if !pause.is_zero() {
                sleep(pause).await;
            }
            if self.dice.percent(10) {
                // Whatever it answers, it comes to an end.
                let _ = caught(self.locks.inspect("l0")).await;
            }
            if !self.round().await {
                return;
            }
        }
    }

    /// `false` when this client's store is closed.
    async fn round(&mut self) -> bool {
        let (lock, asked, patience) = self.choose();
        let name = asked.lock;
        self.history.note(self.process, "acquire", name as u64, 0);
        let arrives = self.habits.at_once && !asked.handed_on;
        let arrival = arrives.then(|| self.history.arrives());
        let acquire = async {
            match patience {
                Patience::Try => lock.try_acquire().await,
                Patience::Limited | Patience::Unlimited => lock.acquire().await.map(Some),
            }
        };
        let result = match self.dice.percent(self.habits.impatience) {
            false => caught(acquire).await,
            true if self.dice.percent(60) => {
                let polls = self.dice.between(1..=8);
                caught(AtMostPolls::new(acquire, polls)).await.flatten()
            }
            true => {
                let patience = self.dice.millis(0..=300);
                caught(timeout(patience, acquire)).await.and_then(Result::ok)
            }
        };
        let Some(result) = result else {
            self.history.count(|tally| tally.cancelled += 1);
            self.history.freed(name);
            self.history.note(self.process, "cancelled", name as u64, 0);
            return true;
        };
        match result {
            Ok(Some(guard)) => self.hold(guard, &asked, arrival).await,
            Ok(None) => {
                self.history.freed(name);
                self.history.note(self.process, "busy", name as u64, 0);
            }
            Err(error) => return self.refused(&error, name),
        }
        true
    }

    fn choose(&mut self) -> (Lock, Asked, Patience) {
        let Habits { limit, ttl, endurance, .. } = self.habits;
        let dice = &mut self.dice;
        let name = usize::try_from(dice.below(self.habits.locks as u64)).unwrap_or(0);
        let text = ["l0", "l1", "l2"][name];
        let mut writer = false;
        let exclusive = dice.percent(self.habits.exclusive);
        let mut lock = match exclusive {
            true => self.locks.lock(text),
            false => match dice.below(3) {
                0 => self.locks.rw_lock(text).read(),
                1 => {
                    writer = true;
                    self.locks.rw_lock(text).write()
                }
                _ => {
                    let limit = dice.between(1..=u64::from(limit));
                    let [n, limit] =
                        [dice.between(1..=limit), limit].map(|it| u32::try_from(it).unwrap_or(1));
                    self.locks.semaphore(text, limit).permits(n)
                }
            },
        };
        let patience = match dice.below(10) {
            0..3 => Patience::Try,
            3..6 => {
                lock = lock.wait_at_most(dice.millis(1..=2_000));
                Patience::Limited
            }
            _ => Patience::Unlimited,
        };
        let hold_at_most = dice.percent(20);
        if hold_at_most {
            lock = lock.hold_at_most(dice.millis(1..=400));
        }
        let fixed_lease = dice.percent(endurance / 4);
        if fixed_lease {
            lock = lock.fixed_lease(ttl);
        }
        let handed_on = exclusive && !fixed_lease && self.habits.handoffs > 1;
        if handed_on {
            lock = lock.local_handoffs(self.habits.handoffs);
        }
        let called = self.history.now();
        writer &= !fixed_lease;
        (lock, Asked { lock: name, called, hold_at_most, fixed_lease, writer, handed_on }, patience)
    }

    /// Which errors are allowed depends on the conditions.
    fn refused(&self, error: &Error, lock: usize) -> bool {
        let kind = error.kind();
        self.history.freed(lock);
        self.history.note(self.process, kind.message(), lock as u64, 0);
        let normal = matches!(kind, ErrorKind::Busy | ErrorKind::WaitTimedOut | ErrorKind::Closed);
        // Of a task that several clients wait for.
        let panicked = kind == ErrorKind::Refused && error.to_string().ends_with("has panicked");
        let by_a_fault = matches!(kind, ErrorKind::Unreachable | ErrorKind::Lost) || panicked;
        // A limit, on the hold or on the wait, may be over before the first answer is there.
        let too_short = kind == ErrorKind::Unreachable && error.to_string().contains("wait limit");
        let without_a_fault = kind == ErrorKind::Lost || too_short;
        if !(normal || by_a_fault && !self.history.is_calm() || without_a_fault) {
            self.history.fail(format!("process {}: {error}", self.process));
        }
        if kind == ErrorKind::Unreachable {
            self.history.count(|tally| tally.unreachable += 1);
        }
        kind != ErrorKind::Closed
    }

    async fn hold(&mut self, guard: Guard, asked: &Asked, arrival: Option<u64>) {
        let (guard, lock) = (Arc::new(guard), asked.lock);
        self.history.granted(&Granted {
            process: self.process,
            lock,
            called: asked.called,
            gate: &self.gate,
            guard: &guard,
            handed_on: asked.handed_on,
            arrival,
        });
        let long = self.dice.percent(self.habits.endurance);
        let work = match long {
            true => self.habits.ttl.mul_f64(0.5 + self.dice.below(150) as f64 / 100.0),
            false => {
                let most = self.dice.pick(&[0, 5, 60, 60, self.habits.stamina_ms]);
                self.dice.millis(0..=most)
            }
        };
        if !work.is_zero() && self.dice.percent(20) {
            match guard.run(sleep(work)).await {
                Ok(()) if guard.is_held() => {}
                Ok(()) => self.history.fail("work ended after its lock".to_owned()),
                Err(_) => self.lost(&guard, asked, guard.lost().await),
            }
        } else if !work.is_zero() {
            tokio::select! {
                biased;
                reason = guard.lost() => self.lost(&guard, asked, reason),
                () = sleep(work) => {}
            }
        }
        self.check_held(&guard).await;
        if asked.writer && self.locks.profile().downgrade && self.dice.percent(40) {
            self.downgrade(&guard, lock).await;
            self.check_held(&guard).await;
        }
        self.release(guard, asked).await;
    }

    /// A writer becomes a reader, and stays one for a while, whatever becomes of the answer.
    async fn downgrade(&mut self, guard: &Guard, lock: usize) {
        let token = guard.fencing_token();
        self.history.freed(lock);
        self.history.note(self.process, "downgrades", lock as u64, token.get());
        let answer = match self.dice.percent(self.habits.impatience) {
            true => {
                let polls = self.dice.between(1..=3);
                caught(AtMostPolls::new(guard.downgrade(), polls)).await.flatten()
            }
            false => caught(guard.downgrade()).await,
        };
        if let Some(Err(error)) = answer
            && self.history.is_calm()
            && guard.is_held()
        {
            self.history.fail(format!("{token} of lock {lock} is still a writer's: {error}"));
        }
        let most = self.dice.pick(&[0, 60]);
        sleep(self.dice.millis(0..=most)).await;
    }

    fn lost(&self, guard: &Guard, asked: &Asked, reason: LostReason) {
        self.history.count(|tally| tally.lost += 1);
        let token = guard.fencing_token();
        if guard.is_held() {
            self.history.fail(format!("{token} is lost and held"));
        }
        let expected = match reason {
            LostReason::HoldLimit => asked.hold_at_most,
            LostReason::TakenAway => {
                !self.history.is_calm() || self.history.is_excused(asked.lock, token)
            }
            LostReason::Expired => !self.history.is_calm() || asked.fixed_lease,
            _ => true,
        };
        if !expected {
            self.history.fail(format!("{token} of lock {} was lost: {reason}", asked.lock));
        }
        self.history.ended(self.process, reason.as_str(), asked.lock, token);
    }

    /// `is_held` is exact, and a hold that has ended is reported as lost.
    async fn check_held(&self, guard: &Guard) {
        let (until, now) = (guard.valid_until(), self.history.now());
        let held = guard.is_held();
        let token = guard.fencing_token();
        if held != (now < until) {
            self.history.fail(format!("{token} held: {held} at {now:?}, valid until {until:?}"));
        }
        if !held && timeout(Duration::from_millis(2), guard.lost()).await.is_err() {
            self.history.fail(format!("{token} is not held, and no loss is reported"));
        }
        if guard.is_held() && !held {
            self.history.fail(format!("{token} is held again"));
        }
    }

    async fn release(&mut self, guard: Arc<Guard>, asked: &Asked) {
        let (lock, token) = (asked.lock, guard.fencing_token());
        let held = guard.is_held();
        let end = self.dice.below(10);
        if end == 7 && (asked.hold_at_most || asked.fixed_lease && !self.history.is_calm()) {
            // Its limit ends it, in the store too.
            self.history.note(self.process, "forgotten", lock as u64, token.get());
            return std::mem::forget(guard);
        }
        self.history.ended(self.process, "ends", lock, token);
        let Some(guard) = Arc::into_inner(guard) else {
            unreachable!("no other task keeps a guard")
        };
        match end {
            0..5 => {
                let Some(released) = caught(guard.release()).await else { return };
                let must = self.history.is_calm() && held;
                let excused = self.history.is_excused(lock, token);
                match released {
                    Ok(()) if !held => self.history.fail(format!("{token} released after its end")),
                    Err(error) if must && !excused && error.kind() != ErrorKind::Closed => {
                        self.history.fail(format!("{token} of lock {lock}: {error}"));
                    }
                    _ => {}
                }
                self.history.note(self.process, "released", lock as u64, token.get());
            }
            5..7 => {
                let polls = self.dice.between(1..=3);
                let released = caught(AtMostPolls::new(guard.release(), polls)).await.flatten();
                let word = released.map_or("release dropped", |_| "released");
                self.history.note(self.process, word, lock as u64, token.get());
            }
            _ => {
                drop(guard);
                self.history.note(self.process, "dropped", lock as u64, token.get());
            }
        }
    }
}
