//! Changing the set of nodes, in the order that [`change`](super::change) explains.
//!
//! Nothing is written before every node of the new set and a majority of the old one have
//! answered, and a repeat after an interruption finishes what was begun.

use std::fmt::Write as _;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;

use super::change::{Change, Stage, clocks_agree};
use super::node::{NodeConnection, WallClock};
use super::part::Membership;
use super::{at, explain_at, parse, reach_all, refuse_twins};
use crate::redlock::config::RedlockStore;
use crate::redlock::incarnation::{IncarnationRecord, RecordState};
use crate::redlock::votes::majority;

/// What a change of the set came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Replaced {
    /// How long it takes until all nodes of the new set take part.
    pub opens_in: Duration,
    /// The nodes that have left the set and could not be told, and why. They must never run again
    /// with the data they have.
    pub not_closed: Vec<(String, Error)>,
}

/// Changes the set of nodes from `old_url`'s to `new_url`'s, whose `set_epoch` is one more.
///
/// Closes a majority of the old set, so that nothing more is granted or extended there, and only
/// then has the new set's nodes begin their `restart_delay`, during which the old set's locks end.
/// If the old set's delay is longer, the difference is waited for in between. Clients of the old
/// set are refused from then on; clients of the new set must not be started before.
///
/// # Errors
/// Nothing has been changed yet, if it is one of these:
/// - [`ErrorKind::InvalidArgument`]: `set_epoch` does not rise by one, or a URL cannot be meant.
/// - [`ErrorKind::Refused`]: a node belongs to a third set, two nodes are one server, or the clocks
///   of the new set and of a majority of the old one do not agree within `clock_tolerance`.
/// - [`ErrorKind::Unreachable`]: a node of the new set does not answer, or a majority of the old
///   one does not.
///
/// A later error names the node that failed. Doing it again finishes it.
///
/// # Cancel safety
/// Dropped half-way, neither set may grant anything. Doing it again finishes it.
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

/// Which sets a node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Old,
    Both,
    New,
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
    /// The nodes of the old set that cannot be asked, or not be closed.
    away: Vec<(String, Error)>,
}

