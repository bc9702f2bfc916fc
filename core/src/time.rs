//! Moments on a store's clock, and the clocks.

pub(crate) mod boot_clock;
pub(crate) mod moment;
