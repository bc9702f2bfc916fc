//! The ZooKeeper store of [fencelock](https://docs.rs/fencelock): locks for all clients of an
//! ensemble, held through reconnects and changes of leader.
//!
//! A lock is a queue of ephemeral sequential nodes below one node. A claim that is not first watches
//! the nearest node that blocks it, so a release wakes one waiter. All locks of one client are held
//! in one session, kept alive by one heartbeat, a write that a quorum commits: whatever the session
//! holds is valid until 0.64 of the session timeout after the last such write was sent, so a holder
//! that is cut off detects its loss before the servers can give the lock to another client.
//!
//! Fencing tokens are the numbers of the transactions that created the nodes: they rise over
//! restarts, changes of leader and the removal of the lock's own node. Nodes are named like those of
//! Apache Curator's `InterProcessMutex` and `InterProcessReadWriteLock`, which exclude [`lock`] and
//! [`rw_lock`] on the same path and are excluded by them.
//!
//! Cells are persistent nodes, which each write replaces in one transaction.
//!
//! `zk://HOST:PORT,HOST:PORT/ROOT?session=20s&auth=digest:USER:PASSWORD&acl=creator`; `tls_ca=FILE`
//! for encrypted connections.
//!
//! [`lock`]: fencelock_core::Locks::lock
//! [`rw_lock`]: fencelock_core::Locks::rw_lock

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod claim;
mod config;
mod connection;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod nodes;
mod queue;
mod sessions;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub use config::ZkStore;
pub use connection::access::Rights;
pub use connection::tls::Tls;
/// The transport, in the version whose `Client` this crate accepts.
pub use zookeeper_client;

/// The URL schemes `zk://` and `zookeeper://`.
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
