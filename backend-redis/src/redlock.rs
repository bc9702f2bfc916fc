//! Locks on a majority of independent servers (Redlock), with two additions: a node that lost its
//! data is excluded until no earlier lock can still be held, and fencing tokens rise over
//! majorities.
//!
//! What decides is pure, in `rules`, and checked by a model in `models`. `node` is one
//! client's view of the nodes, `request` one claim's requests to them, `admin` what an operator
//! does with them. docs/guarantees.md has the timelines.
//! <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>

mod admin;
mod backend;
mod config;
pub(crate) mod node;
mod node_set;
mod request;
pub(crate) mod rules;
mod scripts;

pub use admin::{
    LockSeen, Membership, NodeSeen, NodeStatus, Replaced, init, open_when_due, replace, status,
};
pub use config::{RedlockStore, SCHEME};
pub(crate) use node::record::read as read_record;
pub(crate) use request::acquire::read_token;
pub(crate) use request::waiter_check::read_waiter_check;
pub use rules::incarnation::Deployment;
pub use rules::{clocks, incarnation, token, votes};
pub use scripts::quorum_scripts;
