//! What the nodes replied to the release of a grant.

use super::token::MAX_NODES;
use super::votes::majority;
use crate::redlock::node_set::NodeSet;

/// By node, what is known of its part of the grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReleaseTally([GrantAtNode; MAX_NODES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GrantAtNode {
    /// The node never had it: it is not asked to release it.
    #[default]
    Never,
    /// The node was asked to release it.
    Asked,
    /// The node was asked before, and that reply was lost.
    AskedAgain,
    Had,
    /// The node no longer has it, as the lost reply to an earlier request may have said.
    MayHaveHad,
    Lacked,
}

/// Whether a majority had what was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WasHeld {
    Yes,
    No,
    /// Too few nodes have replied.
    Open,
}

impl ReleaseTally {
    /// The tally of a grant that `nodes` may have and are asked to release.
    pub(crate) fn of(nodes: NodeSet) -> ReleaseTally {
        let mut tally = ReleaseTally::default();
        nodes.iter().for_each(|node| tally.0[node] = GrantAtNode::Asked);
        tally
    }

    /// The release is repeated at `nodes`.
    pub(crate) fn ask_again(&mut self, nodes: NodeSet) {
        for node in nodes.iter() {
            if self.0[node] == GrantAtNode::Asked {
                self.0[node] = GrantAtNode::AskedAgain;
            }
        }
    }

    pub(crate) fn record(&mut self, node: usize, had_it: bool) {
        let known = &mut self.0[node];
        *known = match *known {
            // It had a queue entry at most.
            GrantAtNode::Never => return,
            _ if had_it => GrantAtNode::Had,
            GrantAtNode::Asked => GrantAtNode::Lacked,
            GrantAtNode::AskedAgain => GrantAtNode::MayHaveHad,
            known => known,
        };
    }

    /// `No` once too few of the `nodes` can have had it; `Yes` once a majority had it, or may have
    /// had it, as `unreachable` nodes may. A node that lacked it when it was asked does not count.
    pub(crate) fn was_held(&self, nodes: usize, unreachable: NodeSet) -> WasHeld {
        use GrantAtNode::{Asked, AskedAgain, Had, Lacked, MayHaveHad, Never};
        let known = || self.0.iter().enumerate();
        let can_have = known().filter(|(_, known)| !matches!(known, Never | Lacked));
        let may_have = known().filter(|(node, known)| match known {
            Had | MayHaveHad => true,
            Asked | AskedAgain => unreachable.contains(*node),
            Never | Lacked => false,
        });
        if can_have.count() < majority(nodes) {
            WasHeld::No
        } else if may_have.count() >= majority(nodes) {
            WasHeld::Yes
        } else {
            WasHeld::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_settled_by_a_majority() {
        let mut tally = ReleaseTally::of(NodeSet::of([0, 1, 2]));
        tally.record(0, true);
        tally.record(1, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::Open);
        assert_eq!(tally.was_held(3, NodeSet::of([2])), WasHeld::Yes, "node 2 may have had it");
        tally.record(2, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::No);
    }

    #[test]
    fn a_node_asked_twice_may_have_had_it() {
        let mut tally = ReleaseTally::of(NodeSet::of([0, 1, 2]));
        tally.record(0, true);
        tally.ask_again(NodeSet::of([1]));
        tally.record(1, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::Yes);
    }
}
