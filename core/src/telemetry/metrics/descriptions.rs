//! The name, unit and description of each metric, for exporters that print them, such as the
//! `# HELP` of Prometheus. `fencelock/docs/metrics.md` shows them to users.

use metrics::{Recorder, Unit};

pub(super) const WAIT: &str = "fencelock_wait_seconds";
pub(super) const HOLD: &str = "fencelock_hold_seconds";
pub(super) const RENEWAL: &str = "fencelock_renewal_seconds";
pub(super) const HELD: &str = "fencelock_held";
pub(super) const WAITING: &str = "fencelock_waiting";
pub(super) const ACQUISITIONS: &str = "fencelock_acquisitions_total";
pub(super) const HANDOFFS: &str = "fencelock_handoffs_total";
pub(super) const LOST: &str = "fencelock_lost_total";

/// Gives `recorder` the description of every metric.
pub(super) fn describe(recorder: &dyn Recorder) {
    let seconds = Some(Unit::Seconds);
    recorder.describe_histogram(
        WAIT.into(),
        seconds,
        "Time from the call of acquire to the grant.".into(),
    );
    recorder.describe_histogram(
        HOLD.into(),
        seconds,
        "Time from the grant to the release or the loss.".into(),
    );
    recorder.describe_histogram(
        RENEWAL.into(),
        seconds,
        "Time that the store took for one batch of renewals.".into(),
    );
    let count = Some(Unit::Count);
    recorder.describe_gauge(HELD.into(), count, "Locks that this process holds.".into());
    recorder.describe_gauge(WAITING.into(), count, "Acquisitions that are waiting.".into());
    recorder.describe_counter(
        ACQUISITIONS.into(),
        count,
        "Acquisitions that have ended, by their outcome.".into(),
    );
    recorder.describe_counter(
        HANDOFFS.into(),
        count,
        "Acquisitions that were granted by a local hand-off, without the store.".into(),
    );
    recorder.describe_counter(LOST.into(), count, "Locks that were lost, by the reason.".into());
}
