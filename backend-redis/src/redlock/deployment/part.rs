//! Whether a node takes part, and why not: for people. Pure.

use std::fmt;
use std::time::Duration;

use crate::redlock::marker::{Deployment, Marker, Standing, State, standing};

/// What part a node has in the set that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// It votes.
    Open,
    /// Its delay is over: it votes as soon as a client has looked at it.
    Due,
    /// It will vote in so long: it is new, or has lost its data.
    Young(Duration),
    /// It has no marker: it is new, or has lost its data. Its delay begins when a client meets it.
    Unmarked,
    /// Its marker is of an earlier run, or its clock was set back. Its delay begins anew when a
    /// client meets it.
    Restarted,
    /// It was closed, in favour of this set or with it.
    Closed(Deployment),
    /// It belongs to this set.
    OfAnotherSet(Deployment),
    /// Another program wrote at the marker's key.
    Foreign,
}

impl Part {
    /// Of a node with the marker `text`, in the set `ours`.
    pub(super) fn of(text: Option<&str>, run_id: &str, now_us: u64, ours: Deployment) -> Part {
        match standing(text, run_id, now_us, ours) {
            Standing::Open(_) => Part::Open,
            Standing::Write(Marker { state: State::Open, .. }) => Part::Due,
            Standing::Write(_) if text.is_none() => Part::Unmarked,
            Standing::Write(_) => Part::Restarted,
            Standing::Young(rest) => Part::Young(rest),
            Standing::OfAnotherSet(Marker { state: State::Closed, deployment, .. }) => {
                Part::Closed(deployment)
            }
            Standing::OfAnotherSet(marker) => Part::OfAnotherSet(marker.deployment),
            Standing::Foreign => Part::Foreign,
        }
    }

    /// Whether it votes, or will at a client's first look.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Part::Open | Part::Due)
    }

    /// The word for scripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Open => "open",
            Part::Due => "due",
            Part::Young(_) => "young",
            Part::Unmarked => "unmarked",
            Part::Restarted => "restarted",
            Part::Closed(_) => "closed",
            Part::OfAnotherSet(_) => "other_set",
            Part::Foreign => "foreign",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Open => f.write_str("takes part"),
            Part::Due => f.write_str("takes part at a client's next look"),
            Part::Young(rest) => write!(f, "takes part in {} s", seconds_up(*rest)),
            Part::Unmarked => f.write_str("has no marker: it is new, or has lost its data"),
            Part::Restarted => f.write_str("has restarted, or its clock was set back"),
            Part::Closed(theirs) => write!(f, "was closed: {}", in_words(*theirs)),
            Part::OfAnotherSet(theirs) => {
                write!(f, "belongs to another set: {}", in_words(*theirs))
            }
            Part::Foreign => f.write_str("another program wrote at its marker's key"),
        }
    }
}

/// Whole seconds, and not one too few.
pub(super) fn seconds_up(rest: Duration) -> u128 {
    rest.as_millis().div_ceil(1000)
}

/// A set, as a URL would say it.
pub(super) fn in_words(deployment: Deployment) -> String {
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
        let marker = |state, deployment| {
            let marker = Marker { run_id: "abc".to_owned(), state, born_us: SECOND, deployment };
            Some(marker.to_string())
        };
        for (text, run_id, now, part, words) in [
            (marker(State::Open, OURS), "abc", 2, Part::Open, "takes part"),
            (marker(State::Born, OURS), "abc", 62, Part::Due, "takes part at"),
            (
                marker(State::Born, OURS),
                "abc",
                41,
                Part::Young(Duration::from_secs(20)),
                "takes part in 20 s",
            ),
            (None, "abc", 2, Part::Unmarked, "has no marker"),
            (marker(State::Open, OURS), "def", 2, Part::Restarted, "has restarted"),
            (marker(State::Open, OURS), "abc", 0, Part::Restarted, "clock was set back"),
            (marker(State::Closed, THEIRS), "abc", 2, Part::Closed(THEIRS), "set_epoch=1"),
            (marker(State::Open, THEIRS), "abc", 2, Part::OfAnotherSet(THEIRS), "set_epoch=1"),
            (Some("hello".to_owned()), "abc", 2, Part::Foreign, "another program"),
        ] {
            let seen = Part::of(text.as_deref(), run_id, now * SECOND, OURS);
            assert_eq!(seen, part);
            assert!(seen.to_string().contains(words), "{seen}");
        }
    }

    #[test]
    fn a_wait_is_never_shown_too_short() {
        assert_eq!(seconds_up(Duration::from_millis(1001)), 2);
        assert_eq!(seconds_up(Duration::from_secs(1)), 1);
    }
}
