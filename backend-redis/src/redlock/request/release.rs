//! Releases: of rounds that were not won, of what was granted, and of queue entries, at every node
//! that may have something of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::state::{Phase, QuorumClaim, ReleaseRequests, RoundResidue, State};
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::pending_releases::{PendingRelease, ReleaseKind, release_round};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::release_tally::WasHeld;

/// How long a node keeps the queue entry of a waiter whose client is silent.
pub(super) const WAITER_TTL: Duration = Duration::from_secs(5);

/// How soon a roll-back that a node has refused is repeated; each further time twice as late, up to ten times.
const ROLLBACK_RETRY: Duration = Duration::from_millis(100);

/// How long the last nodes are waited for, once a majority has done what was asked.
pub(super) const STRAGGLER_GRACE: Duration = Duration::from_millis(20);

impl QuorumClaim {
    /// Has a task release what rounds acquired that were not won, if nodes may have any; the waiter stays queued if the
    /// claim queues.
    pub(super) fn roll_back(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        if let Phase::Voting(_) = state.phase {
            state.phase = Phase::Idle;
        }
        state.end_votes(self.queues(), self.quorum.now() + self.claim.ttl().max(WAITER_TTL));
        if state.residues.is_empty() {
            return false;
        }
        self.left.notify_one();
        if state.roll_backs.is_none() {
            let requests = ReleaseRequests::new(self.quorum.majority());
            state.roll_backs = Some(requests.written.clone());
            self.quorum.runtime.spawn(self.clone().keep_rolling_back(requests));
        }
        true
    }

    /// Waits until a majority of the nodes that can be reached has nothing of earlier rounds, and a moment for the others.
    pub(super) async fn until_rolled_back(&self) {
        let quorum = &self.quorum;
        let reachable = quorum.members.len() - quorum.unreachable().len();
        let few = reachable.saturating_sub(quorum.majority());
        for (most, limit) in [(few, quorum.node_timeout), (0, STRAGGLER_GRACE)] {
            let waiting = async {
                loop {
                    let changed = self.rolled_back.notified();
                    let is_open = {
                        let state = self.state();
                        let open =
                            state.left_at().iter().filter(|it| !state.refusals.contains_key(it));
                        open.count() > most
                    };
                    if !is_open {
                        return;
                    }
                    changed.await;
                }
            };
            let _ = timeout(limit, waiting).await;
        }
    }

    /// Asks each node that may have something for one roll-back at a time, until all have confirmed theirs, or what they
    /// had has ended. Ends with the grant, with which the rest is released, or the release.
    async fn keep_rolling_back(self: Arc<Self>, mut requests: ReleaseRequests) {
        let (mut asked, mut failed) = (NodeSet::default(), NodeSet::default());
        let mut pause = ROLLBACK_RETRY;
        let mut again = pin!(sleep(Duration::ZERO));
        loop {
            self.ask_to_roll_back(&mut requests, &mut asked);
            self.rolled_back.notify_waiters();
            // At the moment of sending: a claim that has left its queues must not return to them.
            if !requests.send(|| self.while_acquiring()).await {
                return;
            }
            if requests.is_empty() && failed.is_empty() {
                let mut state = self.state();
                if state.residues.iter().all(|residue| !state.phase.abandons(residue)) {
                    state.roll_backs = None;
                    return;
                }
            }
            tokio::select! {
                reply = requests.next(), if !requests.is_empty() => match reply {
                    Some((node, Ok((identity, _)))) => {
                        let mut state = self.state();
                        state.rolled_back(&identity, node);
                        state.refusals.remove(&node);
                        asked.remove(node);
                    }
                    Some((node, Err(error))) => {
                        self.state().refusals.insert(node, error);
                        if failed.is_empty() {
                            again.as_mut().reset(Instant::now() + pause);
                            pause = (2 * pause).min(ROLLBACK_RETRY * 10);
                        }
                        failed.insert(node);
                    }
                    None => {}
                },
                () = &mut again, if !failed.is_empty() => {
                    asked = asked - std::mem::take(&mut failed);
                }
                () = self.left.notified() => {}
            }
        }
    }

    /// The state, while rounds may begin and be rolled back.
    fn while_acquiring(&self) -> Option<impl Sized> {
        Some(self.state()).filter(|state| matches!(state.phase, Phase::Idle | Phase::Voting(_)))
    }

