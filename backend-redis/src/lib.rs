//! The Redis store of [fencelock](https://docs.rs/fencelock): locks for everybody who reaches a
//! server, a server that Sentinel watches, or a cluster.
//!
//! A lock is a lease: the key of its name with a time to live, renewed at a third of it. Waiters
//! stand in a queue in the server, in the order of their arrival; a release hands the lock to the
//! next live one in the same atomic step and tells that one alone. Fencing tokens are the server's
//! time in microseconds, or one more than the last: they rise also when the server loses its data.
//! Clients of other libraries that use the same key in the canonical way, `SET key value NX PX
//! ttl`, exclude exclusive holders and are excluded by them.
//!
//! What a lease on such a server cannot promise stands in
//! [`Profile::exclusion_fails_when`](fencelock_core::Profile), by the settings that the server had
//! at connect. The steps are small Lua files in `src/protocol/lua`, called by `EVALSHA`.
//!
//! `redis://HOST:PORT/DB`, `rediss://…` (TLS), `redis+unix:///SOCKET`,
//! `redis+sentinel://H1,H2/SERVICE/DB`, `redis-cluster://H1,H2`; a user and password stand in
//! front as `USER:PASSWORD@`. `valkey` in the place of `redis` means the same.

mod access;
mod backend;
mod batch;
mod cluster;
mod config;
mod contender;
mod dial;
mod error;
mod frames;
mod identity;
mod link;
mod login;
mod node;
mod notifications;
#[doc(hidden)]
pub mod outside;
#[doc(hidden)]
pub mod redlock;
mod replicas;
mod route;
mod sample;
mod scratch;
mod script;
mod server;
mod server_info;
mod sharing;
mod snapshot;
mod tls;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub use config::RedisStore;
pub use login::Credentials;
pub use redlock::{RedlockStore, SCHEME as REDLOCK_SCHEME};
pub use script::{quorum_scripts, scripts};
pub use tls::Tls;

/// `redis://` and its like.
pub const SCHEME: Scheme = Scheme {
    names: &[
        "redis",
        "rediss",
        "redis+unix",
        "redis+sentinel",
        "redis-sentinel",
        "rediss+sentinel",
        "redis-cluster",
        "rediss-cluster",
        "valkey",
        "valkeys",
        "valkey+unix",
        "valkey+sentinel",
        "valkeys+sentinel",
        "valkey-cluster",
        "valkeys-cluster",
    ],
    example: "redis://127.0.0.1:6379/0",
    connect,
    unanswered: None,
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let (store, settings) = RedisStore::from_url(&url)?;
        store.locks(settings).await
    })
}
