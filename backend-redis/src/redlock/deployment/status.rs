//! What each node says of itself, for people.

use std::time::Duration;

use fencelock_core::{FencingToken, LockName, Result, Settings, Snapshot};
use futures_util::future::join_all;
use redis::Value;

use super::node::{NodeConnection, WallClock};
use super::part::Membership;
use super::{explain_at, parse, reach_all};
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::identity::Keys;
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot;
use crate::redlock::clocks::{Agreement, agreement};
use crate::redlock::incarnation::{Deployment, IncarnationRecord};

/// One node of a set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// As the URL names it, with its port.
    pub address: String,
    /// What it says, or why it does not.
    pub seen: Result<NodeSeen>,
}

/// What a node says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeSeen {
    /// Whether it takes part.
    pub part: Membership,
    /// How long ago it was first seen without its data, on its own clock; `None` without a record.
    pub age: Option<Duration>,
    /// By how many microseconds its clock is ahead of this machine's wall clock, at least and at
    /// most: the answer's time on the way lies in between.
    pub clock_ahead_us: (i64, i64),
    /// Whether its clock is within `clock_tolerance` of a majority's, itself counted.
    pub clock_agrees: bool,
    /// The lock that was asked for.
    pub lock: Option<Result<LockSeen>>,
}

/// What a node has of one lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockSeen {
    /// The last fencing token it gave or was told; `None` after hours without, or after its data
    /// was lost.
    pub token: Option<FencingToken>,
    /// Who holds it there and who waits there. A lock is held by whom a majority has.
    pub snapshot: Snapshot,
}

impl NodeStatus {
    /// Whether it can vote: it is open, and its clock agrees.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.seen.as_ref().is_ok_and(|seen| seen.membership.is_open() && seen.clock_agrees)
    }
}

/// How each node of `url` is, in the URL's order, and what it has of `lock`. Changes nothing, but
/// for shared holders of `lock` whose time is over.
///
/// A node that cannot be asked is no error of the whole.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](fencelock_core::ErrorKind): a URL or name that cannot be meant,
/// or outside a tokio runtime.
///
/// # Cancel safety
/// Cancel safe.
pub async fn status(url: &str, lock: Option<&str>) -> Result<Vec<NodeStatus>> {
    let (store, settings) = parse(url)?;
    let explain = explain_at(&store);
    let name = lock.map(|name| LockName::with_prefix(settings.key_prefix(), name));
    let keys = name.transpose().map_err(&explain)?.map(|name| Keys::of(name.key()));
    let options = store.options().map_err(&explain)?;
    let mut reached = reach_all(&store, &options, WallClock::start()).await;
    let offsets: Vec<_> =
        reached.iter().map(|(_, node)| node.as_ref().ok().map(|node| node.offset)).collect();
    let agreed = agreement(&offsets, store.tolerance_us());
    let ours = store.deployment();
    let asking = reached.iter_mut().enumerate().map(async |(index, (host, node))| {
        let seen = match node {
            Ok(node) => Ok(see(node, index, agreed.as_ref(), ours, keys.as_ref(), &settings).await),
            Err(error) => Err(error.clone()),
        };
        NodeStatus { address: host.to_string(), seen }
    });
    Ok(join_all(asking).await)
}

async fn see(
    node: &mut NodeConnection,
    index: usize,
    agreed: Option<&Agreement>,
    ours: Deployment,
    keys: Option<&Keys>,
    settings: &Settings,
) -> NodeSeen {
    let lock = match keys {
        Some(keys) => Some(see_lock(node, keys, settings).await),
        None => None,
    };
    let text = node.text.as_deref();
    let born_us = text.and_then(IncarnationRecord::parse).map(|record| record.born_us);
    NodeSeen {
        part: Membership::of(text, &node.run_id, node.now_us, ours),
        age: born_us.map(|born_us| Duration::from_micros(node.now_us.saturating_sub(born_us))),
        clock_ahead_us: (node.offset.at_least, node.offset.at_most),
        clock_agrees: agreed.is_some_and(|agreed| agreed.members[index]),
        lock,
    }
}

async fn see_lock(node: &mut NodeConnection, keys: &Keys, settings: &Settings) -> Result<LockSeen> {
    let [lock, queue, token] = keys.all();
    let mut inspect = redis::cmd("EVAL");
    inspect.arg(&SCRIPTS.inspect.text).arg(3).arg(lock).arg(queue).arg(token).arg(snapshot::MOST);
    let seen = inspect.query_async::<Value>(&mut node.connection).await;
    let seen = seen.map_err(|error| explain(&error))?;
    let token = redis::cmd("GET").arg(token).query_async::<Value>(&mut node.connection).await;
    let token = token.map_err(|error| explain(&error))?;
    let seen = snapshot::read(seen).ok_or_else(|| protocol_error("inspect"))?;
    let mut snapshot = seen.into_snapshot();
    for token in snapshot.holders.iter_mut().filter_map(|holder| holder.token.as_mut()) {
        *token = settings.token(*token);
    }
    let token = read_token(&token).map(|token| settings.token(FencingToken::new(token)));
    Ok(LockSeen { token, snapshot })
}

/// A token's digits, whatever may stand behind them.
fn read_token(value: &Value) -> Option<u64> {
    let Value::BulkString(text) = value else { return None };
    std::str::from_utf8(text).ok()?.trim_end_matches('q').parse().ok()
}
