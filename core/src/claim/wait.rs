//! A claim that waits in the store's queue: the store's answers, what the end of a limit means by them, and whether
//! the caller's future is at work or parked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::cleanup::CleanupGuard;
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind};

/// An answer is expected for so long at least, and for twice the time of the last one, but not for longer than the other:
/// one answer of a store that stood still says nothing of the next. A limit ends later by so much at most.
pub(crate) const PATIENCE: [Duration; 2] = [Duration::from_millis(400), Duration::from_secs(2)];

/// How long after a limit an answer is waited for, if the last one `took` so long.
pub(crate) fn patience(took: Duration) -> Duration {
    (2 * took).clamp(PATIENCE[0], PATIENCE[1])
}

pub(crate) struct Wait {
    pub(crate) cleanup: Arc<CleanupGuard>,
    answers: Mutex<Answers>,
    /// The store has answered.
    pub(crate) answer: Notify,
    caller: AtomicU8,
    /// From when on it is long; never, if it has a limit.
    long_at: Moment,
}

/// What the store has answered to the attempts and checks of a wait.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    /// When the first request was sent that the store has not answered since: none, if it owes no
    /// answer. Waiting for a wake-up is not silence, however long it takes.
    asked: Option<Moment>,
    /// When the first of them was sent for which the caller waits: an attempt, or the question at the end of its limit. A
    /// look goes behind all others, and is late where there are many.
    awaited: Option<Moment>,
    /// When it answered last that the lock is busy, and how long after the request.
    busy: Option<(Moment, Duration)>,
    /// What it has answered since.
    failed: Option<Error>,
}

/// What the end of a limit means: a store that is silent must not look like a busy lock, nor a slow answer like silence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LimitEnd {
    NotGranted,
    /// Not known before then: the answer to a request that was sent may be on its way.
    Await(Moment),
    /// Not known before the store was asked.
    Ask,
    Unreachable,
}

/// The caller's future is at work, perhaps with an attempt in flight.
const AT_WORK: u8 = 0;
/// It waits for a wake-up: no attempt is in flight.
const PARKED: u8 = 1;
/// It was dismissed while it was parked.
const DISMISSED: u8 = 2;

impl Answers {
    /// A turn of this process, which ended then, shows that the lock is busy.
    pub(crate) fn or_turn(mut self, turn: Option<(Moment, Duration)>) -> Answers {
        self.busy = self.busy.or(turn);
        self
    }

    /// By an error of the store's: that something of this machine is in the way is none.
    fn has_failed(&self) -> bool {
        self.failed.as_ref().is_some_and(|error| error.kind() != ErrorKind::Busy)
    }

    /// What the end of a limit means `now`. `is_ours`: an unanswered request waits for something of this process, or of
    /// this machine. `others`: when another wait of this client was answered last; a store that answers since then is slow,
    /// not silent.
    pub(crate) fn at_limit(&self, now: Moment, is_ours: bool, others: Moment) -> LimitEnd {
        let patience = match self.awaited {
            Some(asked) if others > asked => PATIENCE[1],
            _ => patience(self.busy.map_or(Duration::ZERO, |(_, took)| took)),
        };
        match (self.busy, self.awaited) {
            _ if self.has_failed() => LimitEnd::Unreachable,
            (Some((at, _)), _) if now < at + patience => LimitEnd::NotGranted,
            (_, Some(asked)) if now < asked + patience => LimitEnd::Await(asked + patience),
            (_, Some(_)) if is_ours => LimitEnd::NotGranted,
            (_, Some(_)) => LimitEnd::Unreachable,
            (_, None) => LimitEnd::Ask,
        }
    }
}

impl Wait {
    pub(crate) fn new(cleanup: Arc<CleanupGuard>, long_at: Moment) -> Wait {
        let (answers, answer) = (Mutex::default(), Notify::new());
        Wait { cleanup, answers, answer, caller: AtomicU8::new(AT_WORK), long_at }
    }

    /// Whether it has lasted so long without a limit that its client may wait for itself.
    pub(crate) fn is_long(&self, now: Moment) -> bool {
        now >= self.long_at
    }

    pub(crate) fn asked(&self, now: Moment) {
        self.answers.lock().asked.get_or_insert(now);
    }

    /// Its caller waits for the answer.
    pub(crate) fn asked_for_caller(&self, now: Moment) {
        let mut answers = self.answers.lock();
        answers.asked.get_or_insert(now);
        answers.awaited.get_or_insert(now);
    }

    /// The claim has its place in the queue.
    pub(crate) fn answered(&self, now: Moment) {
        let mut answers = self.answers.lock();
        answers.awaited = None;
        let took = answers.asked.take().map_or(Duration::ZERO, |asked| now.duration_since(asked));
        (answers.busy, answers.failed) = (Some((now, took)), None);
        drop(answers);
        self.answer.notify_waiters();
    }

