//! The nodes on the servers: those of claims, of locks and of cells, and what can be read from them.

pub(crate) mod cell;
pub(crate) mod held_node;
pub(crate) mod node;
pub(crate) mod scratch;
pub(crate) mod snapshot;
pub(crate) mod token;
