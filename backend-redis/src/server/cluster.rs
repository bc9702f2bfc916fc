//! A Redis Cluster: which node has which slot, and how a moving slot is followed.
//!
//! The client crate's cluster connection silently repeats requests, up to nine times in one
//! measurement, so that a release that succeeded would be reported as a failure. Here each request
//! is sent once for each redirection, every node has a supervised connection of its own, and a
//! node that fails does not delay requests to others.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{Error, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use redis::Value;
use tokio::time::Instant;

use super::node::{AskingRequest, Node, Request};
use super::slot_map;
use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::error::{closed, explain, protocol_error, unreachable};

pub(crate) use super::slot_map::{Range, Redirection, read_map, redirection};

/// Redirections that a request follows; more mean that the nodes do not agree.
const REDIRECTIONS: usize = 5;
/// Least time between two requests for the map.
const MAP_PAUSE: Duration = Duration::from_millis(100);
/// How many nodes are asked for the map.
const ASKED: usize = 5;
/// How long a node is kept that is in no map: the maps may lag behind the redirection to it.
const KEPT: Duration = Duration::from_secs(15);

/// A connected cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    options: Arc<ConnectOptions>,
    replicas: u32,
    /// For changed keys at each node; hand-offs arrive at `any`.
    nodes_subscription: Subscription,
    /// The nodes that the user named; `known` has these, then those of the last map.
    seeds: Vec<HostPort>,
    known: Arc<Mutex<Vec<HostPort>>>,
    /// A connection to any node: receives the hand-offs, which every node publishes, and serves the
    /// first map of slots.
    any: SupervisedConnection,
    map: Mutex<Map>,
    /// When the map was last fetched; locked meanwhile.
    asking: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Map {
    /// Sorted by slot.
    ranges: Vec<Range>,
    nodes: HashMap<HostPort, Known>,
    closed: bool,
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// When the node was last used.
    used: Instant,
}

impl Cluster {
    pub(crate) fn start(
        seeds: Vec<HostPort>,
        options: Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Cluster {
        let nodes_subscription = Subscription { channel: None, ..subscription.clone() };
        let known = Arc::new(Mutex::new(seeds.clone()));
        let patience = options.timeouts.answer;
        let target = Target::Any(known.clone());
        let any = SupervisedConnection::start(target, options.clone(), subscription, patience);
        let (map, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Cluster { options, replicas, nodes_subscription, seeds, known, any, map, asking }
    }

    pub(crate) fn any(&self) -> &SupervisedConnection {
        &self.any
    }

    /// The master that has `key`, by the last map.
    pub(crate) fn host_of(&self, key: &str) -> Option<HostPort> {
        let slot = slot_map::slot(key);
        let map = self.map.lock();
        let at = map.ranges.partition_point(|range| range.last < slot);
        let range = map.ranges.get(at)?;
        (range.first <= slot).then(|| range.master.clone())
    }

    pub(crate) fn node_of(&self, key: &str) -> Option<Arc<Node>> {
        self.host_of(key).map(|host| self.node(&host))
    }

    fn node(&self, host: &HostPort) -> Arc<Node> {
        let mut map = self.map.lock();
        if let Some(known) = map.nodes.get_mut(host) {
            known.used = Instant::now();
            return known.node.clone();
        }
        let (target, subscription) = (Target::Node(host.clone()), self.nodes_subscription.clone());
        let node = Node::start(&target, &self.options, subscription, self.replicas);
        let node = Arc::new(node);
        if map.closed {
            node.close();
        }
        map.nodes.insert(host.clone(), Known { node: node.clone(), used: Instant::now() });
        node
    }

    /// Sends `request` to the node that has its slot, following redirections.
    pub(crate) async fn send(self: &Arc<Self>, request: Request<'_>) -> Result<Value> {
        let mut host = match self.host_of(request.key()) {
            Some(host) => host,
            None => {
                self.ask_for_map().await?;
                self.host_of(request.key()).ok_or_else(uncovered)?
            }
        };
        for _ in 0..REDIRECTIONS {
            let error = match self.node(&host).send(request).await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => error,
                Err(error) => {
                    // The node may be dead and its slots served by another master; the retry
                    // uses the new map.
                    let _ = self.ask_for_map().await;
                    return Err(error);
                }
            };
            match redirection(&error, &host, &self.options.addresses) {
                Some(Redirection::Moved(to)) => {
                    // Other slots may have moved, too; this request need not wait for the new map.
                    self.refresh();
                    host = to;
                }
                Some(Redirection::Ask(to)) => {
                    let request = match request {
                        Request::Call(call) => AskingRequest::Call(call),
                        Request::Read(key) => AskingRequest::Read(key),
                        _ => return Err(explain(error)),
                    };
                    return self.node(&to).send_asking(request).await;
                }
                None => {
                    if matches!(error.code(), Some("CLUSTERDOWN" | "READONLY" | "MASTERDOWN")) {
                        let _ = self.ask_for_map().await;
                    }
                    return Err(explain(error));
                }
            }
        }
        let times = REDIRECTIONS;
        Err(unreachable(format!("redirected {times} times; the nodes do not agree on a slot")))
    }

    /// Fetches the map of slots in the background, unless that is under way or was just done.
    fn refresh(self: &Arc<Self>) {
        let asked = self.asking.try_lock();
        if asked.is_ok_and(|asked| asked.is_none_or(|asked| asked.elapsed() >= MAP_PAUSE)) {
            let cluster = self.clone();
            self.options.runtime.spawn(async move {
                if let Err(error) = cluster.ask_for_map().await {
                    tracing::debug!(%error, "no node replied with the map of slots");
                }
            });
        }
    }

    /// Fetches the map of slots, unless that was just done.
    pub(crate) async fn ask_for_map(&self) -> Result<()> {
        let mut asked = self.asking.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < MAP_PAUSE) {
            return Ok(());
        }
        let found = self.ask_several().await;
        // Set at the end, and also after a failure: tasks that waited meanwhile must not each ask
        // in turn.
        *asked = Some(Instant::now());
        found.map(|ranges| self.adopt(ranges))
    }

