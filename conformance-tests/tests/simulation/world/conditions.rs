//! The conditions of one run, drawn from its seed: from calm, without any fault, to faulty, with many
//! kinds of faults.

use std::time::Duration;

use crate::world::dice::Dice;

/// Chances in per cent. By default nothing goes wrong by chance: for a test that makes its own trouble.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    /// Nothing is lost, late, cut, paused or crashed: the checks are tight.
    pub(crate) calm: bool,
    pub(crate) request_lost: u64,
    pub(crate) reply_lost: u64,
    /// The connection is reset while a request is under way, whether or not it is executed.
    pub(crate) reset: u64,
    /// Requests and replies that are late by up to `late_by`.
    pub(crate) late: u64,
    pub(crate) late_by: Duration,
    pub(crate) push_lost: u64,
    pub(crate) push_late: u64,
    /// A push is delivered twice, the second one late.
    pub(crate) push_twice: u64,
    /// One way, when nothing is wrong.
    pub(crate) delay_ms: u64,
    pub(crate) cuts: u64,
    pub(crate) pauses: u64,
    pub(crate) crashes: u64,
    /// A follower is cut off from its leader, but not from its client.
    pub(crate) stale: u64,
    /// An operator evicts a participant.
    pub(crate) evictions: u64,
    /// The server loses all its data.
    pub(crate) wipes: u64,
    /// How often the backend itself fails in a call.
    pub(crate) backend_faults: u64,
    /// How much faster the server's clock runs, in millionths.
    pub(crate) rate: i64,
}

impl Conditions {
    pub(crate) fn calm(dice: &mut Dice) -> Conditions {
        Conditions {
            calm: true,
            delay_ms: dice.pick(&[0, 0, 1, 3]),
            evictions: dice.pick(&[0, 0, 30]),
            rate: dice.pick(&[-9_000, 0, 9_000]),
            ..Conditions::default()
        }
    }

    /// Each kind of fault is absent from some runs, so that none hides another.
    pub(crate) fn faulty(dice: &mut Dice) -> Conditions {
        Conditions {
            calm: false,
            request_lost: dice.pick(&[0, 0, 3, 15]),
            reply_lost: dice.pick(&[0, 0, 3, 15]),
            reset: dice.pick(&[0, 0, 5]),
            late: dice.pick(&[0, 0, 5, 20]),
            late_by: Duration::from_millis(dice.pick(&[50, 400, 2_500])),
            push_lost: dice.pick(&[0, 0, 10, 50]),
            push_late: dice.pick(&[0, 10, 30]),
            push_twice: dice.pick(&[0, 10]),
            delay_ms: dice.pick(&[0, 1, 3, 20]),
            cuts: dice.pick(&[0, 0, 40, 90]),
            pauses: dice.pick(&[0, 0, 40, 90]),
            crashes: dice.pick(&[0, 0, 50]),
            stale: dice.pick(&[0, 0, 90]),
            evictions: dice.pick(&[0, 0, 30]),
            wipes: dice.pick(&[0, 0, 0, 0, 0, 60]),
            backend_faults: dice.pick(&[0, 0, 0, 2, 10]),
            rate: dice.pick(&[-9_000, 0, 9_000]),
        }
    }

    /// Whether there is no fault at all, not even an eviction.
    pub(crate) fn is_uneventful(&self) -> bool {
        self.calm && self.evictions == 0
    }

    /// What happens to one request.
    pub(crate) fn fate(&self, dice: &mut Dice) -> Fate {
        let way = |dice: &mut Dice| match dice.percent(self.late) {
            true => Duration::from_millis(dice.below(millis(self.late_by) + 1)),
            false => Duration::from_millis(dice.below(self.delay_ms + 1)),
        };
        Fate {
            there: way(dice),
            back: way(dice),
            arrives: !dice.percent(self.request_lost),
            answered: !dice.percent(self.reply_lost),
            reset: dice.percent(self.reset),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) there: Duration,
    pub(crate) back: Duration,
    pub(crate) arrives: bool,
    pub(crate) answered: bool,
    pub(crate) reset: bool,
}
