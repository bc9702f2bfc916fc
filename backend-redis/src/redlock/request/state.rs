//! One claim's state on the quorum, shared by its requests and the tasks that finish them.
//!
//! Each round has an identity of its own, which is never requested again once it was released: a
//! release that arrives late must not delete what a later round acquired.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use fencelock_core::batching::Priority;
use fencelock_core::sync::Mutex;
use fencelock_core::{Claim, Error, ErrorKind, IfBusy, Moment, Result};
use redis::Value;
use tokio::sync::Notify;

use crate::protocol::call::ScriptCall;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{Keys, of_round};
use crate::protocol::script::Script;
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::monitor::VoteRequest;
use crate::redlock::node::quorum::Quorum;
use crate::redlock::node::written::Written;
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::incarnation;
use crate::redlock::rules::release_tally::{ReleaseTally, WasHeld};
use crate::server::batch::Ticket;

/// One claim on a quorum.
pub(super) struct QuorumClaim {
    pub(super) quorum: Arc<Quorum>,
    pub(super) claim: Arc<Claim>,
    pub(super) keys: Keys,
    /// The claim's identity in the nodes' queues.
    pub(super) waiter: Arc<str>,
    pub(super) state: Mutex<State>,
    /// A round has left something behind, for the task that rolls back.
    pub(super) left: Notify,
    /// A node has rolled back.
    pub(super) rolled_back: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) rounds: u32,
    /// When the claim first asked, on the nodes' clocks, in µs.
    pub(super) arrival: Option<u64>,
    /// Consecutive rounds that no claim won.
    pub(super) splits: u32,
    /// The rounds of which nodes may have something, and these nodes.
    pub(super) residues: Vec<RoundResidue>,
    /// The nodes in whose queues the waiter may be.
    pub(super) queued_at: NodeSet,
    /// The last round, with what was written of its requests; none once that is settled.
    pub(super) votes: Option<(Arc<str>, Arc<Written>)>,
    /// What the task that rolls back has written, from its start to its end or the grant. It is not a phase: the next
    /// round starts meanwhile, at nodes that have nothing of earlier ones. So a node has one roll-back at most under way.
    pub(super) roll_backs: Option<Arc<Written>>,
    /// Why nodes have not rolled back what they still have.
    pub(super) refusals: BTreeMap<usize, Error>,
    /// The requests of the extensions that are under way: a late one is not waited for.
    pub(super) extensions: Vec<Arc<Written>>,
}

/// What the claim does on the quorum:
///
/// ```text
///         begin_round           a majority has voted
///   Idle ------------> Voting -----------------------> Granted
///    ^  <------------    |                                |
///    |    roll_back      |                                |
///    +-------------------+--------------------------------+---> Releasing
///                                                 begin_release
/// ```
#[derive(Default)]
pub(super) enum Phase {
    /// Between rounds.
    #[default]
    Idle,
    /// The round with this identity is under way, or its attempt was dropped.
    Voting(Arc<str>),
    Granted(Arc<Grant>),
    /// Everything is being released: nothing is requested any more.
    Releasing(Release),
}

/// A round of which nodes may have something.
pub(super) struct RoundResidue {
    pub(super) identity: Arc<str>,
    pub(super) nodes: NodeSet,
    /// By then it has ended by itself; never, while it is under way, nor if it was granted.
    pub(super) ends: Moment,
}

/// What a won round was granted.
pub(super) struct Grant {
    pub(super) identity: Arc<str>,
    pub(super) token: String,
    /// By node.
    pub(super) possession: Mutex<Vec<Possession>>,
}

/// Whether a node has the grant, as far as is known. Where it had the grant in this incarnation, the
/// grant is not reinstalled: an operator may have removed it.
pub(super) enum Possession {
    No,
    /// The node was asked for it in this incarnation, and its reply was not waited for.
    Unconfirmed(Arc<str>),
    /// The node confirmed it in this incarnation.
    Confirmed(Arc<str>),
}

/// A release, from its first request on.
pub(super) struct Release {
    /// The identity of the round that was granted.
    granted: Option<Arc<str>>,
    tally: ReleaseTally,
    /// The requests that the last call did not wait for.
    in_flight: Option<ReleaseRequests>,
}

/// Releases of rounds; each result is the round's identity, and whether the node had it.
pub(super) type ReleaseRequests = FanOut<'static, Result<(Arc<str>, bool)>>;

impl Phase {
    /// Whether the round is to be rolled back. A release takes care of all rounds by itself.
    pub(super) fn abandons(&self, round: &RoundResidue) -> bool {
        match self {
            Phase::Idle => true,
            Phase::Voting(identity) => *identity != round.identity,
            Phase::Granted(grant) => grant.identity != round.identity,
            Phase::Releasing(_) => false,
        }
    }

