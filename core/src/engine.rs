//! The engine: acquiring, waiting, renewing, releasing and cleaning up, once for every store.

pub(crate) mod acquire;
pub(crate) mod base;
pub(crate) mod cleanup;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod downgrade;
pub(crate) mod handoff;
pub(crate) mod hold;
pub(crate) mod metrics;
pub(crate) mod own_hold;
pub(crate) mod owned_hold;
pub mod program;
pub(crate) mod renewal;
pub(crate) mod share;
pub(crate) mod telemetry;
pub(crate) mod wait;
