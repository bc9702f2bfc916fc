//! What an operator does with a set of nodes: declare it new, show its status, replace it.
//!
//! Each node is asked over a connection of its own, by a client that holds no locks. What a node's
//! incarnation record means is decided in [`membership`] and [`change`], which are pure.

mod change;
mod init;
mod membership;
mod nodes;
mod open;
mod replace;
mod status;

pub use init::init;
pub use membership::Membership;
pub use open::open_when_due;
pub use replace::{Replaced, replace};
pub use status::{LockSeen, NodeSeen, NodeStatus, status};
