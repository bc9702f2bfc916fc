//! Replaces a set of nodes, in the order that [`change`](super::change) explains.
//!
//! Nothing is written before every node of the new set and a majority of the old one have replied,
//! and a repeat after an interruption finishes the change.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::change::{Change, Side, Stage, clocks_agree};
use super::membership::Membership;
use super::nodes::{
    NodeConnection, WallClock, at, explain_at, parse, reach_all, refuse_twins, require_all,
};
use crate::redlock::config::RedlockStore;
use crate::redlock::node::about;
use crate::redlock::node::quorum::by_node;
use crate::redlock::rules::incarnation::{IncarnationRecord, RecordState};
use crate::redlock::rules::votes::majority;

/// The result of a change of the set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replaced {
    /// The time until all nodes of the new set take part.
    pub opens_in: Duration,
    /// The nodes that have left the set but could not be closed, and why. They must never run again
    /// with their current data.
    pub not_closed: Vec<(String, Error)>,
}

/// Changes the set of nodes from `old_url`'s to `new_url`'s, whose `set_epoch` is one more.
///
/// Closes a majority of the old set, so that nothing more is granted or extended there, and only
/// then starts the `restart_delay` of the new set's nodes, during which the old set's locks expire.
/// If the old set's delay is longer, the difference is waited for in between. Clients of the old
/// set are refused from then on; clients of the new set must not be started before.
///
/// # Errors
/// After one of these, nothing has been changed:
/// - [`ErrorKind::InvalidArgument`]: `set_epoch` does not rise by one, or an invalid URL.
/// - [`ErrorKind::Refused`]: a node belongs to a third set, two nodes are one server, or the clocks
///   of the new set and of a majority of the old one do not agree within `clock_tolerance`.
/// - [`ErrorKind::Unreachable`]: a node of the new set does not reply, or a majority of the old one
///   does not.
///
/// A later error names the node that failed. A repeat finishes the change.
///
/// # Cancel safety
/// If dropped half-way, neither set may grant anything. A repeat finishes the change.
pub async fn replace(old_url: &str, new_url: &str) -> Result<Replaced> {
    let ((old, _), (new, _)) = (parse(old_url)?, parse(new_url)?);
    let change = Change::between(&old, &new).map_err(explain_at(&new))?;
    let (explain_old, explain_new) = (explain_at(&old), explain_at(&new));
    let mut sets = Sets::reach(&old, &new, change).await?;
    sets.check(&old, &new).map_err(&explain_old)?;
    let is_repeat = sets.have_moved();
    if !is_repeat {
        sets.close().await.map_err(&explain_old)?;
        tokio::time::sleep(change.pause()).await;
    }
    sets.move_on(is_repeat).await.map_err(&explain_new)?;
    Ok(Replaced { opens_in: sets.opens_in(), not_closed: sets.away })
}

#[derive(Debug)]
struct Peer {
    node: NodeConnection,
    side: Side,
}

#[derive(Debug)]
struct Sets {
    change: Change,
    peers: Vec<Peer>,
    /// The nodes of the old set that cannot be reached or closed.
    away: Vec<(String, Error)>,
}

impl Sets {
    async fn reach(old: &RedlockStore, new: &RedlockStore, change: Change) -> Result<Sets> {
        let (explain_old, explain_new) = (explain_at(old), explain_at(new));
        let old_options = old.options().map_err(&explain_old)?;
        let new_options = new.options().map_err(&explain_new)?;
        let clock = WallClock::start();
        let (theirs, ours) =
            tokio::join!(reach_all(old, &old_options, clock), reach_all(new, &new_options, clock));
        let newcomers = require_all(ours).map_err(explain_new)?;
        let (mut nodes, mut away) = (Vec::new(), Vec::new());
        for (host, node) in theirs {
            match node {
                Ok(node) => nodes.push(node),
                Err(error) => away.push((host.to_string(), error)),
            }
        }
        refuse_twins(&nodes).map_err(explain_old)?;
        let in_old = |node: NodeConnection| Peer { node, side: Side::Old };
        let mut peers: Vec<Peer> = nodes.into_iter().map(in_old).collect();
        // Each database of a server is a node of its own.
        let is_one_database = old_options.database == new_options.database;
        for node in newcomers {
            let known = peers.iter_mut().find(|peer| peer.node.run_id == node.run_id);
            let host = node.host.to_string();
            match known.filter(|_| is_one_database) {
                Some(peer) => peer.side = Side::Both,
                None if is_one_database && away.iter().any(|(name, _)| *name == host) => {
                    away.retain(|(name, _)| *name != host);
                    peers.push(Peer { node, side: Side::Both });
                }
                None => peers.push(Peer { node, side: Side::New }),
            }
        }
        Ok(Sets { change, peers, away })
    }

    /// Checks that the change is possible, before anything is written.
    fn check(&mut self, old: &RedlockStore, new: &RedlockStore) -> Result<()> {
        let mut peers = Vec::new();
        for peer in std::mem::take(&mut self.peers) {
            match (self.stage_of(&peer).require_for(peer.side), peer.side) {
                (Ok(()), _) => peers.push(peer),
                (Err(error), Side::Old) => self.away.push((peer.node.host.to_string(), error)),
                (Err(error), _) => return Err(at(&peer.node.host, &error)),
            }
        }
        self.peers = peers;
        self.require_majority(self.in_old().count(), "can be closed")?;
        self.require_clocks(old.tolerance_us().max(new.tolerance_us()))
    }

