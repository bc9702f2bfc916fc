//! The servers of a store: one, or a cluster of them.

use std::sync::Arc;

use fencelock_core::{Error, Result};
use futures_util::future::join_all;
use redis::Value;

use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::script::SCRIPTS;
use crate::server::batch::BatchingNode;
use crate::server::cluster::{Cluster, uncovered};
use crate::server::node::{Node, ScriptCall, Watched};
use crate::server::scratch::Leftovers;

/// Where steps are done.
#[derive(Debug)]
pub(crate) enum Server {
    /// One server, perhaps found by Sentinel.
    One(Arc<BatchingNode>),
    Cluster(Arc<Cluster>),
}

impl Server {
    /// Connects to one server; waits for the connection.
    pub(crate) async fn one(
        route: &Target,
        caller: &Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Result<Server> {
        let node = Node::start(route, caller, subscription, replicas);
        node.connection().first().await?;
        Ok(Server::One(BatchingNode::new(node, caller.runtime.clone(), &SCRIPTS.batch)))
    }

    /// Connects to a cluster; waits for a connection to one of its nodes.
    pub(crate) async fn cluster(
        seeds: Vec<HostPort>,
        caller: Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Result<Server> {
        let cluster = Cluster::start(seeds, caller, subscription, replicas);
        cluster.any().first().await?;
        Ok(Server::Cluster(Arc::new(cluster)))
    }

    /// Learns what it takes to send steps, once it is known to be what the URL says.
    pub(crate) async fn get_ready(&self) -> Result<()> {
        match self {
            Server::One(_) => Ok(()),
            Server::Cluster(cluster) => cluster.ask_for_map().await,
        }
    }

    /// Does one step.
    pub(crate) async fn step(&self, step: ScriptCall<'_>) -> Result<Value> {
        match self {
            Server::One(batches) => batches.call(step).await,
            // In a box, so that the future for one server stays small.
            Server::Cluster(cluster) => Box::pin(cluster.call(step)).await,
        }
    }

    /// Asks to be told when `key` changes.
    pub(crate) async fn watch(&self, key: &str) -> Result<Watched> {
        match self {
            Server::One(batches) => batches.node().watch(key).await,
            Server::Cluster(cluster) => match cluster.node_of(key) {
                Some(node) => node.watch(key).await,
                None => Ok(Watched::Held),
            },
        }
    }

    /// What to say of an answer that no script gives to the lock at `key`. The connection that it
    /// came from is replaced: it may be out of step, and answer one request with another's answer.
    pub(crate) fn protocol_error(&self, key: &str, script: &str) -> Error {
        const WHY: &str = "it gave an unexpected reply";
        match self {
            Server::One(batches) => batches.node().connection().mark_broken(WHY),
            Server::Cluster(cluster) => {
                cluster.node_of(key).iter().for_each(|node| node.connection().mark_broken(WHY));
            }
        }
        protocol_error(script)
    }

    /// Whether a grant counts only once [confirmed](Server::confirm) by replicas.
    pub(crate) fn wants_replicas(&self) -> bool {
        match self {
            Server::One(batches) => batches.node().replicas().is_some(),
            Server::Cluster(cluster) => cluster.wants_replicas(),
        }
    }

    /// Does a step that confirms a grant, and waits for the replicas to have it.
    pub(crate) async fn confirm(&self, step: ScriptCall<'_>) -> Result<Value> {
        match self {
            Server::One(batches) => confirmed_by(batches.node(), step).await,
            Server::Cluster(cluster) => match cluster.node_of(step.keys[0]) {
                Some(node) => confirmed_by(&node, step).await,
                None => Err(uncovered()),
            },
        }
    }

    /// Why the server that has `key` has no connection at the moment, if it has none.
    pub(crate) fn trouble(&self, key: &str) -> Option<Error> {
        match self {
            Server::One(batches) => batches.node().connection().state().err(),
            Server::Cluster(cluster) => match cluster.node_of(key) {
                Some(node) => node.connection().state().err(),
                None => cluster.any().state().err(),
            },
        }
    }

    /// The server that has `key`: steps for different ones must not wait for each other.
    pub(crate) fn shard_of(&self, key: &str) -> Option<HostPort> {
        match self {
            Server::One(_) => None,
            Server::Cluster(cluster) => cluster.host_of(key),
        }
    }

    /// A connection for questions about the server itself.
    pub(crate) fn any(&self) -> &SupervisedConnection {
        match self {
            Server::One(batches) => batches.node().connection(),
            Server::Cluster(cluster) => cluster.any(),
        }
    }

    /// Removes them from all servers that take writes.
    pub(crate) async fn clear(&self, leftovers: &Leftovers) -> Result<()> {
        match self {
            Server::One(batches) => leftovers.clear(batches.node().connection()).await,
            Server::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                let clearing = masters.iter().map(|node| leftovers.clear(node.connection()));
                join_all(clearing).await.into_iter().collect()
            }
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Server::One(batches) => batches.node().close(),
            Server::Cluster(cluster) => cluster.close(),
        }
    }
}

async fn confirmed_by(node: &Node, step: ScriptCall<'_>) -> Result<Value> {
    match node.replicas() {
        Some(replicas) => replicas.confirm(step).await,
        None => node.call(step).await?.map_err(|error| explain(&error)),
    }
}
