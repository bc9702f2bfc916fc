//! A set of a quorum's nodes, by their index in the URL.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u16);

impl NodeSet {
    /// The number of nodes that have a bit.
    pub(crate) const CAPACITY: usize = u16::BITS as usize;

    /// The nodes that `nodes` yields.
    pub(crate) fn of(nodes: impl IntoIterator<Item = usize>) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }

    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & 1 << node != 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..NodeSet::CAPACITY).filter(move |node| self.contains(*node))
    }
}

/// The union.
impl BitOr for NodeSet {
    type Output = NodeSet;

    fn bitor(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }
}

impl BitOrAssign for NodeSet {
    fn bitor_assign(&mut self, other: NodeSet) {
        self.0 |= other.0;
    }
}

/// The intersection.
impl BitAnd for NodeSet {
    type Output = NodeSet;

    fn bitand(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }
}

/// The difference.
impl Sub for NodeSet {
    type Output = NodeSet;

    fn sub(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_nodes_that_were_inserted_and_not_removed() {
        let mut set = NodeSet::of([0, 3, 14, 3]);
        assert_eq!((set.len(), set.is_empty()), (3, false));
        set.remove(3);
        set.remove(7);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 14]);
        assert!(set.contains(14) && !set.contains(3));
        assert_eq!(format!("{set:?}"), "{0, 14}");
        assert!(NodeSet::default().is_empty());
    }

    #[test]
    fn union_intersection_and_difference_are_those_of_sets() {
        let (some, others) = (NodeSet::of([0, 1]), NodeSet::of([1, 2]));
        assert_eq!(some | others, NodeSet::of([0, 1, 2]));
        assert_eq!(some & others, NodeSet::of([1]));
        assert_eq!(some - others, NodeSet::of([0]));
    }
}