impl Sets {
    async fn reach(old: &RedlockStore, new: &RedlockStore, change: Change) -> Result<Sets> {
        let (explain_old, explain_new) = (explain_at(old), explain_at(new));
        let old_options = old.options().map_err(&explain_old)?;
        let new_options = new.options().map_err(&explain_new)?;
        let watch = WallClock::start();
        let (theirs, ours) =
            tokio::join!(reach_all(old, &old_options, watch), reach_all(new, &new_options, watch));
        let mut newcomers = Vec::new();
        for (host, node) in ours {
            newcomers.push(node.map_err(|error| explain_new(at(&host, &error)))?);
        }
        refuse_twins(&newcomers).map_err(&explain_new)?;
        let (mut nodes, mut away) = (Vec::new(), Vec::new());
        for (host, node) in theirs {
            match node {
                Ok(node) => nodes.push(node),
                Err(error) => away.push((host.to_string(), error)),
            }
        }
        refuse_twins(&nodes).map_err(&explain_old)?;
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

    /// Whether it can be done, before anything is.
    fn check(&mut self, old: &RedlockStore, new: &RedlockStore) -> Result<()> {
        let mut peers = Vec::new();
        for peer in std::mem::take(&mut self.peers) {
            let stage = self.change.stage(peer.node.text.as_deref());
            let fits = match peer.side {
                Side::New => stage.require_free(),
                Side::Old | Side::Both => stage.require_old(),
            };
            match (fits, peer.side) {
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
        let mut text = format!(
            "{count} of {nodes} nodes of the old set {what}, and {} must be before the new set is \
             opened; do it again when more can:",
            majority(nodes)
        );
        for (host, error) in &self.away {
            // Writing to a text cannot fail.
            let _ = write!(text, " {host}: {};", error.message());
        }
        text.truncate(text.len() - 1);
        let is_away = |(_, error): &(String, Error)| error.is_retryable();
        let kind = match self.away.iter().any(is_away) {
            true => ErrorKind::Unreachable,
            false => ErrorKind::Refused,
        };
        Err(Error::new(kind, text))
    }

    /// A token of the new set would be smaller than one of the old set's, if its clocks were as far
    /// behind as its delay is long.
    fn require_clocks(&self, tolerance_us: u64) -> Result<()> {
        let mut theirs: Vec<_> = self.in_old().map(|peer| Some(peer.node.offset)).collect();
        theirs.resize(self.change.old.nodes, None);
        let newcomers = self.peers.iter().filter(|peer| peer.side == Side::New);
        let newcomers: Vec<_> = newcomers.map(|peer| Some(peer.node.offset)).collect();
        if clocks_agree(&theirs, &newcomers, tolerance_us) {
            return Ok(());
        }
        let mut text = format!(
            "the clocks of the new nodes and of a majority of the old ones are not within \
             clock_tolerance={:?}; seconds ahead of this machine's:",
            Duration::from_micros(tolerance_us)
        );
        for Peer { node, .. } in &self.peers {
            let _ = write!(text, " {}: {:.3};", node.host, node.offset.at_least as f64 / 1e6);
        }
        text.truncate(text.len() - 1);
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// Whether an earlier run has come so far that only the rest is to be done.
    fn have_moved(&self) -> bool {
        let moved = self.in_old().filter(|peer| self.stage_of(peer) == Stage::Moved).count();
        moved >= majority(self.change.old.nodes)
    }

    fn stage_of(&self, peer: &Peer) -> Stage {
        self.change.stage(peer.node.text.as_deref())
    }

    /// Nothing is granted or extended by the old set from here on.
    async fn close(&mut self) -> Result<()> {
        let change = self.change;
        let failed = self.rewrite(
            |side| side != Side::New,
            |node, _| {
                let stage = change.stage(node.text.as_deref());
                stage.require_old()?;
                Ok((!stage.is_closed()).then(|| node.record(RecordState::Closed, change.old)))
            },
        );
        let failed = failed.await;
        let closed = self.in_old().filter(|peer| self.stage_of(peer).is_closed()).count();
        // Who answers again by then is told with the others.
        let away = self.away.len();
        self.away.extend(failed);
        self.require_majority(closed, "are closed")?;
        self.away.truncate(away);
        Ok(())
    }

    /// Has the new set's nodes begin their delay, and tells the others that they are out.
    async fn move_on(&mut self, is_repeat: bool) -> Result<()> {
        let change = self.change;
        for turn in [Side::New, Side::Both, Side::Old] {
            let failed = self.rewrite(
                |side| side == turn,
                |node, side| {
                    let stage = change.stage(node.text.as_deref());
                    match side {
                        Side::New => stage.require_free()?,
                        Side::Old | Side::Both => stage.require_old()?,
                    }
                    Ok(match side {
                        _ if is_repeat && stage == Stage::Moved => None,
                        Side::Old => Some(node.record(RecordState::Closed, change.new)),
                        Side::New | Side::Both => Some(node.record(RecordState::Born, change.new)),
                    })
                },
            );
            let mut failed = failed.await;
            match turn {
                Side::Old => self.away.append(&mut failed),
                Side::New | Side::Both => {
                    if let Some((host, error)) = failed.into_iter().next() {
                        let message = format!(
                            "{host}: {}; the old set is closed and the new one not opened: do it \
                             again",
                            error.message()
                        );
                        return Err(
                            Error::new(error.kind(), message).retryable(error.is_retryable())
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Rewrites the records of all nodes of some sides at once; what failed.
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
        let rest = |peer: &Peer| {
            let node = &peer.node;
            match Membership::of(node.text.as_deref(), &node.run_id, node.now_us, new) {
                Membership::Quarantined(rest) => rest,
                part if part.is_open() => Duration::ZERO,
                _ => new.delay,
            }
        };
        let ours = self.peers.iter().filter(|peer| peer.side != Side::Old);
        ours.map(rest).max().unwrap_or_default()
    }
}
