//! Other processes: peers that use a store from outside, and the registers that they write to.

pub(crate) mod database;
pub(crate) mod peer;
pub(crate) mod register;
pub mod workload;

/// An error of this machine, in the words of the library's.
fn trouble(error: &impl std::fmt::Display) -> fencelock_core::Error {
    fencelock_core::Error::new(fencelock_core::ErrorKind::InvalidArgument, error.to_string())
}