    pub(super) fn release(&mut self) -> Option<&mut Release> {
        match self {
            Phase::Releasing(release) => Some(release),
            Phase::Idle | Phase::Voting(_) | Phase::Granted(_) => None,
        }
    }

    pub(super) fn take_in_flight(&mut self) -> Option<ReleaseRequests> {
        self.release()?.in_flight.take()
    }

    /// Keeps a release's requests that have not been replied to, for its next call.
    pub(super) fn keep_in_flight(&mut self, requests: ReleaseRequests) {
        if let Some(release) = self.release() {
            release.in_flight = Some(requests);
        }
    }

    /// Whether the lock was held when its release began.
    pub(super) fn was_held(&mut self, nodes: usize, unreachable: NodeSet) -> WasHeld {
        self.release().map_or(WasHeld::Open, |release| release.tally.was_held(nodes, unreachable))
    }
}

impl State {
    /// Records that `nodes` may have something of the round.
    pub(super) fn add_residue(&mut self, identity: &Arc<str>, nodes: NodeSet, ends: Moment) {
        match self.residues.iter_mut().find(|residue| residue.identity == *identity) {
            Some(residue) => {
                residue.nodes |= nodes;
                residue.ends = residue.ends.max(ends);
            }
            None => self.residues.push(RoundResidue { identity: identity.clone(), nodes, ends }),
        }
    }

    /// Records that `node` has nothing of the round.
    pub(super) fn remove_residue(&mut self, identity: &Arc<str>, node: usize) {
        for residue in self.residues.iter_mut().filter(|residue| residue.identity == *identity) {
            residue.nodes.remove(node);
        }
        self.residues.retain(|residue| !residue.nodes.is_empty());
    }

    /// The requests of the last round that are not written never will be, and leave nothing behind. At which nodes. What
    /// the others left behind `ends` by itself.
    pub(super) fn end_votes(&mut self, queues: bool, ends: Moment) -> NodeSet {
        let mut unwritten = NodeSet::default();
        let Some((identity, written)) = self.votes.take() else { return unwritten };
        let nodes = written.end();
        for residue in self.residues.iter_mut().filter(|residue| residue.identity == identity) {
            unwritten |= residue.nodes - nodes;
            residue.nodes = residue.nodes & nodes;
            residue.ends = ends;
        }
        self.residues.retain(|residue| !residue.nodes.is_empty());
        if queues {
            self.queued_at |= nodes;
        }
        unwritten
    }

    /// The nodes that may have something of earlier rounds, which would block the next one.
    pub(super) fn left_at(&self) -> NodeSet {
        self.residues.iter().fold(NodeSet::default(), |all, residue| all | residue.nodes)
    }

    /// Why `node` is not asked in the next round, if it may have something of an earlier one.
    pub(super) fn left_out(&self, node: usize) -> Option<Error> {
        let message = "it has yet to roll back an earlier round of this claim";
        let refusal = || self.refusals.get(&node).cloned();
        let why = || refusal().unwrap_or_else(|| Error::new(ErrorKind::Unreachable, message));
        self.left_at().contains(node).then(why)
    }

    /// Records that `node` has rolled a round back. Once a release has begun, only the reply to that
    /// counts: a roll-back may have left the waiter in the queue.
    pub(super) fn rolled_back(&mut self, identity: &Arc<str>, node: usize) {
        if !matches!(self.phase, Phase::Releasing(_)) {
            self.remove_residue(identity, node);
        }
    }

    /// Whether an extension may be sent to `nodes`. Each of them may reinstall the grant.
    pub(super) fn may_extend(&mut self, identity: &Arc<str>, nodes: NodeSet) -> bool {
        let is_granted =
            matches!(&self.phase, Phase::Granted(grant) if grant.identity == *identity);
        if is_granted {
            self.add_residue(identity, nodes, Moment::NEVER);
        }
        is_granted
    }

    /// Begins the release of everything that nodes may have, or prepares to repeat it.
    pub(super) fn begin_release(&mut self, waiter: &str, queues: bool) {
        self.end_votes(queues, Moment::NEVER);
        // What came after it would queue the waiter, or reinstall the grant again.
        for written in self.roll_backs.take().into_iter().chain(self.extensions.drain(..)) {
            written.end();
        }
        let granted = match &self.phase {
            Phase::Idle | Phase::Voting(_) => None,
            Phase::Granted(grant) => Some(grant.identity.clone()),
            Phase::Releasing(release) => release.granted.clone(),
        };
        let residue =
            self.residues.iter().find(|residue| Some(&residue.identity) == granted.as_ref());
        let nodes = residue.map_or(NodeSet::default(), |residue| residue.nodes);
        if let Phase::Releasing(release) = &mut self.phase {
            release.tally.ask_again(nodes);
            return;
        }
        let tally = ReleaseTally::of(nodes);
        self.phase = Phase::Releasing(Release { granted, tally, in_flight: None });
        // Any round's release also removes the waiter from the queue.
        let queued_at = std::mem::take(&mut self.queued_at);
        if !queued_at.is_empty() {
            self.add_residue(&of_round(waiter, self.rounds).into(), queued_at, Moment::NEVER);
        }
    }
}