    /// It may have the lock: a limit that ends now waits for the attempt that follows.
    pub(crate) fn may_be_granted(&self, now: Moment) {
        let mut answers = self.answers.lock();
        (answers.asked, answers.awaited, answers.failed) = (Some(now), Some(now), None);
    }

    /// The answer was an error: the silence continues.
    pub(crate) fn failed(&self, error: Error) {
        self.answers.lock().failed = Some(error);
        self.answer.notify_waiters();
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers.lock().clone()
    }

    /// Why there was no useful answer, as far as is known.
    pub(crate) fn cause(&self) -> Option<Error> {
        let failed = self.answers.lock().failed.clone();
        failed.or_else(|| self.cleanup.acquisition.unanswered())
    }

    /// Until when the store may stay silent.
    pub(crate) fn silence_ends(&self) -> Moment {
        let asked = self.answers.lock().asked;
        asked.map_or(Moment::NEVER, |at| at + self.cleanup.claim().request.unreachable_after)
    }

    pub(crate) fn park(&self) {
        self.caller.store(PARKED, Ordering::Release);
    }

    /// Back to work. `false` when the wait was dismissed meanwhile: its clean-up has begun already.
    pub(crate) fn unpark(&self) -> bool {
        self.caller.swap(AT_WORK, Ordering::AcqRel) == PARKED
    }

    /// Ends the wait: releases a parked claim, whose future may not be polled for long, and wakes one
    /// that is at work, so that it finds out.
    pub(crate) fn dismiss(&self) {
        let parked =
            self.caller.compare_exchange(PARKED, DISMISSED, Ordering::AcqRel, Ordering::Acquire);
        match parked {
            Ok(_) => self.cleanup.leave(),
            Err(_) => {
                self.cleanup.claim().wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of the last answer, a request under way and what keeps it; times in ms.
    #[test]
    fn the_end_of_a_limit_means_what_the_store_has_answered() {
        let (ms, at) = (Duration::from_millis, |ms: u64| Moment::from_nanos(ms * 1_000_000));
        let await_until = |ms| LimitEnd::Await(at(ms));
        let now = 10_000;
        for (busy, asked, means, if_ours) in [
            // Nothing was asked yet: the limit was used up before.
            (None, None, LimitEnd::Ask, LimitEnd::Ask),
            (None, Some(now), await_until(now + 400), await_until(now + 400)),
            (None, Some(now - 399), await_until(now + 1), await_until(now + 1)),
            // Silent all the time.
            (None, Some(now - 400), LimitEnd::Unreachable, LimitEnd::NotGranted),
            // Answering.
            (Some((now - 399, 0)), None, LimitEnd::NotGranted, LimitEnd::NotGranted),
            (Some((now - 399, 0)), Some(now - 1), LimitEnd::NotGranted, LimitEnd::NotGranted),
            // Answered, and perhaps silent since.
            (Some((now - 400, 0)), None, LimitEnd::Ask, LimitEnd::Ask),
            (Some((now - 400, 0)), Some(now - 300), await_until(now + 100), await_until(now + 100)),
            (Some((now - 900, 0)), Some(now - 400), LimitEnd::Unreachable, LimitEnd::NotGranted),
            // Its answers take half a second, and minutes, of which two seconds are believed.
            (Some((now - 900, 500)), Some(now - 800), LimitEnd::NotGranted, LimitEnd::NotGranted),
            (
                Some((now - 1_000, 500)),
                Some(now - 800),
                await_until(now + 200),
                await_until(now + 200),
            ),
            (
                Some((now - 3_000, 60_000)),
                Some(now - 2_000),
                LimitEnd::Unreachable,
                LimitEnd::NotGranted,
            ),
        ] {
            let busy = busy.map(|(when, took)| (at(when), ms(took)));
            let awaited = asked.map(at);
            let answers = Answers { asked: awaited, awaited, busy, failed: None };
            assert_eq!(answers.at_limit(at(now), false, at(0)), means, "{busy:?} {asked:?}");
            assert_eq!(answers.at_limit(at(now), true, at(0)), if_ours, "{busy:?} {asked:?}, ours");
            let turn = Answers { busy: None, ..answers.clone() }.or_turn(busy);
            assert_eq!(
                turn.at_limit(at(now), false, at(0)),
                means,
                "{busy:?} {asked:?}, by a turn"
            );
            let failed = |kind| Answers { failed: Some(Error::new(kind, "")), ..answers.clone() };
            let unreachable = failed(ErrorKind::Unreachable).at_limit(at(now), true, at(0));
            assert_eq!(unreachable, LimitEnd::Unreachable);
            assert_eq!(
                failed(ErrorKind::Busy).at_limit(at(now), true, at(0)),
                if_ours,
                "a latch of ours"
            );
        }
    }
}
