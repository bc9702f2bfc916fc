//! The queue of a lock, without I/O: from names to paths, and from the names of nodes to an order.

pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod path;
