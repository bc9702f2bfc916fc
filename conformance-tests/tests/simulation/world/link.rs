//! The way between one process and its server. A request that was sent is on its own: it is
//! executed, late or never, whatever becomes of the future that sent it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::world::conditions::Conditions;
use crate::world::dice::Dice;
use crate::world::gate::Gate;

pub(crate) struct Link {
    pub(crate) process: u32,
    seed: u64,
    conditions: Conditions,
    pub(crate) gate: Arc<Gate>,
    /// Executed in the order sent, as on one connection of a store that keeps it.
    in_order: bool,
    sent: Mutex<Sent>,
    cut: Arc<AtomicBool>,
    /// The conditions has cleared: from now on nothing goes wrong.
    healed: AtomicBool,
    crashed: AtomicBool,
}

#[derive(Default)]
struct Sent {
    numbers: BTreeMap<u64, u64>,
    last_arrival: Option<Instant>,
    /// By how much the next request is late, on a test's order.
    held_back: Option<Duration>,
}

impl Link {
    pub(crate) fn new(process: u32, seed: u64, conditions: &Conditions, in_order: bool) -> Link {
        Link {
            process,
            seed,
            conditions: conditions.clone(),
            gate: Arc::default(),
            in_order: in_order || conditions.calm,
            sent: Mutex::default(),
            cut: Arc::default(),
            healed: AtomicBool::new(false),
            crashed: AtomicBool::new(false),
        }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }

    /// The next request will arrive this late.
    pub(crate) fn hold_back(&self, by: Duration) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).held_back = Some(by);
    }

    pub(crate) fn heal(&self) {
        self.cut(false);
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Nothing is sent or received any more.
    pub(crate) fn crash(&self) {
        self.crashed.store(true, Ordering::Relaxed);
        self.gate.shut();
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::Relaxed)
    }

    /// Whether the process could answer a ping now.
    pub(crate) fn is_up(&self) -> bool {
        !self.cut.load(Ordering::Relaxed) && !self.has_crashed() && !self.gate.is_shut()
    }

    fn is_broken(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || self.has_crashed()
    }

    /// Chances of the next message about `claim`: its own, whatever else is sent meanwhile.
    fn dice(&self, claim: u64) -> Dice {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let number = sent.numbers.entry(claim).or_default();
        *number += 1;
        Dice::of(&[self.seed, u64::from(self.process), claim, *number])
    }

    /// Sends one request about `claim` and waits at most `bound` for the answer: `None` when
    /// it is unknown whether it was executed.
    pub(crate) async fn call<R: Send + 'static>(
        &self,
        claim: u64,
        bound: Duration,
        execute: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        let answer = timeout(bound, self.post(claim, bound, execute)).await;
        self.gate.pass().await;
        answer.ok().and_then(Result::ok)
    }

    /// Sends one request; what it returns fails when the connection is reset.
    pub(crate) fn post<R: Send + 'static>(
        &self,
        claim: u64,
        bound: Duration,
        execute: impl FnOnce() -> R + Send + 'static,
    ) -> oneshot::Receiver<R> {
        let mut dice = self.dice(claim);
        let healed = self.healed.load(Ordering::Relaxed);
        let mut fate = self.conditions.fate(&mut dice);
        if healed {
            (fate.arrives, fate.answered, fate.reset) = (true, true, false);
            fate.there = fate.there.min(Duration::from_millis(self.conditions.delay_ms));
            fate.back = fate.back.min(Duration::from_millis(self.conditions.delay_ms));
        }
        if self.is_broken() {
            (fate.arrives, fate.answered) = (false, false);
        }
        let (answer, receiver) = oneshot::channel();
        let arrival = self.arrival(fate.there);
        if arrival.is_none() && fate.back.is_zero() && fate.arrives && fate.answered {
            if !fate.reset {
                let _ = answer.send(execute());
            } else {
                execute();
            }
            return receiver;
        }
        let cut = self.cut.clone();
        tokio::spawn(async move {
            if let Some(arrival) = arrival {
                sleep_until(arrival).await;
            }
            let result = fate.arrives.then(execute);
            if fate.reset {
                return;
            }
            sleep(fate.back).await;
            match result {
                Some(result) if fate.answered && !cut.load(Ordering::Relaxed) => {
                    let _ = answer.send(result);
                }
                // Silence, not an error: the sender waits for its own bound.
                _ => {
                    sleep(bound).await;
                    drop(answer);
                }
            }
        });
        receiver
    }

    /// When a request sent now arrives; `None` for at once.
    fn arrival(&self, there: Duration) -> Option<Instant> {
        let now = Instant::now();
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrival = now + sent.held_back.take().unwrap_or(there);
        if self.in_order {
            // A millisecond apart is as close as two timers stay in order.
            if let Some(last) = sent.last_arrival.filter(|last| *last > now) {
                arrival = arrival.max(last + Duration::from_millis(1));
            }
            sent.last_arrival = Some(arrival);
        }
        (arrival > now).then_some(arrival)
    }

    /// Carries a push from the server to `deliver`, twice or never when the conditions is bad.
    pub(crate) fn push(self: &Arc<Self>, claim: u64, deliver: impl Fn() + Send + Sync + 'static) {
        let mut dice = self.dice(claim);
        let bad = !self.healed.load(Ordering::Relaxed);
        if self.is_broken() || bad && dice.percent(self.conditions.push_lost) {
            return;
        }
        let mut after = Duration::from_millis(dice.below(self.conditions.delay_ms + 1));
        if bad && dice.percent(self.conditions.push_late) {
            after += dice.millis(1..=2_500);
        }
        let again =
            (bad && dice.percent(self.conditions.push_twice)).then(|| dice.millis(1..=3_000));
        let link = self.clone();
        tokio::spawn(async move {
            sleep(after).await;
            link.gate.pass().await;
            if !link.has_crashed() {
                deliver();
            }
            if let Some(again) = again {
                sleep(again).await;
                link.gate.pass().await;
                deliver();
            }
        });
    }

    /// Carries an event that is not lost: it waits for the connection.
    pub(crate) fn event(self: &Arc<Self>, claim: u64, deliver: impl FnOnce() + Send + 'static) {
        let mut dice = self.dice(claim);
        let bad = !self.healed.load(Ordering::Relaxed);
        let mut after = Duration::from_millis(dice.below(self.conditions.delay_ms + 1));
        if bad && dice.percent(self.conditions.push_late) {
            after += dice.millis(1..=500);
        }
        let link = self.clone();
        tokio::spawn(async move {
            sleep(after).await;
            while link.cut.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(50)).await;
            }
            link.gate.pass().await;
            deliver();
        });
    }
}
