//! The nodes on the servers: those of claims and of locks, and what can be read from them.

pub(crate) mod held_node;
pub(crate) mod node;
pub(crate) mod scratch;
pub(crate) mod snapshot;
pub(crate) mod token;
