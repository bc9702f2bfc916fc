//! The birth marker of a node, by which clients keep a node that lost its data out for as long as
//! a lock of before may be held. Pure: the model in `redlock-model` checks what runs.
//!
//! A key without an end, so that it is gone with the data; with the server's `run_id` in it, so
//! that a restart that kept it does not count as the same server. Each vote is asked for with the
//! marker's text, and a node that does not have that text does not vote.
//!
//! `<run_id> <born | open | closed> <born, in µs> <nodes> <epoch> <restart_delay, in ms>`

use std::fmt;
use std::time::Duration;

use fencelock_core::Moment;

/// The marker's key, the same for all locks of a node.
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
pub enum State {
    /// Not yet: it may have lost locks that are still held.
    Born,
    /// It may.
    Open,
    /// No more: the set of nodes has changed.
    Closed,
}

/// What lies at [`KEY`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Which run of the server it was written for.
    pub run_id: String,
    /// Whether the node may vote.
    pub state: State,
    /// When it was first seen without its data, on its own clock.
    pub born_us: u64,
    /// Of which set it is.
    pub deployment: Deployment,
}

impl Marker {
    /// Reads a marker; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Marker> {
        let mut words = text.split(' ');
        let marker = Marker {
            run_id: words.next().filter(|run_id| !run_id.is_empty())?.to_owned(),
            state: match words.next()? {
                "born" => State::Born,
                "open" => State::Open,
                "closed" => State::Closed,
                _ => return None,
            },
            born_us: words.next()?.parse().ok()?,
            deployment: Deployment {
                nodes: words.next()?.parse().ok()?,
                epoch: words.next()?.parse().ok()?,
                delay: Duration::from_millis(words.next()?.parse().ok()?),
            },
        };
        words.next().is_none().then_some(marker)
    }

    /// One life of a node with its data: another one has another text.
    #[must_use]
    pub fn life(&self) -> String {
        format!("{} {}", self.run_id, self.born_us)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Born => "born",
            State::Open => "open",
            State::Closed => "closed",
        };
        let Deployment { nodes, epoch, delay } = self.deployment;
        let (run_id, born_us, delay) = (&self.run_id, self.born_us, delay.as_millis());
        write!(f, "{run_id} {state} {born_us} {nodes} {epoch} {delay}")
    }
}

/// What a client does about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Puts this marker in the place of the one it saw, if that is still there, and looks again.
    Write(Marker),
    /// Leaves it out for so long, and looks again.
    Young(Duration),
    /// Asks it for votes with this marker.
    Open(Marker),
    /// Leaves it out: it is of another set of nodes, or was closed.
    OfAnotherSet(Marker),
    /// Leaves it out: another program wrote what is at the marker's key.
    Foreign,
}

/// Judges a node by what it says: the text at [`KEY`], its `run_id` and its clock.
#[must_use]
pub fn standing(text: Option<&str>, run_id: &str, now_us: u64, ours: Deployment) -> Standing {
    let born =
        |state| Marker { run_id: run_id.to_owned(), state, born_us: now_us, deployment: ours };
    let Some(text) = text else { return Standing::Write(born(State::Born)) };
    let Some(marker) = Marker::parse(text) else { return Standing::Foreign };
    if marker.deployment != ours || marker.state == State::Closed {
        return Standing::OfAnotherSet(marker);
    }
    // Another run, with or without its data; or a clock that was set back, on which its age cannot
    // be told.
    if marker.run_id != run_id || marker.born_us > now_us {
        return Standing::Write(born(State::Born));
    }
    let age = Duration::from_micros(now_us - marker.born_us);
    match (marker.state, ours.delay.checked_sub(age)) {
        (State::Open, _) => Standing::Open(marker),
        (_, None | Some(Duration::ZERO)) => {
            Standing::Write(Marker { state: State::Open, ..marker })
        }
        (_, Some(rest)) => Standing::Young(rest),
    }
}

