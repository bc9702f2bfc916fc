//! The ZooKeeper store of [fencelock](https://docs.rs/fencelock): locks for everybody who reaches an
//! ensemble, that hold through reconnects and changes of leader.
//!
//! A lock is a queue of ephemeral sequential nodes below one node. Whoever is not first watches the
//! nearest node in its way, so a release wakes one waiter. All locks of one connected store live in
//! one session, kept by one heartbeat, a write that a quorum commits: whatever the session holds is
//! valid until 0.64 of the session timeout after the last such write was sent, so a holder that is
//! cut off knows its loss before the servers can give the lock to another.
//!
//! Fencing tokens are the numbers of the transactions that made the nodes: they rise over restarts,
//! changes of leader and the removal of the lock's own node. Nodes are named as Apache Curator's
//! `InterProcessMutex` and `InterProcessReadWriteLock` name theirs, which exclude [`lock`] and
//! [`rw_lock`] on the same path and are excluded by them.
//!
//! `zk://HOST:PORT,HOST:PORT/ROOT?session=20s&auth=digest:USER:PASSWORD&acl=creator`; `tls_ca=FILE`
//! for encrypted connections.
//!
//! [`lock`]: fencelock_core::Locks::lock
//! [`rw_lock`]: fencelock_core::Locks::rw_lock

mod access;
mod acquisition;
mod backend;
mod batch;
mod budget;
mod config;
mod error;
mod guarded;
mod life;
mod login;
mod lookout;
mod names;
mod node;
mod order;
#[doc(hidden)]
pub mod outside;
mod path;
mod pool;
mod probe;
mod scratch;
mod session;
mod snapshot;
mod tls;
mod vigil;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub use config::{Rights, ZkStore};
pub use tls::Tls;
/// The transport, in the version whose `Client` this crate takes.
pub use zookeeper_client;

/// `zk://` and its like.
pub const SCHEME: Scheme = Scheme {
    names: &["zk", "zookeeper"],
    example: "zk://127.0.0.1:2181",
    connect,
    unanswered: None,
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let (store, settings) = ZkStore::from_url(&url)?;
        store.locks(settings).await
    })
}
