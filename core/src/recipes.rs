//! What is made of cells and locks, once for all stores.

pub(crate) mod barrier;
pub(crate) mod counter;
pub(crate) mod election;
pub(crate) mod ids;
pub(crate) mod latch;
pub(crate) mod once;
mod participants;
