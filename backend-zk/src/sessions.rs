//! The sessions of a client: how long each is relied on, its requests, and how many there are.

pub(crate) mod batch;
pub(crate) mod batched_request;
pub(crate) mod budget;
pub(crate) mod deferred_watches;
pub(crate) mod liveness;
pub(crate) mod pool;
pub(crate) mod queue_marks;
pub(crate) mod session;
