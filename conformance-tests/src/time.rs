//! Time in tests: a server's clock, a runtime that stands still, and whether this machine did.

pub(crate) mod clock;
pub(crate) mod frozen_runtime;
pub(crate) mod stall_detector;
