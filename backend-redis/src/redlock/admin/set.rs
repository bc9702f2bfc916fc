//! The set of nodes that a URL names, and connections to all of them.

use std::sync::Arc;

use fencelock_core::url::StoreUrl;
use fencelock_core::{Error, ErrorKind, Operation, Result, Settings};
use futures_util::future::join_all;

use super::connection::{NodeConnection, WallClock};
use crate::connection::{ConnectOptions, HostPort};
use crate::redlock::config::{RedlockStore, SCHEME};

/// The set that `url` names.
pub(super) fn parse(url: &str) -> Result<(RedlockStore, Settings)> {
    let parsed = StoreUrl::parse(url).and_then(|url| {
        if SCHEME.names.contains(&url.scheme()) {
            return RedlockStore::from_url(&url);
        }
        let message =
            format!("{}:// is not a set of nodes; expected redlock://H1,H2,H3", url.scheme());
        Err(Error::new(ErrorKind::InvalidArgument, message))
    });
    parsed.map_err(|error| error.during(Operation::Connect))
}

/// Adds the set's name to an error, without the password.
pub(super) fn explain_at(store: &RedlockStore) -> impl Fn(Error) -> Error {
    let shown: Arc<str> = store.redacted_url().into();
    move |error| error.during(Operation::Connect).with_store(&shown)
}

/// Connects to every node, in the order of the URL.
pub(super) async fn reach_all(
    store: &RedlockStore,
    options: &Arc<ConnectOptions>,
    clock: WallClock,
) -> Vec<(HostPort, Result<NodeConnection>)> {
    let connecting = store
        .hosts()
        .iter()
        .map(|host| async { (host.clone(), NodeConnection::reach(host, options, clock).await) });
    join_all(connecting).await
}

/// Refuses two names for one server, which has one vote and would be counted twice.
pub(super) fn refuse_twins(nodes: &[NodeConnection]) -> Result<()> {
    for (index, node) in nodes.iter().enumerate() {
        if let Some(twin) = nodes[..index].iter().find(|twin| twin.run_id == node.run_id) {
            let message =
                format!("{} and {} are one server: it has one vote", twin.host, node.host);
            return Err(Error::new(ErrorKind::Refused, message));
        }
    }
    Ok(())
}

/// Adds the node's name to an error.
pub(super) fn at(host: &HostPort, error: &Error) -> Error {
    Error::new(error.kind(), format!("{host}: {}", error.message())).retryable(error.is_retryable())
}
