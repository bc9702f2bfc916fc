//! Whether a node takes part, and why not: for people. Pure.

use std::fmt;
use std::time::Duration;

use crate::redlock::incarnation::{
    Deployment, IncarnationRecord, IncarnationVerdict, RecordState, verdict,
};

/// What part a node has in the set that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Membership {
    /// It votes.
    Open,
    /// Its delay is over: it votes as soon as a client has looked at it.
    Due,
    /// It will vote in so long: it is new, or has lost its data.
    Young(Duration),
    /// It has no record: it is new, or has lost its data. Its delay begins when a client meets it.
    Unmarked,
    /// Its record is of an earlier run, or its clock was set back. Its delay begins anew when a
    /// client meets it.
    Restarted,
    /// It was closed, in favour of this set or with it.
    Closed(Deployment),
    /// It belongs to this set.
    OfAnotherSet(Deployment),
    /// Another program wrote at the record's key.
    Foreign,
}

impl Membership {
    /// Of a node with the record `text`, in the set `ours`.
    pub(super) fn of(
        text: Option<&str>,
        run_id: &str,
        now_us: u64,
        ours: Deployment,
    ) -> Membership {
        match verdict(text, run_id, now_us, ours) {
            IncarnationVerdict::Open(_) => Membership::Open,
            IncarnationVerdict::Write(IncarnationRecord { state: RecordState::Open, .. }) => {
                Membership::Due
            }
            IncarnationVerdict::Write(_) if text.is_none() => Membership::Unmarked,
            IncarnationVerdict::Write(_) => Membership::Restarted,
            IncarnationVerdict::Quarantined(rest) => Membership::Quarantined(rest),
            IncarnationVerdict::OfAnotherSet(IncarnationRecord {
                state: RecordState::Closed,
                deployment,
                ..
            }) => Membership::Closed(deployment),
            IncarnationVerdict::OfAnotherSet(record) => Membership::OfAnotherSet(record.deployment),
            IncarnationVerdict::Foreign => Membership::Foreign,
        }
    }

    /// Whether it votes, or will at a client's first look.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Membership::Open | Membership::Due)
    }

    /// The word for scripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Membership::Open => "open",
            Membership::Due => "due",
            Membership::Quarantined(_) => "young",
            Membership::Unmarked => "unmarked",
            Membership::Restarted => "restarted",
            Membership::Closed(_) => "closed",
            Membership::OfAnotherSet(_) => "other_set",
            Membership::Foreign => "foreign",
        }
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Membership::Open => f.write_str("takes part"),
            Membership::Due => f.write_str("takes part at a client's next look"),
            Membership::Quarantined(rest) => write!(f, "takes part in {} s", whole_seconds(*rest)),
            Membership::Unmarked => f.write_str("has no record: it is new, or has lost its data"),
            Membership::Restarted => f.write_str("has restarted, or its clock was set back"),
            Membership::Closed(theirs) => write!(f, "was closed: {}", describe(*theirs)),
            Membership::OfAnotherSet(theirs) => {
                write!(f, "belongs to another set: {}", describe(*theirs))
            }
            Membership::Foreign => f.write_str("another program wrote at its record's key"),
        }
    }
}

/// Whole seconds, and not one too few.
pub(super) fn whole_seconds(rest: Duration) -> u128 {
    rest.as_millis().div_ceil(1000)
}

/// A set, as a URL would say it.
pub(super) fn describe(deployment: Deployment) -> String {
    let Deployment { nodes, epoch, delay } = deployment;
    format!("{nodes} nodes, set_epoch={epoch}, restart_delay={}s", delay.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Deployment = Deployment { nodes: 3, epoch: 2, delay: Duration::from_secs(60) };
    const THEIRS: Deployment = Deployment { epoch: 1, ..OURS };

    #[test]
    fn a_marker_says_whether_its_node_takes_part() {
        const SECOND: u64 = 1_000_000;
        let record = |state, deployment| {
            let record =
                IncarnationRecord { run_id: "abc".to_owned(), state, born_us: SECOND, deployment };
            Some(record.to_string())
        };
        for (text, run_id, now, part, words) in [
            (record(RecordState::Open, OURS), "abc", 2, Membership::Open, "takes part"),
            (record(RecordState::Born, OURS), "abc", 62, Membership::Due, "takes part at"),
            (
                record(RecordState::Born, OURS),
                "abc",
                41,
                Membership::Quarantined(Duration::from_secs(20)),
                "takes part in 20 s",
            ),
            (None, "abc", 2, Membership::Unmarked, "has no record"),
            (record(RecordState::Open, OURS), "def", 2, Membership::Restarted, "has restarted"),
            (
                record(RecordState::Open, OURS),
                "abc",
                0,
                Membership::Restarted,
                "clock was set back",
            ),
            (
                record(RecordState::Closed, THEIRS),
                "abc",
                2,
                Membership::Closed(THEIRS),
                "set_epoch=1",
            ),
            (
                record(RecordState::Open, THEIRS),
                "abc",
                2,
                Membership::OfAnotherSet(THEIRS),
                "set_epoch=1",
            ),
            (Some("hello".to_owned()), "abc", 2, Membership::Foreign, "another program"),
        ] {
            let seen = Membership::of(text.as_deref(), run_id, now * SECOND, OURS);
            assert_eq!(seen, part);
            assert!(seen.to_string().contains(words), "{seen}");
        }
    }

    #[test]
    fn a_remaining_time_is_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(1)), 1);
    }
}