/// What one client remembers of a node's lives. The node's own clock says how long ago it lost its
/// data; who was there when it did also waits by its own.
#[derive(Clone, Debug, Default)]
pub struct Acquaintance {
    life: Option<String>,
    /// When this life was first seen, if another was seen before it.
    since: Option<Moment>,
}

impl Acquaintance {
    /// Sees the node in this `life`; how long it is to be left out still.
    #[must_use]
    pub fn meet(&mut self, life: &str, now: Moment, delay: Duration) -> Duration {
        if self.life.as_deref() != Some(life) {
            self.since = self.life.is_some().then_some(now);
            self.life = Some(life.to_owned());
        }
        match self.since {
            Some(since) => since.after(delay).since(now),
            None => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Deployment = Deployment { nodes: 3, epoch: 1, delay: Duration::from_secs(60) };
    const SECOND: u64 = 1_000_000;

    fn marker(state: State, born_us: u64) -> Marker {
        Marker { run_id: "abc".to_owned(), state, born_us, deployment: OURS }
    }

    fn judge(text: &str, run_id: &str, now_us: u64) -> Standing {
        standing(Some(text), run_id, now_us, OURS)
    }

    #[test]
    fn a_marker_is_read_as_it_is_written() {
        let text = "abc open 5000000 3 1 60000";
        assert_eq!(Marker::parse(text).unwrap(), marker(State::Open, 5 * SECOND));
        assert_eq!(marker(State::Open, 5 * SECOND).to_string(), text);
        for other in ["", " open 5 3 1 6", "abc open 5 3 1", "abc open 5 3 1 6 7", "abc x 5 3 1 6"]
        {
            assert_eq!(Marker::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_node_without_its_data_is_left_out_for_the_delay() {
        let now = 100 * SECOND;
        let born = marker(State::Born, now);
        assert_eq!(standing(None, "abc", now, OURS), Standing::Write(born.clone()));
        let text = born.to_string();
        let later = |seconds: u64| judge(&text, "abc", now + seconds * SECOND);
        assert_eq!(later(0), Standing::Young(Duration::from_secs(60)));
        assert_eq!(later(59), Standing::Young(Duration::from_secs(1)));
        let open = Marker { state: State::Open, ..born };
        assert_eq!(later(60), Standing::Write(open.clone()));
        assert_eq!(judge(&open.to_string(), "abc", now), Standing::Open(open));
    }

    #[test]
    fn a_restart_that_kept_the_marker_is_a_new_life() {
        let old = marker(State::Open, SECOND).to_string();
        let born = Marker { run_id: "def".to_owned(), ..marker(State::Born, 9 * SECOND) };
        assert_eq!(judge(&old, "def", 9 * SECOND), Standing::Write(born));
    }

    #[test]
    fn a_clock_that_was_set_back_counts_from_now() {
        let old = marker(State::Born, 90 * SECOND).to_string();
        let born = marker(State::Born, 80 * SECOND);
        assert_eq!(judge(&old, "abc", 80 * SECOND), Standing::Write(born));
    }

    #[test]
    fn who_says_otherwise_is_of_another_set() {
        let other = Deployment { epoch: 2, ..OURS };
        let theirs = Marker { deployment: other, ..marker(State::Open, 0) };
        assert_eq!(judge(&theirs.to_string(), "abc", 0), Standing::OfAnotherSet(theirs));
        let closed = marker(State::Closed, 0);
        assert_eq!(judge(&closed.to_string(), "abc", 0), Standing::OfAnotherSet(closed));
        assert_eq!(judge("something", "abc", 0), Standing::Foreign);
    }

    #[test]
    fn who_was_there_waits_by_its_own_clock() {
        let (second, delay) = (Duration::from_secs(1), Duration::from_secs(60));
        let start = Moment::from_nanos(0).after(second);
        let mut node = Acquaintance::default();
        assert_eq!(node.meet("abc 1", start, delay), Duration::ZERO, "the first one it sees");
        assert_eq!(node.meet("def 2", start, delay), delay);
        assert_eq!(node.meet("def 2", start.after(second), delay), delay - second);
        assert_eq!(node.meet("def 2", start.after(delay), delay), Duration::ZERO);
    }
}
