//! What an operator does with a set of nodes: declare it new, look at it, change it.
//!
//! Each node is asked over a connection of its own, by one who holds no locks. What a node's record
//! means is decided in [`part`] and [`change`], which are pure.

mod change;
mod init;
mod node;
mod open;
mod part;
mod replace;
mod status;

use std::sync::Arc;

use fencelock_core::url::StoreUrl;
use fencelock_core::{Error, ErrorKind, Operation, Result, Settings};
use futures_util::future::join_all;

use super::config::RedlockStore;
use crate::connection::{ConnectOptions, HostPort};

pub use init::init;
pub use open::open_when_due;
pub use part::Membership;
pub use replace::{Replaced, replace};
pub use status::{LockSeen, NodeSeen, NodeStatus, status};

use node::{NodeConnection, WallClock};

/// The set that `url` names.
fn parse(url: &str) -> Result<(RedlockStore, Settings)> {
    let parsed =
        StoreUrl::parse(url).and_then(|url| match super::SCHEME.names.contains(&url.scheme()) {
            true => RedlockStore::from_url(&url),
            false => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{}:// is no set of nodes; expected redlock://H1,H2,H3", url.scheme()),
            )),
        });
    parsed.map_err(|error| error.during(Operation::Connect))
}

/// The same error with the set's name in it, never its password.
fn explain_at(store: &RedlockStore) -> impl Fn(Error) -> Error {
    let shown: Arc<str> = store.redacted_url().into();
    move |error| error.during(Operation::Connect).with_store(&shown)
}

/// Every node as it answers now, in the order of the URL.
async fn reach_all(
    store: &RedlockStore,
    options: &Arc<ConnectOptions>,
    watch: WallClock,
) -> Vec<(HostPort, Result<NodeConnection>)> {
    let asking = store
        .hosts()
        .iter()
        .map(|host| async { (host.clone(), NodeConnection::reach(host, options, watch).await) });
    join_all(asking).await
}

/// One server under two names has one vote, and would be counted twice.
fn refuse_twins(nodes: &[NodeConnection]) -> Result<()> {
    for (index, node) in nodes.iter().enumerate() {
        if let Some(twin) = nodes[..index].iter().find(|twin| twin.run_id == node.run_id) {
            let message =
                format!("{} and {} are one server: it has one vote", twin.host, node.host);
            return Err(Error::new(ErrorKind::Refused, message));
        }
    }
    Ok(())
}

/// An error of one node.
fn at(host: &HostPort, error: &Error) -> Error {
    Error::new(error.kind(), format!("{host}: {}", error.message())).retryable(error.is_retryable())
}