    fn in_old(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.side != Side::New)
    }

    fn require_majority(&self, count: usize, what: &str) -> Result<()> {
        let nodes = self.change.old.nodes;
        if count >= majority(nodes) {
            return Ok(());
        }
        let text = format!(
            "{count} of {nodes} nodes of the old set {what}, and {} must be before the new set is \
             opened; run it again when more can",
            majority(nodes)
        );
        let away = self.away.iter().map(|(host, error)| (host, error.message()));
        let is_away = |(_, error): &(String, Error)| error.is_retryable();
        let kind = match self.away.iter().any(is_away) {
            true => ErrorKind::Unreachable,
            false => ErrorKind::Refused,
        };
        Err(Error::new(kind, by_node(&text, away)))
    }

    /// A token of the new set could be smaller than one of the old set, if the new clocks were
    /// behind by more than the delay.
    fn require_clocks(&self, tolerance_us: u64) -> Result<()> {
        let mut theirs: Vec<_> = self.in_old().map(|peer| Some(peer.node.offset)).collect();
        theirs.resize(self.change.old.nodes, None);
        let newcomers = self.peers.iter().filter(|peer| peer.side == Side::New);
        let newcomers: Vec<_> = newcomers.map(|peer| Some(peer.node.offset)).collect();
        if clocks_agree(&theirs, &newcomers, tolerance_us) {
            return Ok(());
        }
        let text = format!(
            "the clocks of the new nodes and of a majority of the old ones are not within \
             clock_tolerance={:?}; seconds ahead of this machine's",
            Duration::from_micros(tolerance_us)
        );
        let clocks = self.peers.iter().map(|Peer { node, .. }| {
            (&node.host, format!("{:.3}", node.offset.at_least as f64 / 1e6))
        });
        Err(Error::new(ErrorKind::Refused, by_node(&text, clocks)))
    }

    /// Whether an earlier run has moved a majority, so that only the rest remains.
    fn have_moved(&self) -> bool {
        let moved = self.in_old().filter(|peer| self.stage_of(peer) == Stage::Moved).count();
        moved >= majority(self.change.old.nodes)
    }

    fn stage_of(&self, peer: &Peer) -> Stage {
        self.change.stage(peer.node.text.as_deref())
    }

    /// Closes the old set, which grants and extends nothing from then on.
    async fn close(&mut self) -> Result<()> {
        let change = self.change;
        let failed = self.rewrite(
            |side| side != Side::New,
            |node, side| {
                let stage = change.stage(node.text.as_deref());
                stage.require_for(side)?;
                Ok((!stage.is_closed()).then(|| node.record(RecordState::Closed, change.old)))
            },
        );
        let failed = failed.await;
        let closed = self.in_old().filter(|peer| self.stage_of(peer).is_closed()).count();
        // A node that replies again by the time of the last step is closed with the others.
        let away = self.away.len();
        self.away.extend(failed);
        self.require_majority(closed, "are closed")?;
        self.away.truncate(away);
        Ok(())
    }

    /// Starts the delay of the new set's nodes, and closes the others in the new set's name.
    async fn move_on(&mut self, is_repeat: bool) -> Result<()> {
        let change = self.change;
        for turn in [Side::New, Side::Both, Side::Old] {
            let failed = self.rewrite(
                |side| side == turn,
                |node, side| {
                    let stage = change.stage(node.text.as_deref());
                    stage.require_for(side)?;
                    Ok(match side {
                        _ if is_repeat && stage == Stage::Moved => None,
                        Side::Old => Some(node.record(RecordState::Closed, change.new)),
                        Side::New | Side::Both => Some(node.record(RecordState::Born, change.new)),
                    })
                },
            );
            let failed = failed.await;
            if turn == Side::Old {
                self.away.extend(failed);
            } else if let Some((host, error)) = failed.into_iter().next() {
                let message = format!(
                    "{}; the old set is closed and the new one not opened: run it again",
                    about(&host, error.message())
                );
                return Err(Error::new(error.kind(), message).retryable(error.is_retryable()));
            }
        }
        Ok(())
    }

    /// Rewrites the records of all nodes of some sides at once; the nodes that failed.
    async fn rewrite(
        &mut self,
        of: impl Fn(Side) -> bool,
        next: impl Fn(&NodeConnection, Side) -> Result<Option<IncarnationRecord>>,
    ) -> Vec<(String, Error)> {
        let next = &next;
        let chosen = self.peers.iter_mut().filter(|peer| of(peer.side));
        let writing = chosen.map(async |Peer { node, side }| {
            let written = node.rewrite(|node| next(node, *side)).await;
            written.err().map(|error| (node.host.to_string(), error))
        });
        join_all(writing).await.into_iter().flatten().collect()
    }

    fn opens_in(&self) -> Duration {
        let new = self.change.new;
        let rest = |peer: &Peer| match peer.node.membership(new) {
            Membership::Quarantined(rest) => rest,
            membership if membership.is_open() => Duration::ZERO,
            _ => new.delay,
        };
        let ours = self.peers.iter().filter(|peer| peer.side != Side::Old);
        ours.map(rest).max().unwrap_or_default()
    }
}
