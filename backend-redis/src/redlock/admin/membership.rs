//! Whether a node takes part, and why not, in a form for operators. Pure.

use std::fmt;
use std::time::Duration;

use crate::redlock::node::record::whole_seconds;
use crate::redlock::rules::incarnation::{
    Deployment, IncarnationRecord, IncarnationVerdict, RecordState, verdict,
};

/// The state of a node in the set that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Membership {
    /// It votes.
    Open,
    /// Its delay has passed: it votes after a client's next check.
    Due,
    /// It votes after this delay: it is new, or has lost its data.
    Quarantined(Duration),
    /// It has no incarnation record: it is new, or has lost its data. Its delay starts when a client
    /// connects.
    Unmarked,
    /// Its record is of an earlier run, or its clock was set back. Its delay starts again when a
    /// client connects.
    Restarted,
    /// It was closed, in favour of this set or with it.
    Closed(Deployment),
    /// It belongs to this set.
    OfAnotherSet(Deployment),
    /// Another program wrote to the record's key.
    Foreign,
}

impl Membership {
    /// The membership in the set `ours` of a node with the record `text`.
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

    /// Whether it votes, or will after a client's next check.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Membership::Open | Membership::Due)
    }

    /// The name in machine-readable output.
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
            Membership::Due => f.write_str("takes part at a client's next check"),
            Membership::Quarantined(rest) => write!(f, "takes part in {} s", whole_seconds(*rest)),
            Membership::Unmarked => {
                f.write_str("has no incarnation record: it is new, or has lost its data")
            }
            Membership::Restarted => f.write_str("has restarted, or its clock was set back"),
            Membership::Closed(theirs) => write!(f, "was closed: {theirs}"),
            Membership::OfAnotherSet(theirs) => {
                write!(f, "belongs to another set: {theirs}")
            }
            Membership::Foreign => {
                f.write_str("another program wrote to its incarnation record's key")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Deployment = Deployment { nodes: 3, epoch: 2, delay: Duration::from_secs(60) };
    const THEIRS: Deployment = Deployment { epoch: 1, ..OURS };

    #[test]
    fn a_record_shows_whether_its_node_takes_part() {
        const SECOND: u64 = 1_000_000;
        let record = |state, deployment| {
            let run_id = "abc".to_owned();
            Some(IncarnationRecord { run_id, state, born_us: SECOND, deployment }.to_string())
        };
        let (born, open) = (record(RecordState::Born, OURS), record(RecordState::Open, OURS));
        let foreign = Some("hello".to_owned());
        let quarantined = Membership::Quarantined(Duration::from_secs(20));
        for (text, run_id, now, expected, says) in [
            (&open, "abc", 2, Membership::Open, "takes part"),
            (&born, "abc", 62, Membership::Due, "takes part at"),
            (&born, "abc", 41, quarantined, "takes part in 20 s"),
            (&None, "abc", 2, Membership::Unmarked, "has no incarnation record"),
            (&open, "def", 2, Membership::Restarted, "has restarted"),
            (&open, "abc", 0, Membership::Restarted, "clock was set back"),
            (&foreign, "abc", 2, Membership::Foreign, "another program"),
        ] {
            let membership = Membership::of(text.as_deref(), run_id, now * SECOND, OURS);
            assert_eq!(membership, expected);
            assert!(membership.to_string().contains(says), "{membership}");
        }
        for (state, expected) in [
            (RecordState::Closed, Membership::Closed(THEIRS)),
            (RecordState::Open, Membership::OfAnotherSet(THEIRS)),
        ] {
            let membership = Membership::of(record(state, THEIRS).as_deref(), "abc", SECOND, OURS);
            assert_eq!(membership, expected);
            assert!(membership.to_string().contains("set_epoch=1"), "{membership}");
        }
    }
}
