//! What the nodes replied to the release of a grant.

use super::votes::majority;
use crate::redlock::node_set::NodeSet;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReleaseTally {
    had_it: NodeSet,
    lacked_it: NodeSet,
    /// A lost reply may have said that the node had it.
    unsure: NodeSet,
    asked: NodeSet,
    asked_again: NodeSet,
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
    /// The grant's release is sent to `nodes`.
    pub(crate) fn ask(&mut self, nodes: NodeSet) {
        self.asked_again |= nodes & self.asked;
        self.asked |= nodes;
    }

    /// The nodes that were asked to release the grant.
    pub(crate) fn asked(self) -> NodeSet {
        self.asked
    }

    pub(crate) fn record(&mut self, node: usize, had_it: bool) {
        // A node that was not asked for the grant had a queue entry at most.
        if !self.asked.contains(node) {
            return;
        }
        if had_it {
            self.had_it.insert(node);
        } else if self.asked_again.contains(node) {
            self.unsure.insert(node);
        } else {
            self.lacked_it.insert(node);
        }
    }

    /// `No` once too few nodes can have had it; `Yes` once a majority had it, or may have had it,
    /// as `unreachable` nodes may. A node that lacked it when it was asked does not count.
    pub(crate) fn was_held(self, nodes: usize, unreachable: NodeSet) -> WasHeld {
        let needed = majority(nodes);
        let lacking = nodes - (self.asked - self.lacked_it).len();
        if lacking > nodes - needed {
            WasHeld::No
        } else if (self.had_it | self.unsure | unreachable).len() >= needed {
            WasHeld::Yes
        } else {
            WasHeld::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(nodes: [usize; 3]) -> ReleaseTally {
        let mut tally = ReleaseTally::default();
        tally.ask(NodeSet::of(nodes));
        tally
    }

    #[test]
    fn a_release_is_settled_by_a_majority() {
        let mut tally = asked([0, 1, 2]);
        tally.record(0, true);
        tally.record(1, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::Open);
        assert_eq!(tally.was_held(3, NodeSet::of([2])), WasHeld::Yes, "node 2 may have had it");
        tally.record(2, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::No);
    }

    #[test]
    fn a_node_asked_twice_may_have_had_it() {
        let mut tally = asked([0, 1, 2]);
        tally.record(0, true);
        tally.ask(NodeSet::of([1]));
        tally.record(1, false);
        assert_eq!(tally.was_held(3, NodeSet::default()), WasHeld::Yes);
    }
}
