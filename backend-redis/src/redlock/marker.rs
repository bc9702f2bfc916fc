//! The birth record of a node, by which clients keep a node that lost its data out for as long as
//! a lock of before may be held. Pure: the model in `redlock-model` checks what runs.
//!
//! A key without an end, so that it is gone with the data; with the server's `run_id` in it, so
//! that a restart that kept it does not count as the same server. Each vote is asked for with the
//! record's text, and a node that does not have that text does not vote.
//!
//! `<run_id> <born | open | closed> <born, in µs> <nodes> <epoch> <restart_delay, in ms>`

use std::fmt;
use std::time::Duration;

use fencelock_core::Moment;

/// The record's key, the same for all locks of a node.
pub use crate::protocol::identity::INCARNATION_KEY as KEY;

/// What all clients of a set of nodes must say alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deployment {
    /// How many nodes there are.
    pub nodes: usize,
    /// Which set of nodes it is: one more for each change.
    pub epoch: u32,
    /// For how long a node that lost its data is kept out.
    pub delay: Duration,
}

/// Whether a node may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// Not yet: it may have lost locks that are still held.
    Born,
    /// It may.
    Open,
    /// No more: the set of nodes has changed.
    Closed,
}

/// What lies at [`KEY`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IncarnationRecord {
    /// Which run of the server it was written for.
    pub run_id: String,
    /// Whether the node may vote.
    pub state: RecordState,
    /// When it was first seen without its data, on its own clock.
    pub born_us: u64,
    /// Of which set it is.
    pub deployment: Deployment,
}

impl IncarnationRecord {
    /// Reads a record; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<IncarnationRecord> {
        let mut words = text.split(' ');
        let record = IncarnationRecord {
            run_id: words.next().filter(|run_id| !run_id.is_empty())?.to_owned(),
            state: match words.next()? {
                "born" => RecordState::Born,
                "open" => RecordState::Open,
                "closed" => RecordState::Closed,
                _ => return None,
            },
            born_us: words.next()?.parse().ok()?,
            deployment: Deployment {
                nodes: words.next()?.parse().ok()?,
                epoch: words.next()?.parse().ok()?,
                delay: Duration::from_millis(words.next()?.parse().ok()?),
            },
        };
        words.next().is_none().then_some(record)
    }

    /// One incarnation of a node with its data: another one has another text.
    #[must_use]
    pub fn incarnation(&self) -> String {
        format!("{} {}", self.run_id, self.born_us)
    }
}

impl fmt::Display for IncarnationRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            RecordState::Born => "born",
            RecordState::Open => "open",
            RecordState::Closed => "closed",
        };
        let Deployment { nodes, epoch, delay } = self.deployment;
        let (run_id, born_us, delay) = (&self.run_id, self.born_us, delay.as_millis());
        write!(f, "{run_id} {state} {born_us} {nodes} {epoch} {delay}")
    }
}

/// What a client does about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncarnationVerdict {
    /// Puts this record in the place of the one it saw, if that is still there, and looks again.
    Write(IncarnationRecord),
    /// Leaves it out for so long, and looks again.
    Young(Duration),
    /// Asks it for votes with this record.
    Open(IncarnationRecord),
    /// Leaves it out: it is of another set of nodes, or was closed.
    OfAnotherSet(IncarnationRecord),
    /// Leaves it out: another program wrote what is at the record's key.
    Foreign,
}

/// Judges a node by what it says: the text at [`KEY`], its `run_id` and its clock.
#[must_use]
pub fn verdict(
    text: Option<&str>,
    run_id: &str,
    now_us: u64,
    ours: Deployment,
) -> IncarnationVerdict {
    let born = |state| IncarnationRecord {
        run_id: run_id.to_owned(),
        state,
        born_us: now_us,
        deployment: ours,
    };
    let Some(text) = text else { return IncarnationVerdict::Write(born(RecordState::Born)) };
    let Some(record) = IncarnationRecord::parse(text) else { return IncarnationVerdict::Foreign };
    if record.deployment != ours || record.state == RecordState::Closed {
        return IncarnationVerdict::OfAnotherSet(record);
    }
    // Another run, with or without its data; or a clock that was set back, on which its age cannot
    // be told.
    if record.run_id != run_id || record.born_us > now_us {
        return IncarnationVerdict::Write(born(RecordState::Born));
    }
    let age = Duration::from_micros(now_us - record.born_us);
    match (record.state, ours.delay.checked_sub(age)) {
        (RecordState::Open, _) => IncarnationVerdict::Open(record),
        (_, None | Some(Duration::ZERO)) => {
            IncarnationVerdict::Write(IncarnationRecord { state: RecordState::Open, ..record })
        }
        (_, Some(rest)) => IncarnationVerdict::Quarantined(rest),
    }
}

