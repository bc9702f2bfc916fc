//! What can be seen from outside: `tracing` spans and `metrics`, all in one place.
//!
//! Metric keys are built once per store and mode, but handles are asked for at each use, since a
//! recorder may be installed after the store was connected. The lock's name is a label only where
//! [`Settings::metrics_by_lock`](crate::Settings::metrics_by_lock) asked for it.
//!
//! | metric | kind | labels beside `store`, `mode` |
//! |---|---|---|
//! | `fencelock_wait_seconds` | histogram, acquire called to granted | |
//! | `fencelock_hold_seconds` | histogram, granted to released or lost | |
//! | `fencelock_renewal_seconds` | histogram, one batch; no `mode` | |
//! | `fencelock_held` | gauge | |
//! | `fencelock_waiting` | gauge | |
//! | `fencelock_acquisitions_total` | counter | `outcome`: granted, busy, timed_out, failed, cancelled |
//! | `fencelock_lost_total` | counter | `reason`: expired, taken_away, hold_limit, closed |

use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, with_recorder};
use tracing::Span;

use crate::claim::Claim;
use crate::error::{Error, ErrorKind, LostReason};
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::FencingToken;

static METADATA: Metadata<'static> = Metadata::new("fencelock", Level::INFO, Some(module_path!()));

/// The metric keys of one connected store.
#[derive(Debug)]
pub(crate) struct Meters {
    store: &'static str,
    by_lock: bool,
    modes: [ModeKeys; 3],
    renewal: Key,
}

#[derive(Debug)]
struct ModeKeys {
    wait: Key,
    hold: Key,
    held: Key,
    waiting: Key,
    outcomes: [Key; OUTCOMES.len()],
    losses: [Key; LOSSES.len()],
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Busy,
    TimedOut,
    Failed,
    Cancelled,
}

const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::Granted, "granted"),
    (Outcome::Busy, "busy"),
    (Outcome::TimedOut, "timed_out"),
    (Outcome::Failed, "failed"),
    (Outcome::Cancelled, "cancelled"),
];

const LOSSES: [LostReason; 4] =
    [LostReason::Expired, LostReason::TakenAway, LostReason::HoldLimit, LostReason::Closed];

impl Outcome {
    pub(crate) fn of(error: &Error) -> Outcome {
        match error.kind() {
            ErrorKind::Busy => Outcome::Busy,
            ErrorKind::WaitTimedOut => Outcome::TimedOut,
            _ => Outcome::Failed,
        }
    }
}

impl Meters {
    pub(crate) fn new(store: &'static str, by_lock: bool) -> Meters {
        let modes = ["exclusive", "shared", "permits"].map(|mode| ModeKeys::new(store, mode));
        let renewal =
            Key::from_parts("fencelock_renewal_seconds", vec![Label::new("store", store)]);
        Meters { store, by_lock, modes, renewal }
    }

    pub(crate) fn granted(&self, claim: &Claim, waited: Duration) {
        self.finished(claim, Outcome::Granted);
        self.with(claim, |keys| {
            with_recorder(|recorder| {
                recorder.register_histogram(&keys.wait, &METADATA).record(waited);
                recorder.register_gauge(&keys.held, &METADATA).increment(1.0);
            });
        });
    }

    pub(crate) fn finished(&self, claim: &Claim, outcome: Outcome) {
        let at = OUTCOMES.iter().position(|(known, _)| *known == outcome).unwrap_or(0);
        self.with(claim, |keys| {
            with_recorder(|recorder| {
                recorder.register_counter(&keys.outcomes[at], &METADATA).increment(1);
            });
        });
    }

    pub(crate) fn waits(&self, claim: &Claim, change: f64) {
        self.with(claim, |keys| {
            with_recorder(|recorder| {
                recorder.register_gauge(&keys.waiting, &METADATA).increment(change);
            });
        });
    }