    /// Adds the roll-backs at nodes that can be reached and are not `asked`.
    fn ask_to_roll_back(self: &Arc<Self>, requests: &mut ReleaseRequests, asked: &mut NodeSet) {
        let (mut state, now) = (self.state(), self.quorum.now());
        let State { phase, residues, .. } = &mut *state;
        residues.retain(|residue| !phase.abandons(residue) || now < residue.ends);
        self.defer_to_unreachable(&mut state, self.quorum.unreachable(), Phase::abandons);
        let left = state.left_at();
        state.refusals.retain(|node, _| left.contains(*node));
        let State { phase, residues, arrival, .. } = &*state;
        let arrival =
            arrival.filter(|_| self.queues()).map(|at| at.to_string()).unwrap_or_default();
        for RoundResidue { identity, nodes, .. } in residues.iter().filter(|it| phase.abandons(it))
        {
            let nodes = *nodes - *asked;
            *asked |= nodes;
            self.ask_to_release(requests, identity, nodes, Some(&arrival));
        }
    }

    /// Starts the release of everything that nodes may have. From the first call on, nothing is
    /// requested any more.
    pub(super) async fn release_all(self: &Arc<Self>) -> ReleaseRequests {
        let mut requests = FanOut::new(self.quorum.majority());
        {
            let mut state = self.state();
            state.begin_release(&self.waiter, self.queues());
            for RoundResidue { identity, nodes, .. } in &state.residues {
                self.ask_to_release(&mut requests, identity, *nodes, None);
            }
        }
        self.left.notify_one();
        // Under the lock, so that no extension is sent after it.
        requests.send(|| Some(self.state())).await;
        requests
    }

    /// Has `nodes` remove a round: its roll-back, if there is an `arrival`, which is empty or that of its waiter.
    fn ask_to_release(
        self: &Arc<Self>,
        requests: &mut ReleaseRequests,
        identity: &Arc<str>,
        nodes: NodeSet,
        arrival: Option<&str>,
    ) {
        for node in nodes.iter() {
            let (claim, identity) = (self.clone(), identity.clone());
            let arrival = arrival.map(str::to_owned);
            requests.ask(node, |ticket| async move {
                let batches = &claim.quorum.members[node].batches;
                let waiter = if claim.queues() { &*claim.waiter } else { "" };
                let kind = arrival.as_deref().map_or(ReleaseKind::Leave, ReleaseKind::RollBack);
                let (keys, round) = (&claim.keys, identity.as_bytes());
                let had_it =
                    release_round(batches, Some(ticket), keys, round, waiter, kind).await?;
                Ok((identity, had_it))
            });
        }
    }

    /// Records a node's reply to a release.
    pub(super) fn record_release(&self, node: usize, identity: &Arc<str>, had_it: bool) {
        let quorum = &self.quorum;
        quorum.members[node].record_reply(quorum.now());
        let mut state = self.state();
        state.remove_residue(identity, node);
        if let Some(release) = state.phase.release() {
            release.record(node, identity, had_it);
        }
    }

    /// The result of the release: whether everything is released, and whether the lock was held.
    /// Unreachable nodes are not waited for while a majority is reachable: their releases are sent
    /// when they are back.
    pub(super) fn settle_release(&self) -> (bool, WasHeld) {
        let quorum = &self.quorum;
        let unreachable = quorum.unreachable();
        let mut state = self.state();
        if unreachable.len() < quorum.majority() {
            self.defer_to_unreachable(&mut state, unreachable, |_, _| true);
        }
        let is_done = state.residues.is_empty();
        let silent = if is_done { unreachable } else { NodeSet::default() };
        (is_done, state.phase.was_held(quorum.members.len(), silent))
    }

    /// Defers what `unreachable` nodes have of some rounds, and of their waiter in the queues, until
    /// they are back.
    fn defer_to_unreachable(
        &self,
        state: &mut State,
        unreachable: NodeSet,
        is_chosen: impl Fn(&Phase, &RoundResidue) -> bool,
    ) {
        let State { phase, residues, .. } = state;
        for residue in residues.iter_mut().filter(|residue| is_chosen(phase, residue)) {
            for node in (residue.nodes & unreachable).iter() {
                self.quorum.members[node].defer_release(PendingRelease {
                    keys: self.keys.clone(),
                    identity: residue.identity.clone(),
                    waiter: self.waiter.clone(),
                    expires: self.quorum.now() + self.claim.ttl().max(WAITER_TTL),
                });
            }
            residue.nodes = residue.nodes - unreachable;
        }
        residues.retain(|residue| !residue.nodes.is_empty());
    }
}
