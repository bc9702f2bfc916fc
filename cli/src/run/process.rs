//! The command's processes: how they are started, found, signalled, ended and reaped.
//!
//! [`child`] is the wrapper's side and [`watchdog`] the other process; [`ipc`] is between them. Both
//! signal the command's [`tree`] of processes, which is made from the [`list`] of all, and reap
//! [`orphans`].

pub(crate) mod child;
pub(crate) mod ipc;
mod list;
pub(crate) mod orphans;
pub(crate) mod tree;
pub(crate) mod watchdog;
