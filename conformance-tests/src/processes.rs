//! Other processes: peers that use a store from outside, the registers that they write to, and how a
//! process is stopped.

pub(crate) mod peer;
pub(crate) mod register;
pub mod stopping;
pub mod workload;