/// What one client remembers of a node's lives. The node's own clock says how long ago it lost its
/// data; who was there when it did also waits by its own.
#[derive(Clone, Debug, Default)]
pub struct RestartTracker {
    incarnation: Option<String>,
    /// When this incarnation was first seen, if another was seen before it.
    since: Option<Moment>,
}

impl RestartTracker {
    /// Sees the node in this `incarnation`; how long it is to be left out still.
    #[must_use]
    pub fn meet(&mut self, incarnation: &str, now: Moment, delay: Duration) -> Duration {
        if self.incarnation.as_deref() != Some(incarnation) {
            self.since = self.incarnation.is_some().then_some(now);
            self.incarnation = Some(incarnation.to_owned());
        }
        match self.since {
            Some(since) => (since + delay).duration_since(now),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Deployment = Deployment { nodes: 3, epoch: 1, delay: Duration::from_secs(60) };
    const SECOND: u64 = 1_000_000;

    fn record(state: RecordState, born_us: u64) -> IncarnationRecord {
        IncarnationRecord { run_id: "abc".to_owned(), state, born_us, deployment: OURS }
    }

    fn judge(text: &str, run_id: &str, now_us: u64) -> IncarnationVerdict {
        verdict(Some(text), run_id, now_us, OURS)
    }

    #[test]
    fn a_marker_is_read_as_it_is_written() {
        let text = "abc open 5000000 3 1 60000";
        assert_eq!(IncarnationRecord::parse(text).unwrap(), record(RecordState::Open, 5 * SECOND));
        assert_eq!(record(RecordState::Open, 5 * SECOND).to_string(), text);
        for other in ["", " open 5 3 1 6", "abc open 5 3 1", "abc open 5 3 1 6 7", "abc x 5 3 1 6"]
        {
            assert_eq!(IncarnationRecord::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_node_without_its_data_is_left_out_for_the_delay() {
        let now = 100 * SECOND;
        let born = record(RecordState::Born, now);
        assert_eq!(verdict(None, "abc", now, OURS), IncarnationVerdict::Write(born.clone()));
        let text = born.to_string();
        let later = |seconds: u64| judge(&text, "abc", now + seconds * SECOND);
        assert_eq!(later(0), IncarnationVerdict::Quarantined(Duration::from_secs(60)));
        assert_eq!(later(59), IncarnationVerdict::Quarantined(Duration::from_secs(1)));
        let open = IncarnationRecord { state: RecordState::Open, ..born };
        assert_eq!(later(60), IncarnationVerdict::Write(open.clone()));
        assert_eq!(judge(&open.to_string(), "abc", now), IncarnationVerdict::Open(open));
    }

    #[test]
    fn a_restart_that_kept_the_marker_is_a_new_life() {
        let old = record(RecordState::Open, SECOND).to_string();
        let born =
            IncarnationRecord { run_id: "def".to_owned(), ..record(RecordState::Born, 9 * SECOND) };
        assert_eq!(judge(&old, "def", 9 * SECOND), IncarnationVerdict::Write(born));
    }

    #[test]
    fn a_clock_that_was_set_back_counts_from_now() {
        let old = record(RecordState::Born, 90 * SECOND).to_string();
        let born = record(RecordState::Born, 80 * SECOND);
        assert_eq!(judge(&old, "abc", 80 * SECOND), IncarnationVerdict::Write(born));
    }

    #[test]
    fn who_says_otherwise_is_of_another_set() {
        let other = Deployment { epoch: 2, ..OURS };
        let theirs = IncarnationRecord { deployment: other, ..record(RecordState::Open, 0) };
        assert_eq!(judge(&theirs.to_string(), "abc", 0), IncarnationVerdict::OfAnotherSet(theirs));
        let closed = record(RecordState::Closed, 0);
        assert_eq!(judge(&closed.to_string(), "abc", 0), IncarnationVerdict::OfAnotherSet(closed));
        assert_eq!(judge("something", "abc", 0), IncarnationVerdict::Foreign);
    }

    #[test]
    fn who_was_there_waits_by_its_own_clock() {
        let (second, delay) = (Duration::from_secs(1), Duration::from_secs(60));
        let start = Moment::from_nanos(0) + second;
        let mut node = RestartTracker::default();
        assert_eq!(node.meet("abc 1", start, delay), Duration::ZERO, "the first one it sees");
        assert_eq!(node.meet("def 2", start, delay), delay);
        assert_eq!(node.meet("def 2", start + second, delay), delay - second);
        assert_eq!(node.meet("def 2", start + delay, delay), Duration::ZERO);
    }
}
