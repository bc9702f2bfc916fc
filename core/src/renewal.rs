//! Renewal of what is held, and the periodic checks of waiters.

mod schedule;
pub(crate) mod timing;
pub(crate) mod worker;
