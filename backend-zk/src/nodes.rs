//! The nodes on the servers: a claim's, a lock's, and what they show.

pub(crate) mod held_node;
pub(crate) mod node;
pub(crate) mod scratch;
pub(crate) mod snapshot;
