//! Declares a set new, so that its first use does not wait for `restart_delay`.

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::membership::Membership;
use super::nodes::{WallClock, at, explain_at, parse, reach_all, require_all};
use crate::redlock::config::RedlockStore;
use crate::redlock::node::record::whole_seconds;
use crate::redlock::rules::incarnation::{Deployment, RecordState};

/// Declares the nodes of `url` new: none of them had a lock that is still held, so none has to be
/// excluded. If all of them take part already, this does nothing.
///
/// It checks that no node has an incarnation record, which proves little: nodes that have all just
/// lost their data have none either. The caller guarantees that they are new.
///
/// # Errors
/// - [`ErrorKind::Refused`]: a node has a record already, so it may have had locks; or two of the
///   nodes are one server.
/// - The errors of [`connect`](fencelock_core::url::connect), for the first node with one: all must
///   reply.
///
/// # Cancel safety
/// If dropped half-way, some nodes are declared new. A repeat is refused then, and the others take
/// part by themselves, `restart_delay` after a client has first connected to them.
pub async fn init(url: &str) -> Result<()> {
    let (store, _) = parse(url)?;
    init_store(&store).await.map_err(explain_at(&store))
}

async fn init_store(store: &RedlockStore) -> Result<()> {
    let options = store.options()?;
    let ours = store.deployment();
    let mut nodes = require_all(reach_all(store, &options, WallClock::start()).await)?;
    let memberships = nodes.iter().map(|node| (node.host.to_string(), node.membership(ours)));
    if is_done(&memberships.collect::<Vec<_>>(), ours)? {
        return Ok(());
    }
    // All at once, so that an interruption half-way is unlikely.
    let declaring = nodes.iter_mut().map(|node| async {
        let record = node.record(RecordState::Open, ours);
        match node.swap(&record).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(at(&node.host, &changed_meanwhile(ours))),
            Err(error) => Err(at(&node.host, &error)),
        }
    });
    join_all(declaring).await.into_iter().collect()
}

/// Whether a set of nodes with these memberships is declared new already; an error if it must not
/// be.
///
/// A node to which a client has connected does not prove a new set: a set in use looks the same once
/// all of its nodes have lost their data, and its locks may still be held. Waiting costs
/// `restart_delay` once.
fn is_done(memberships: &[(String, Membership)], ours: Deployment) -> Result<bool> {
    let delay = ours.delay.as_secs_f64();
    let refused = |message: String| Err(Error::new(ErrorKind::Refused, message));
    let mut opened = memberships.iter().filter(|(_, membership)| membership.is_open());
    let first_open = opened.next();
    if first_open.is_some() && opened.count() + 1 == memberships.len() {
        return Ok(true);
    }
    for (host, membership) in memberships {
        match membership {
            Membership::Unmarked | Membership::Open | Membership::Due => {}
            Membership::Quarantined(rest) => {
                return refused(format!(
                    "{host} was used by a client already, so it may have lost locks that are \
                     held; it takes part by itself in {} s",
                    whole_seconds(*rest)
                ));
            }
            Membership::Restarted => {
                return refused(format!(
                    "{host} has an incarnation record of an earlier run, so it may have had \
                     locks; it takes part by itself, {delay} s after a client has connected to it"
                ));
            }
            Membership::Closed(_) | Membership::OfAnotherSet(_) => {
                return refused(format!(
                    "{host} {membership}, so it may have held locks; a set that is in use is \
                     changed by `fencelock redlock replace`"
                ));
            }
            Membership::Foreign => {
                let message = format!("{host}: {membership}; it was left as it is");
                return Err(Error::new(ErrorKind::Foreign, message).retryable(false));
            }
        }
    }
    match first_open {
        None => Ok(false),
        Some((host, _)) => refused(format!(
            "{host} takes part already, so locks may be held; nodes without an incarnation \
             record take part by themselves, {delay} s after a client has connected to them"
        )),
    }
}

/// The error for a node whose record a client has written meanwhile.
fn changed_meanwhile(ours: Deployment) -> Error {
    let message = format!(
        "a client connected to it at the same time, so it takes part by itself in {} s; `fencelock redlock \
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

    fn judge(memberships: [Membership; 3]) -> Result<bool> {
        let hosts = ["a", "b", "c"].map(str::to_owned);
        is_done(&hosts.into_iter().zip(memberships).collect::<Vec<_>>(), OURS)
    }

    #[test]
    fn only_nodes_without_a_record_are_declared_new() {
        use Membership::{Closed, Due, Open, Quarantined, Restarted, Unmarked};
        assert!(judge([Open, Due, Open]).unwrap());
        let quarantined = Quarantined(Duration::from_millis(1500));
        for (memberships, says) in [
            ([Unmarked, quarantined, Unmarked], "b was used by a client"),
            ([quarantined; 3], "in 2 s"),
            ([Open, Unmarked, Unmarked], "a takes part already"),
            ([Unmarked, Unmarked, Restarted], "c has an incarnation record of an earlier run"),
            ([Unmarked, Closed(OURS), Unmarked], "b was closed"),
        ] {
            let error = judge(memberships).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
