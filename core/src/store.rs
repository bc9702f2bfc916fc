//! The store's side: what a backend implements, and what the core hands to it.

pub mod batching;
pub(crate) mod cell_store;
pub(crate) mod cell_watches;
pub(crate) mod check;
pub(crate) mod claim;
pub(crate) mod distributed_lock;
pub(crate) mod erased;
mod grouping;
pub(crate) mod panics;
pub(crate) mod profile;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod scratch;
