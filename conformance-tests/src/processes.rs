//! Other processes: peers that use a store from outside, and the registers that they write to.

pub(crate) mod database;
pub(crate) mod peer;
pub(crate) mod register;
pub mod workload;