    /// The map that most of several nodes agree on.
    async fn ask_several(&self) -> Result<Vec<Range>> {
        let present = self.map.lock().ranges.clone();
        let nodes = self.some_masters();
        let wanted = nodes.len().div_ceil(2) + 1;

        let asking = std::iter::once(self.map_of(&self.any, None));
        let others = nodes.iter().map(|(host, node)| self.map_of(node.connection(), Some(host)));
        let mut asking: FuturesUnordered<_> = asking.chain(others).collect();
        let mut maps: Vec<Vec<Range>> = Vec::new();
        let (mut of_any, mut failed) = (None, uncovered());
        while let Some((is_any, map)) = asking.next().await {
            match map {
                // A node that was removed from the cluster continues alone, without slots.
                Ok(map) if map.is_empty() => {
                    if is_any {
                        self.any.mark_broken("its node is in no cluster");
                    }
                }
                Ok(map) => {
                    if is_any {
                        of_any = Some(map.clone());
                    }
                    let agreed =
                        maps.iter().filter(|other| slot_map::agree(&map, other)).count() + 1;
                    maps.push(map);
                    if agreed >= wanted {
                        break;
                    }
                }
                Err(error) => failed = error,
            }
        }
        let Some(found) = slot_map::prevailing(&maps, &present) else { return Err(failed) };
        // Its node may be cut off from the others, and so from their pushes.
        if maps.len() > 2 && of_any.is_some_and(|map| !slot_map::agree(&map, &found)) {
            self.any.mark_broken("most nodes of the cluster have another map of slots");
        }
        Ok(found)
    }

    /// The map of the node at `host`, or, for `any`, of its peer; and whether it is that of `any`.
    async fn map_of(
        &self,
        connection: &SupervisedConnection,
        host: Option<&HostPort>,
    ) -> (bool, Result<Vec<Range>>) {
        let map = async {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let answer = connection.ask(&command).await?;
            // The peer is known once there was a connection.
            let host = host.cloned().or_else(|| connection.peer()).ok_or_else(closed)?;
            let map = read_map(&answer, &host, &self.options.addresses);
            map.ok_or_else(|| protocol_error("CLUSTER SLOTS"))
        };
        (host.is_none(), map.await)
    }

    /// Some masters other than that of `any`, since a node has one vote; connected ones first.
    fn some_masters(&self) -> Vec<(HostPort, Arc<Node>)> {
        let peer = self.any.peer();
        let mut masters: Vec<(bool, HostPort)> = {
            let map = self.map.lock();
            let masters: HashSet<&HostPort> =
                map.ranges.iter().map(|range| &range.master).collect();
            let others = masters.into_iter().filter(|host| peer.as_ref() != Some(*host));
            others.map(|host| (!map.nodes.contains_key(host), host.clone())).collect()
        };
        masters.shuffle(&mut rand::rng());
        masters.sort_by_key(|(is_new, _)| *is_new);
        let some = masters.into_iter().take(ASKED - 1);
        some.map(|(_, host)| (host.clone(), self.node(&host))).collect()
    }

    /// All masters that have slots, by a map that was fetched now.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Node>>> {
        self.ask_for_map().await?;
        let masters: HashSet<HostPort> =
            self.map.lock().ranges.iter().map(|range| range.master.clone()).collect();
        Ok(masters.iter().map(|host| self.node(host)).collect())
    }

    fn adopt(&self, ranges: Vec<Range>) {
        let masters: Vec<&HostPort> = ranges.iter().map(|range| &range.master).collect();
        let mut known = self.seeds.clone();
        for host in masters.iter().copied().chain(ranges.iter().flat_map(|range| &range.replicas)) {
            if !known.contains(host) {
                known.push(host.clone());
            }
        }
        *self.known.lock() = known;
        let mut map = self.map.lock();
        map.nodes.retain(|host, known| masters.contains(&host) || known.used.elapsed() < KEPT);
        map.ranges = ranges;
    }

    pub(crate) fn close(&self) {
        self.any.close();
        let mut map = self.map.lock();
        map.closed = true;
        for known in map.nodes.values() {
            known.node.close();
        }
    }
}

pub(crate) fn uncovered() -> Error {
    unreachable("no node of the cluster has the slot of this lock")
}
