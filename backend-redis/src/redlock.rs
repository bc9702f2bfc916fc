//! Locks on a majority of independent servers (Redlock), with two things besides: a node that lost
//! its data is kept out until nothing of before can be held, and fencing tokens rise over
//! majorities.
//!
//! What decides is pure, in `votes`, `token`, `clocks` and `record`, and checked by a model in
//! `redlock-model`. docs/guarantees.md has the timelines.
//! <https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>

mod backend;
pub mod clocks;
mod config;
mod contender;
mod debts;
mod deployment;
mod extension;
mod fan_out;
mod member;
mod monitor;
mod quorum;
pub mod record;
pub(crate) mod rejections;
mod release;
mod round;
mod shared;
pub mod token;
mod view;
pub mod votes;
pub(crate) mod waiters;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub(crate) use backend::read_look;
pub use config::RedlockStore;
pub use deployment::{
    LockSeen, Membership, NodeSeen, NodeStatus, Replaced, init, open_when_due, replace, status,
};
pub use incarnation::Deployment;
pub(crate) use monitor::read as read_sight;
pub(crate) use round::read_token;

/// `redlock://`.
pub const SCHEME: Scheme = Scheme {
    names: &["redlock", "rediss+redlock"],
    example: "redlock://H1:6379,H2:6379,H3:6379",
    connect,
    unanswered: None,
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let (store, settings) = RedlockStore::from_url(&url)?;
        store.locks(settings).await
    })
}
