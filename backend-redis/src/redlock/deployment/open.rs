//! Waiting until a set takes part: what its clients would do by looking, for when there are none
//! yet.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};

use super::node::{NodeConnection, WallClock};
use super::part::Membership;
use super::{at, explain_at, parse, reach_all};
use crate::connection::ConnectOptions;
use crate::redlock::config::RedlockStore;
use crate::redlock::incarnation::{Deployment, IncarnationVerdict, verdict};

/// Waits until every node of `url` takes part, and opens those whose delay is over.
///
/// # Errors
/// - [`ErrorKind::Refused`]: a node is closed or of another set.
/// - As of [`connect`](fencelock_core::url::connect), for the first node with an error; the others
///   are opened all the same.
///
/// # Cancel safety
/// Cancel safe.
pub async fn open_when_due(url: &str) -> Result<()> {
    let (store, _) = parse(url)?;
    let explain = explain_at(&store);
    let options = store.options().map_err(&explain)?;
    loop {
        let (rest, failed) = open_due(&store, &options).await;
        match (rest, failed) {
            (Some(rest), _) => tokio::time::sleep(rest).await,
            (None, Some(error)) => return Err(explain(error)),
            (None, None) => return Ok(()),
        }
    }
}

/// Opens whoever is due; how long the last of the others has to wait, and the first error.
async fn open_due(
    store: &RedlockStore,
    options: &Arc<ConnectOptions>,
) -> (Option<Duration>, Option<Error>) {
    let ours = store.deployment();
    let (mut rest, mut failed) = (None, None);
    for (host, node) in reach_all(store, options, WallClock::start()).await {
        let met = match node {
            Ok(mut node) => meet(&mut node, ours).await.map(|()| node),
            Err(error) => Err(error),
        };
        match met.map(|node| Membership::of(node.text.as_deref(), &node.run_id, node.now_us, ours))
        {
            Ok(Membership::Open) => {}
            Ok(Membership::Quarantined(its)) => rest = rest.max(Some(its)),
            Ok(part) => {
                let error = Error::new(ErrorKind::Refused, part.to_string());
                failed = failed.or(Some(at(&host, &error)));
            }
            Err(error) => failed = failed.or(Some(at(&host, &error))),
        }
    }
    (rest, failed)
}

/// What a client writes when it meets the node.
async fn meet(node: &mut NodeConnection, ours: Deployment) -> Result<()> {
    let next = |node: &NodeConnection| {
        Ok(match verdict(node.text.as_deref(), &node.run_id, node.now_us, ours) {
            IncarnationVerdict::Write(record) => Some(record),
            _ => None,
        })
    };
    node.rewrite(next).await
}
