//! Moments on a store's clock, the clocks, and the pauses before retries.

pub(crate) mod backoff;
pub(crate) mod boot_clock;
pub(crate) mod moment;
