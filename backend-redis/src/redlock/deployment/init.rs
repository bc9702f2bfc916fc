//! Declaring a set new, so that nobody waits for `restart_delay` at the first use.

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::node::{NodeConnection, WallClock};
use super::part::{Membership, whole_seconds};
use super::{at, explain_at, parse, reach_all, refuse_twins};
use crate::redlock::config::RedlockStore;
use crate::redlock::incarnation::{Deployment, RecordState};

/// Declares the nodes of `url` new: none of them holds a lock that a holder still believes in, so
/// that none has to be kept out. Where all of them take part already, nothing is done.
///
/// That no node has a record is checked, and proves little: nodes that have all just lost their
/// data have none either. That they are new is the caller's word.
///
/// # Errors
/// - [`ErrorKind::Refused`]: a node has a record already, so it may have held locks; or two of the
///   nodes are one server.
/// - As of [`connect`](fencelock_core::url::connect), for the first node with an error: all must
///   answer.
///
/// # Cancel safety
/// Dropped half-way, some nodes are declared new. Doing it again is refused then, and the others
/// take part by themselves, `restart_delay` after a client has met them.
pub async fn init(url: &str) -> Result<()> {
    let (store, _) = parse(url)?;
    init_store(&store).await.map_err(explain_at(&store))
}

async fn init_store(store: &RedlockStore) -> Result<()> {
    let options = store.options()?;
    let ours = store.deployment();
    let reached = reach_all(store, &options, WallClock::start()).await;
    let reached = reached.into_iter();
    let nodes = reached.map(|(host, node)| node.map_err(|error| at(&host, &error)));
    let mut nodes = nodes.collect::<Result<Vec<NodeConnection>>>()?;
    refuse_twins(&nodes)?;
    let parts = nodes.iter().map(|node| {
        let part = Membership::of(node.text.as_deref(), &node.run_id, node.now_us, ours);
        (node.host.to_string(), part)
    });
    if is_done(&parts.collect::<Vec<_>>(), ours)? {
        return Ok(());
    }
    // All at once: little time to die in half-way.
    let declaring = nodes.iter_mut().map(|node| async {
        let record = node.record(RecordState::Open, ours);
        match node.swap(&record).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(at(&node.host, &met(ours))),
            Err(error) => Err(at(&node.host, &error)),
        }
    });
    join_all(declaring).await.into_iter().collect()
}

/// Whether a set of nodes with these parts is declared new already; an error if it must not be.
///
/// A node that a client has met is no proof of a new set: a set that is in use looks just the same
/// once all of its nodes have lost their data, and its locks may still be held. Waiting costs
/// `restart_delay` once.
fn is_done(parts: &[(String, Membership)], ours: Deployment) -> Result<bool> {
    let refused =
        |host: &str, why: String| Err(Error::new(ErrorKind::Refused, format!("{host} {why}")));
    let mut opened = parts.iter().filter(|(_, part)| part.is_open());
    let first_open = opened.next();
    if first_open.is_some() && opened.count() + 1 == parts.len() {
        return Ok(true);
    }
    for (host, part) in parts {
        match part {
            Membership::Unmarked | Membership::Open | Membership::Due => {}
            Membership::Quarantined(rest) => {
                let rest = whole_seconds(*rest);
                let why = "was met by a client already, so it may have lost locks that are held";
                return refused(host, format!("{why}; it takes part by itself in {rest} s"));
            }
            Membership::Restarted => {
                let why = "has a record of an earlier run, so it may have held locks; it takes \
                           part by itself";
                let delay = ours.delay.as_secs_f64();
                return refused(host, format!("{why}, {delay} s after a client has met it"));
            }
            Membership::Closed(_) | Membership::OfAnotherSet(_) => {
                let why = "so it may have held locks; a set that is in use is changed by \
                           `fencelock redlock replace`";
                return refused(host, format!("{part}, {why}"));
            }
            Membership::Foreign => {
                let message = format!("{host}: {part}; it was left as it is");
                return Err(Error::new(ErrorKind::Foreign, message).retryable(false));
            }
        }
    }
    match first_open {
        None => Ok(false),
        Some((host, _)) => {
            let delay = ours.delay.as_secs_f64();
            let why = "takes part already, so locks may be held; nodes without a record take part \
                       by themselves";
            refused(host, format!("{why}, {delay} s after a client has met them"))
        }
    }
}

/// A client was faster.
fn met(ours: Deployment) -> Error {
    let message = format!(
        "a client met it at the same time, so it takes part by itself in {} s; `fencelock redlock \
         status` shows the others",
        whole_seconds(ours.delay)
    );
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const OURS: Deployment = Deployment { nodes: 3, epoch: 1, delay: Duration::from_secs(60) };

    fn judge(parts: [Membership; 3]) -> Result<bool> {
        let hosts = ["a", "b", "c"].map(str::to_owned);
        is_done(&hosts.into_iter().zip(parts).collect::<Vec<_>>(), OURS)
    }

    #[test]
    fn only_what_has_no_marker_at_all_is_declared_new() {
        use Membership::{Closed, Due, Foreign, OfAnotherSet, Open, Restarted, Unmarked, Young};
        assert!(!judge([Unmarked; 3]).unwrap());
        assert!(judge([Open; 3]).unwrap(), "again");
        assert!(judge([Open, Due, Open]).unwrap());
        let young = Young(Duration::from_millis(1500));
        for (parts, says) in [
            ([Unmarked, young, Unmarked], "b was met by a client"),
            ([young; 3], "in 2 s"),
            ([Open, Unmarked, Unmarked], "a takes part already"),
            ([Unmarked, Unmarked, Restarted], "c has a record of an earlier run"),
            ([Unmarked, Closed(OURS), Unmarked], "b was closed"),
            ([Unmarked, OfAnotherSet(OURS), Unmarked], "`fencelock redlock replace`"),
        ] {
            let error = judge(parts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(judge([Unmarked, Foreign, Unmarked]).unwrap_err().kind(), ErrorKind::Foreign);
    }
}
