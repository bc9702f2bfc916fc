//! The server or the cluster of a store, and how script calls are routed to it.

use std::sync::Arc;

use fencelock_core::{Error, Result};
use futures_util::future::join_all;
use redis::Value;

use super::batch::BatchingNode;
use super::cluster::{Cluster, uncovered};
use super::node::{Node, Watched};
use super::scratch::Leftovers;
use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::call::ScriptCall;
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::script::SCRIPTS;

/// Executes script calls.
#[derive(Debug)]
pub(crate) enum Server {
    /// One server, possibly found through Sentinel.
    One(Arc<BatchingNode>),
    Cluster(Arc<Cluster>),
}

impl Server {
    /// Connects to one server; waits for the connection.
    pub(crate) async fn one(
        target: &Target,
        options: &Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Result<Server> {
        let node = Node::start(target, options, subscription, replicas);
        node.connection().first().await?;
        Ok(Server::One(BatchingNode::new(node, options.runtime.clone(), &SCRIPTS.batch)))
    }

    /// Connects to a cluster; waits for a connection to one of its nodes.
    pub(crate) async fn cluster(
        seeds: Vec<HostPort>,
        options: Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Result<Server> {
        let cluster = Cluster::start(seeds, options, subscription, replicas);
        cluster.any().first().await?;
        Ok(Server::Cluster(Arc::new(cluster)))
    }

    /// Fetches the map of slots, once the server is known to be of the kind that the URL names.
    pub(crate) async fn get_ready(&self) -> Result<()> {
        match self {
            Server::One(_) => Ok(()),
            Server::Cluster(cluster) => cluster.ask_for_map().await,
        }
    }

    /// Executes one call.
    pub(crate) async fn call(&self, call: ScriptCall<'_>) -> Result<Value> {
        match self {
            Server::One(node) => node.call(call).await,
            // Boxed, so that the future for one server stays small.
            Server::Cluster(cluster) => Box::pin(cluster.call(call)).await,
        }
    }

    /// Asks the server to notify this client when `key` changes.
    pub(crate) async fn watch(&self, key: &str) -> Result<Watched> {
        match self {
            Server::One(node) => node.node().watch(key).await,
            Server::Cluster(cluster) => match cluster.node_of(key) {
                Some(node) => node.watch(key).await,
                None => Ok(Watched::Held),
            },
        }
    }

    /// The error for a reply that no script gives, about the lock at `key`. Its connection is
    /// replaced: it may be out of step, and answer one request with the reply to another.
    pub(crate) fn protocol_error(&self, key: &str, script: &str) -> Error {
        const WHY: &str = "it gave an unexpected reply";
        match self {
            Server::One(node) => node.node().connection().mark_broken(WHY),
            Server::Cluster(cluster) => {
                cluster.node_of(key).iter().for_each(|node| node.connection().mark_broken(WHY));
            }
        }
        protocol_error(script)
    }

    /// Whether a grant counts only once [confirmed](Server::confirm) by replicas.
    pub(crate) fn wants_replicas(&self) -> bool {
        match self {
            Server::One(node) => node.node().replicas().is_some(),
            Server::Cluster(cluster) => cluster.wants_replicas(),
        }
    }

    /// Executes a call that confirms a grant, and waits until the replicas have it.
    pub(crate) async fn confirm(&self, call: ScriptCall<'_>) -> Result<Value> {
        match self {
            Server::One(node) => confirmed_by(node.node(), call).await,
            Server::Cluster(cluster) => match cluster.node_of(call.keys[0]) {
                Some(node) => confirmed_by(&node, call).await,
                None => Err(uncovered()),
            },
        }
    }

    /// Why the server that has `key` has no connection at the moment, if it has none.
    pub(crate) fn trouble(&self, key: &str) -> Option<Error> {
        match self {
            Server::One(node) => node.node().connection().state().err(),
            Server::Cluster(cluster) => match cluster.node_of(key) {
                Some(node) => node.connection().state().err(),
                None => cluster.any().state().err(),
            },
        }
    }

    /// The server that has `key`: calls to different servers must not wait for each other.
    pub(crate) fn shard_of(&self, key: &str) -> Option<HostPort> {
        match self {
            Server::One(_) => None,
            Server::Cluster(cluster) => cluster.host_of(key),
        }
    }

    /// A connection for questions about the server itself.
    pub(crate) fn any(&self) -> &SupervisedConnection {
        match self {
            Server::One(node) => node.node().connection(),
            Server::Cluster(cluster) => cluster.any(),
        }
    }

    /// Removes `leftovers` from all masters.
    pub(crate) async fn clear(&self, leftovers: &Leftovers) -> Result<()> {
        match self {
            Server::One(node) => leftovers.clear(node.node().connection()).await,
            Server::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                let clearing = masters.iter().map(|node| leftovers.clear(node.connection()));
                join_all(clearing).await.into_iter().collect()
            }
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Server::One(node) => node.node().close(),
            Server::Cluster(cluster) => cluster.close(),
        }
    }
}

async fn confirmed_by(node: &Node, call: ScriptCall<'_>) -> Result<Value> {
    match node.replicas() {
        Some(replicas) => replicas.confirm(call).await,
        None => node.call(call).await?.map_err(|error| explain(&error)),
    }
}
