//! The status of each node, for operators.

use std::time::Duration;

use fencelock_core::{FencingToken, LockName, Result, Settings, Snapshot};
use futures_util::future::join_all;
use redis::Value;

use super::membership::Membership;
use super::nodes::{NodeConnection, WallClock, explain_at, parse, reach_all};
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::identity::Keys;
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot;
use crate::redlock::node::one_server;
use crate::redlock::rules::clocks::agreement;
use crate::redlock::rules::incarnation::{Deployment, IncarnationRecord};

/// The status of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node as the URL names it, with its port.
    pub address: String,
    /// What it replied, or why it did not.
    pub seen: Result<NodeSeen>,
}

/// What a node replied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeSeen {
    /// Whether it takes part.
    pub membership: Membership,
    /// How long ago it was first seen without its data, on its own clock; `None` without a record.
    pub age: Option<Duration>,
    /// By how many microseconds its clock is ahead of this machine's wall clock, at least and at
    /// most: the reply's travel time makes the difference.
    pub clock_ahead_us: (i64, i64),
    /// Whether its clock is within `clock_tolerance` of a majority's, its own included.
    pub clock_agrees: bool,
    /// The lock that was asked for.
    pub lock: Option<Result<LockSeen>>,
}

/// The state of one lock at a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockSeen {
    /// The last fencing token that the node gave or was sent; `None` after hours without one, or
    /// after it lost its data.
    pub last_token: Option<FencingToken>,
    /// The holders and waiters there. A lock is held by the holder that a majority has.
    pub snapshot: Snapshot,
}

impl NodeStatus {
    /// Whether the node can vote: it is open, and its clock agrees.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.seen.as_ref().is_ok_and(|seen| seen.membership.is_open() && seen.clock_agrees)
    }
}

/// The status of each node of `url`, in the URL's order, and the state of `lock` there. Changes
/// nothing, except that expired shared holders of `lock` are removed.
///
/// A node that cannot be reached is reported in its [`NodeStatus`].
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](fencelock_core::ErrorKind): an invalid URL or name, or outside a
/// tokio runtime.
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
    for index in (1..reached.len()).rev() {
        let (others, [(host, node), ..]) = reached.split_at_mut(index) else { continue };
        let Ok(run_id) = node.as_ref().map(|node| &node.run_id) else { continue };
        let is_its = |other: &NodeConnection| other.run_id == *run_id;
        let twin = others.iter().find(|(_, other)| other.as_ref().is_ok_and(is_its));
        if let Some(error) = twin.map(|(first, _)| one_server(first, host)) {
            *node = Err(error);
        }
    }
    let offsets: Vec<_> =
        reached.iter().map(|(_, node)| node.as_ref().ok().map(|node| node.offset)).collect();
    let agreed = agreement(&offsets, store.tolerance_us());
    let asking = reached.iter_mut().enumerate().map(async |(index, (host, node))| {
        let seen = match node {
            Ok(node) => {
                let lock = match &keys {
                    Some(keys) => Some(see_lock(node, keys, &settings).await),
                    None => None,
                };
                let clock_agrees = agreed.as_ref().is_some_and(|agreed| agreed.members[index]);
                Ok(see(node, store.deployment(), clock_agrees, lock))
            }
            Err(error) => Err(error.clone()),
        };
        NodeStatus { address: host.to_string(), seen }
    });
    Ok(join_all(asking).await)
}

fn see(
    node: &NodeConnection,
    ours: Deployment,
    clock_agrees: bool,
    lock: Option<Result<LockSeen>>,
) -> NodeSeen {
    let record = node.text.as_deref().and_then(IncarnationRecord::parse);
    let age = |record: IncarnationRecord| {
        Duration::from_micros(node.now_us.saturating_sub(record.born_us))
    };
    NodeSeen {
        membership: node.membership(ours),
        age: record.map(age),
        clock_ahead_us: (node.offset.at_least, node.offset.at_most),
        clock_agrees,
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
    Ok(LockSeen { last_token: token, snapshot })
}

/// A token's digits, without the mark that the queue may have waiters.
fn read_token(value: &Value) -> Option<u64> {
    let Value::BulkString(text) = value else { return None };
    std::str::from_utf8(text).ok()?.trim_end_matches('q').parse().ok()
}
