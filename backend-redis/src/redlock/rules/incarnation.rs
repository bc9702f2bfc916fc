//! The incarnation record of a node, by which clients exclude a node that lost its data for as long
//! as an earlier lock may be held. Pure: the model in `models` checks this code.
//!
//! A key without a TTL, so that it is lost together with the data; it contains the server's
//! `run_id`, so that a restart that kept it does not count as the same run. Each vote is requested
//! with the record's text, and a node that has another text does not vote.
//!
//! `<run_id> <born | open | closed> <born, in µs> <nodes> <epoch> <restart_delay, in ms>`

use std::fmt;
use std::time::Duration;

use fencelock_core::Moment;

/// The record's key, the same for all locks of a node.
pub const KEY: &str = "fencelock:redlock";

/// What all clients of a set of nodes must configure alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deployment {
    /// How many nodes there are.
    pub nodes: usize,
    /// The number of the set: raised by one with each change.
    pub epoch: u32,
    /// How long a node that lost its data is excluded.
    pub delay: Duration,
}

/// In a URL's terms.
impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deployment { nodes, epoch, delay } = self;
        write!(f, "{nodes} nodes, set_epoch={epoch}, restart_delay={}s", delay.as_secs_f64())
    }
}

/// Whether a node may vote, by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// Not yet: it may have lost locks that are still held.
    Born,
    /// Yes.
    Open,
    /// Never again: the set of nodes has changed.
    Closed,
}

/// The value at [`KEY`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IncarnationRecord {
    /// The run of the server that it was written for.
    pub run_id: String,
    /// Whether the node may vote.
    pub state: RecordState,
    /// When the node was first seen without its data, on its own clock.
    pub born_us: u64,
    /// The set that the node belongs to.
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

    /// Identifies the time from one loss of the node's data to the next.
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

/// How a client treats a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncarnationVerdict {
    /// Replaces the record it read by this one, if that is still there, and checks again.
    Write(IncarnationRecord),
    /// Excludes it for this long, and checks again.
    Quarantined(Duration),
    /// Requests votes with this record.
    Open(IncarnationRecord),
    /// Excludes it: it belongs to another set of nodes, or was closed.
    OfAnotherSet(IncarnationRecord),
    /// Excludes it: another program wrote the value at the record's key.
    Foreign,
}

/// Judges a node by the text at [`KEY`], its `run_id` and its clock.
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
    // Another run, with or without its data; or a clock that was set back, from which the record's
    // age cannot be computed.
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

/// What one client remembers of a node's incarnations. The node's own clock shows how long ago it
/// lost its data; a client that was connected before also waits by its own clock.
#[derive(Clone, Debug, Default)]
pub struct RestartTracker {
    incarnation: Option<String>,
    /// When this incarnation was first seen, if another was seen before it.
    since: Option<Moment>,
}

impl RestartTracker {
    /// Records the node's current `incarnation`; how much longer the node is to be excluded.
    #[must_use]
    pub fn observe(&mut self, incarnation: &str, now: Moment, delay: Duration) -> Duration {
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
    fn a_record_is_read_as_it_is_written() {
        let text = "abc open 5000000 3 1 60000";
        assert_eq!(IncarnationRecord::parse(text).unwrap(), record(RecordState::Open, 5 * SECOND));
        assert_eq!(record(RecordState::Open, 5 * SECOND).to_string(), text);
        for other in ["", " open 5 3 1 6", "abc open 5 3 1", "abc open 5 3 1 6 7", "abc x 5 3 1 6"]
        {
            assert_eq!(IncarnationRecord::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_node_without_its_data_is_excluded_for_the_delay() {
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
    fn a_restart_that_kept_the_record_is_a_new_incarnation() {
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
    fn another_deployment_is_another_set() {
        let other = Deployment { epoch: 2, ..OURS };
        let theirs = IncarnationRecord { deployment: other, ..record(RecordState::Open, 0) };
        assert_eq!(judge(&theirs.to_string(), "abc", 0), IncarnationVerdict::OfAnotherSet(theirs));
        let closed = record(RecordState::Closed, 0);
        assert_eq!(judge(&closed.to_string(), "abc", 0), IncarnationVerdict::OfAnotherSet(closed));
        assert_eq!(judge("something", "abc", 0), IncarnationVerdict::Foreign);
    }

    #[test]
    fn a_client_that_was_connected_before_waits_by_its_own_clock() {
        let (second, delay) = (Duration::from_secs(1), Duration::from_secs(60));
        let start = Moment::from_nanos(0) + second;
        let mut node = RestartTracker::default();
        assert_eq!(
            node.observe("abc 1", start, delay),
            Duration::ZERO,
            "the first incarnation it sees"
        );
        assert_eq!(node.observe("def 2", start, delay), delay);
        assert_eq!(node.observe("def 2", start + second, delay), delay - second);
        assert_eq!(node.observe("def 2", start + delay, delay), Duration::ZERO);
    }
}
