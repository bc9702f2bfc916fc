//! The sessions of a client: their liveness, their requests, and how many there are.

pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod liveness;
pub(crate) mod pool;
pub(crate) mod session;
