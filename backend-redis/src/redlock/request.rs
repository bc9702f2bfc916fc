//! One claim's requests to the nodes: rounds of votes, extensions, releases.

pub(crate) mod acquire;
pub(crate) mod acquisition;
mod extend;
mod release;
mod state;
pub(crate) mod waiter_check;