impl Release {
    pub(super) fn record(&mut self, node: usize, identity: &Arc<str>, had_it: bool) {
        if self.granted.as_ref() == Some(identity) {
            self.tally.record(node, had_it);
        }
    }
}

impl Grant {
    pub(super) fn possession(&self) -> MutexGuard<'_, Vec<Possession>> {
        self.possession.lock()
    }

    /// Whether the grant may be reinstalled on `node` in this incarnation.
    pub(super) fn may_reinstall(&self, node: usize, incarnation: &str) -> bool {
        match &self.possession()[node] {
            Possession::No => true,
            Possession::Unconfirmed(known) | Possession::Confirmed(known) => {
                **known != *incarnation
            }
        }
    }
}

impl QuorumClaim {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn queues(&self) -> bool {
        self.claim.if_busy() == IfBusy::Queue
    }

    /// Calls one of the scripts that check the node's incarnation record, and reads its reply.
    pub(super) async fn call<T, const N: usize>(
        &self,
        node: usize,
        request: &VoteRequest,
        (ticket, priority): (Arc<dyn Ticket>, Priority),
        script: &'static Script,
        values: [&str; N],
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T> {
        let member = &self.quorum.members[node];
        let [lock, queue, token] = self.keys.all();
        let keys = &[lock, queue, token, incarnation::KEY];
        let call = ScriptCall { script, keys, values: &values.map(str::as_bytes) };
        let reply = member.batches.call(call, priority, Some(ticket)).await?;
        if reply == Value::Int(-1) {
            member.incarnation_changed(request);
            let message = "it has lost its data, or belongs to another set of nodes";
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        member.record_reply(self.quorum.now());
        read(&reply).ok_or_else(|| {
            member.connection().mark_broken("it sent an unexpected reply");
            protocol_error(script.name)
        })
    }
}

/// Reads the reply 1 or 0.
pub(super) fn read_bool(reply: &Value) -> Option<bool> {
    match reply {
        Value::Int(1) => Some(true),
        Value::Int(0) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITER: &str = "x 10000 client 0123456789abcdef0123456789abcdef label";

    fn waiting() -> (State, Arc<str>) {
        let round: Arc<str> = of_round(WAITER, 1).into();
        let mut state = State { rounds: 1, ..State::default() };
        state.add_residue(&round, NodeSet::of([0]), Moment::NEVER);
        state.queued_at = NodeSet::of([0, 1, 2]);
        (state, round)
    }

    #[test]
    fn a_late_reply_to_a_roll_back_does_not_end_the_release_of_the_queue_entry() {
        let (mut state, round) = waiting();
        // The roll-back that keeps the waiter queued was sent to node 0; its reply is under way.
        state.begin_release(WAITER, true);
        // As `keep_rolling_back` does when it arrives.
        state.rolled_back(&round, 0);
        let left = state.residues.iter().fold(NodeSet::default(), |all, one| all | one.nodes);
        assert!(left.contains(0), "the waiter may still be in node 0's queue: {left:?}");
    }

    #[test]
    fn no_extension_is_sent_after_a_release() {
        let (mut state, round) = waiting();
        assert!(!state.may_extend(&round, NodeSet::of([1])), "not granted yet");
        let grant =
            Grant { identity: round.clone(), token: "1".to_owned(), possession: Mutex::default() };
        state.phase = Phase::Granted(Arc::new(grant));
        assert!(state.may_extend(&round, NodeSet::of([1])));
        assert!(state.residues[0].nodes == NodeSet::of([0, 1]), "to be released there, too");
        state.begin_release(WAITER, true);
        assert!(!state.may_extend(&round, NodeSet::of([1])));
    }

    /// Votes that wait in this process for longer than a TTL leave something behind all the same.
    #[test]
    fn a_round_ends_by_itself_only_after_its_votes_have_ended() {
        let (mut state, round) = waiting();
        let (written, ends) = (Written::new(1), Moment::from_nanos(9));
        assert!(written.ticket(0).redeem());
        state.votes = Some((round, written));
        state.end_votes(true, ends);
        assert_eq!(state.residues[0].ends, ends);
    }
}
