//! Waits until a set takes part: writes the records that its clients would write, when there are none
//! yet.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};

use super::membership::Membership;
use super::nodes::{NodeConnection, WallClock, at, explain_at, parse, reach_all};
use crate::connection::ConnectOptions;
use crate::redlock::config::RedlockStore;
use crate::redlock::rules::incarnation::{Deployment, IncarnationVerdict, verdict};

/// Waits until every node of `url` takes part, and opens those whose delay has passed.
///
/// # Errors
/// - [`ErrorKind::Refused`]: a node is closed or belongs to another set.
/// - The errors of [`connect`](fencelock_core::url::connect), for the first node with one; the
///   others are opened all the same.
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

/// Opens the nodes that are due; the longest remaining delay of the others, and the first error.
async fn open_due(
    store: &RedlockStore,
    options: &Arc<ConnectOptions>,
) -> (Option<Duration>, Option<Error>) {
    let ours = store.deployment();
    let (mut rest, mut failed) = (None, None);
    for (host, node) in reach_all(store, options, WallClock::start()).await {
        let membership = match node {
            Ok(mut node) => open_if_due(&mut node, ours).await,
            Err(error) => Err(error),
        };
        let error = match membership {
            Ok(Membership::Open) => continue,
            Ok(Membership::Quarantined(its)) => {
                rest = rest.max(Some(its));
                continue;
            }
            Ok(membership) => Error::new(ErrorKind::Refused, membership.to_string()),
            Err(error) => error,
        };
        failed = failed.or(Some(at(&host, &error)));
    }
    (rest, failed)
}

/// Writes the record that a client would write.
async fn open_if_due(node: &mut NodeConnection, ours: Deployment) -> Result<Membership> {
    let next = |node: &NodeConnection| {
        Ok(match verdict(node.text.as_deref(), &node.run_id, node.now_us, ours) {
            IncarnationVerdict::Write(record) => Some(record),
            _ => None,
        })
    };
    node.rewrite(next).await?;
    Ok(node.membership(ours))
}
