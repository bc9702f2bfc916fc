//! Metric keys are built once per store and mode, but handles are looked up at each use, since a
//! recorder may be installed after the store was connected. For the same reason a recorder is given
//! the descriptions at its first use. The lock's name is a label only with
//! [`Settings::metrics_by_lock`](crate::Settings::metrics_by_lock).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, Recorder};

use super::descriptions::{self, ACQUISITIONS, HANDOFFS, HELD, HOLD, LOST, RENEWAL, WAIT, WAITING};
use super::{GrantedBy, Outcome};
use crate::store::claim::AcquireRequest;
use crate::telemetry::program;
use crate::types::error::LostReason;
use crate::types::mode::Mode;

static METADATA: Metadata<'static> = Metadata::new("fencelock", Level::INFO, Some(module_path!()));

/// The metric keys of one client.
#[derive(Debug)]
pub(crate) struct Metrics {
    store: Label,
    by_lock: bool,
    modes: [ModeKeys; 3],
    renewal: Key,
    /// The address of the recorder that has the descriptions; 0 for none. It is only compared.
    described: AtomicUsize,
}

#[derive(Debug)]
struct ModeKeys {
    wait: Key,
    hold: Key,
    held: Key,
    waiting: Key,
    handoffs: Key,
    outcomes: [Key; OUTCOMES.len()],
    losses: [Key; LOSSES.len()],
}

/// The outcomes as labels, in the order of [`Outcome`].
const OUTCOMES: [&str; 5] = ["granted", "busy", "timed_out", "failed", "cancelled"];

const LOSSES: [LostReason; 4] =
    [LostReason::Expired, LostReason::TakenAway, LostReason::HoldLimit, LostReason::Closed];

/// The place of `reason` in [`LOSSES`].
fn place(reason: LostReason) -> usize {
    match reason {
        LostReason::Expired => 0,
        LostReason::TakenAway => 1,
        LostReason::HoldLimit => 2,
        LostReason::Closed => 3,
    }
}

impl Metrics {
    pub(crate) fn new(store: &'static str, by_lock: bool) -> Metrics {
        let store = Label::new("store", store);
        let modes = ["exclusive", "shared", "permits"]
            .map(|mode| ModeKeys::new(&[store.clone(), Label::new("mode", mode)]));
        let renewal = Key::from_parts(RENEWAL, vec![store.clone()]);
        Metrics { store, by_lock, modes, renewal, described: AtomicUsize::new(0) }
    }

    pub(crate) fn granted(&self, request: &AcquireRequest, waited: Duration, by: GrantedBy) {
        self.record(request, |keys, recorder| {
            let outcome = &keys.outcomes[Outcome::Granted as usize];
            recorder.register_counter(outcome, &METADATA).increment(1);
            if by == GrantedBy::HandOff {
                recorder.register_counter(&keys.handoffs, &METADATA).increment(1);
            }
            recorder.register_histogram(&keys.wait, &METADATA).record(waited);
            recorder.register_gauge(&keys.held, &METADATA).increment(1.0);
        });
    }

    pub(crate) fn finished(&self, request: &AcquireRequest, outcome: Outcome) {
        self.record(request, |keys, recorder| {
            let outcome = &keys.outcomes[outcome as usize];
            recorder.register_counter(outcome, &METADATA).increment(1);
        });
    }

    pub(crate) fn waits(&self, request: &AcquireRequest, change: f64) {
        self.record(request, |keys, recorder| {
            recorder.register_gauge(&keys.waiting, &METADATA).increment(change);
        });
    }

    pub(crate) fn ended(&self, request: &AcquireRequest, held: Duration, lost: Option<LostReason>) {
        self.record(request, |keys, recorder| {
            recorder.register_histogram(&keys.hold, &METADATA).record(held);
            recorder.register_gauge(&keys.held, &METADATA).decrement(1.0);
        });
        if let Some(reason) = lost {
            self.lost(request, reason);
        }
    }

    pub(crate) fn lost(&self, request: &AcquireRequest, reason: LostReason) {
        self.record(request, |keys, recorder| {
            let loss = &keys.losses[place(reason)];
            recorder.register_counter(loss, &METADATA).increment(1);
        });
    }

    pub(crate) fn renewed(&self, took: Duration) {
        self.with_recorder(|recorder| {
            recorder.register_histogram(&self.renewal, &METADATA).record(took);
        });
    }

    /// Calls `record` with the keys for an acquisition: the shared ones, or its own where the name is a
    /// label.
    fn record(&self, request: &AcquireRequest, record: impl FnOnce(&ModeKeys, &dyn Recorder)) {
        let mode = request.mode;
        if self.by_lock {
            let lock = Label::new("lock", request.name.as_str().to_owned());
            let keys =
                ModeKeys::new(&[self.store.clone(), Label::new("mode", mode.as_str()), lock]);
            return self.with_recorder(|recorder| record(&keys, recorder));
        }
        let at = match mode {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permits(_) => 2,
        };
        self.with_recorder(|recorder| record(&self.modes[at], recorder));
    }

    /// Calls `record` with the recorder, which has the descriptions by then. To describe a metric
    /// twice, when two threads find a new recorder at once, does no harm.
    fn with_recorder(&self, record: impl FnOnce(&dyn Recorder)) {
        let with_descriptions = |recorder: &dyn Recorder| {
            let address = std::ptr::from_ref(recorder).addr();
            if self.described.load(Ordering::Relaxed) != address {
                descriptions::describe(recorder);
                self.described.store(address, Ordering::Relaxed);
            }
            record(recorder);
        };
        program::call(|| metrics::with_recorder(with_descriptions));
    }
}

impl ModeKeys {
    fn new(labels: &[Label]) -> ModeKeys {
        let key = |name: &'static str| Key::from_parts(name, labels.to_vec());
        let with = |name: &'static str, label: &'static str, value: &'static str| {
            let labels = [labels, &[Label::new(label, value)]].concat();
            Key::from_parts(name, labels)
        };
        ModeKeys {
            wait: key(WAIT),
            hold: key(HOLD),
            held: key(HELD),
            waiting: key(WAITING),
            handoffs: key(HANDOFFS),
            outcomes: OUTCOMES.map(|outcome| with(ACQUISITIONS, "outcome", outcome)),
            losses: LOSSES.map(|reason| with(LOST, "reason", reason.as_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_and_each_reason_has_its_own_label() {
        for (at, reason) in LOSSES.into_iter().enumerate() {
            assert_eq!(place(reason), at);
        }
        let outcomes = [
            (Outcome::Granted, "granted"),
            (Outcome::Busy, "busy"),
            (Outcome::TimedOut, "timed_out"),
            (Outcome::Failed, "failed"),
            (Outcome::Cancelled, "cancelled"),
        ];
        assert!(outcomes.iter().all(|(outcome, label)| OUTCOMES[*outcome as usize] == *label));
    }
}