    pub(crate) fn ended(&self, claim: &Claim, held: Duration, lost: Option<LostReason>) {
        self.with(claim, |keys| {
            with_recorder(|recorder| {
                recorder.register_histogram(&keys.hold, &METADATA).record(held);
                recorder.register_gauge(&keys.held, &METADATA).decrement(1.0);
                let at = lost.and_then(|lost| LOSSES.iter().position(|known| *known == lost));
                if let Some(at) = at {
                    recorder.register_counter(&keys.losses[at], &METADATA).increment(1);
                }
            });
        });
    }

    pub(crate) fn renewed(&self, took: Duration) {
        with_recorder(|recorder| {
            recorder.register_histogram(&self.renewal, &METADATA).record(took);
        });
    }

    /// The keys for a claim: shared ones, or, where the name is a label, made for it.
    fn with(&self, claim: &Claim, record: impl FnOnce(&ModeKeys)) {
        if self.by_lock {
            let word = claim.mode().as_str();
            return record(&ModeKeys::of_lock(self.store, word, claim.name()));
        }
        let at = match claim.mode() {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permits(_) => 2,
        };
        record(&self.modes[at]);
    }
}

impl ModeKeys {
    fn new(store: &'static str, mode: &'static str) -> ModeKeys {
        ModeKeys::with_labels(&[Label::new("store", store), Label::new("mode", mode)])
    }

    fn of_lock(store: &'static str, mode: &'static str, lock: &LockName) -> ModeKeys {
        let lock = Label::new("lock", lock.as_str().to_owned());
        ModeKeys::with_labels(&[Label::new("store", store), Label::new("mode", mode), lock])
    }

    fn with_labels(labels: &[Label]) -> ModeKeys {
        let key = |name: &'static str| Key::from_parts(name, labels.to_vec());
        let with = |name: &'static str, label: &'static str, value: &'static str| {
            let labels = [labels, &[Label::new(label, value)]].concat();
            Key::from_parts(name, labels)
        };
        ModeKeys {
            wait: key("fencelock_wait_seconds"),
            hold: key("fencelock_hold_seconds"),
            held: key("fencelock_held"),
            waiting: key("fencelock_waiting"),
            outcomes: OUTCOMES
                .map(|(_, word)| with("fencelock_acquisitions_total", "outcome", word)),
            losses: LOSSES.map(|reason| with("fencelock_lost_total", "reason", reason.as_str())),
        }
    }
}

/// From the call to the answer.
pub(crate) fn acquire_span(lock: &LockName, store: &'static str, mode: Mode) -> Span {
    tracing::debug_span!(
        target: "fencelock", "acquire", %lock, store, %mode, token = tracing::field::Empty)
}

/// From the grant to its end, beside the acquisition: `within` is the caller's span.
/// [`Guard::run`](crate::Guard::run) works inside it.
pub(crate) fn hold_span(
    within: &Span,
    claim: &Claim,
    store: &'static str,
    token: FencingToken,
) -> Span {
    let (lock, mode, token) = (claim.name(), claim.mode(), token.get());
    tracing::debug_span!(target: "fencelock", parent: within, "hold", %lock, store, %mode, token)
}

/// From the call of release to its answer.
pub(crate) fn release_span(claim: &Claim, store: &'static str, token: FencingToken) -> Span {
    let (lock, token) = (claim.name(), token.get());
    tracing::debug_span!(target: "fencelock", "release", %lock, store, token)
}

/// A loss is worth a line in every log.
pub(crate) fn lost(claim: &Claim, token: FencingToken, reason: LostReason) {
    let (lock, token) = (claim.name(), token.get());
    tracing::warn!(target: "fencelock", %lock, token, reason = reason.as_str(), "lock lost");
}

/// So is a lock that may stay in the store.
pub(crate) fn left_behind(claim: &Claim, why: &Error) {
    tracing::warn!(target: "fencelock", lock = %claim.name(), %why, "gave up releasing");
}
