//! The Redis store of [fencelock](https://docs.rs/fencelock): locks for all clients that reach a
//! server, a server that Sentinel watches, or a cluster.
//!
//! A lock is a lease: the key of its name with a time to live, renewed at a third of it. Waiters
//! queue in the server in the order of their arrival; a release hands the lock to the next live
//! waiter in the same atomic step and notifies only that one. Fencing tokens are the server's time
//! in microseconds, or one more than the last: they rise also when the server loses its data.
//! Clients of other libraries that use the same key in the canonical way, `SET key value NX PX
//! ttl`, exclude exclusive holders and are excluded by them.
//!
//! [`Profile::exclusion_fails_when`](fencelock_core::Profile) lists what a lease on such a server
//! cannot promise, by the settings that the server had at connect. The atomic steps are small Lua
//! files in `src/protocol/lua`, called by `EVALSHA`.
//!
//! `redis://HOST:PORT/DB`, `rediss://…` (TLS), `redis+unix:///SOCKET`,
//! `redis+sentinel://H1,H2/SERVICE/DB`, `redis-cluster://H1,H2`; `USER:PASSWORD@` before the host
//! is the login. `valkey` is accepted in place of `redis`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod connection;
#[cfg(feature = "redlock")]
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
#[cfg(feature = "redlock")]
#[doc(hidden)]
pub mod redlock;
mod server;
mod single;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub use connection::{Credentials, Tls};
pub use protocol::script::scripts;
#[cfg(feature = "redlock")]
pub use redlock::{RedlockStore, SCHEME as REDLOCK_SCHEME, quorum_scripts};
pub use single::config::RedisStore;

/// `redis://` and its variants.
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
