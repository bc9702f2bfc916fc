//! The Postgres store of [fencelock](https://docs.rs/fencelock): locks for all clients of a database.
//!
//! A lock is a row with a lease, renewed at a third of it. Waiters queue in the database in the order
//! of their arrival; a release hands the lock to the next live waiter in the same transaction and
//! notifies only its process. A process has one connection for all of its locks and waiters. Fencing
//! tokens are the server's time in microseconds, or one more than the last.
//!
//! The atomic steps are functions in a schema of their own (`sql/`), by default `fencelock`, which the
//! store creates if its user may.
//!
//! `postgres://USER:PASSWORD@HOST:PORT,HOST2/DATABASE`; of several hosts the first that can be written.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquisition;
mod backend;
mod batch;
mod cells;
mod config;
mod connection;
mod error;
mod guarded;
mod notifications;
mod requests;
pub mod schema;
mod server_info;
mod statements;
mod store;
mod tidying;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};

pub use config::PostgresStore;
pub use fencelock_net::Credentials;
pub use guarded::{fence_statement, run_check, run_fence};

/// `postgres://` and `postgresql://`.
pub const SCHEME: Scheme = Scheme {
    names: &["postgres", "postgresql"],
    example: "postgres://USER@127.0.0.1:5432/DATABASE",
    connect,
    unanswered: None,
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let (store, settings) = PostgresStore::from_url(&url)?;
        store.locks(settings).await
    })
}
