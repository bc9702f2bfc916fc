//! The server or the cluster of a store, and how script calls are routed to it.

use std::sync::Arc;

use fencelock_core::batching::{BatchTransport, Priority};
use fencelock_core::{Error, Result};
use futures_util::future::join_all;
use redis::Value;

use super::batch::BatchingNode;
use super::cluster::Cluster;
use super::node::{Node, Request};
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
    /// Connects; waits for the first connection.
    pub(crate) async fn connect(
        target: &Target,
        options: &Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Result<Server> {
        let server = if let Target::Any(seeds) = target {
            let seeds = seeds.lock().clone();
            let cluster = Cluster::start(seeds, options.clone(), subscription, replicas);
            Server::Cluster(Arc::new(cluster))
        } else {
            let node = Node::start(target, options, subscription, replicas);
            Server::One(BatchingNode::new(node, options.runtime.clone(), &SCRIPTS.batch))
        };
        server.any().first().await?;
        Ok(server)
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
        self.call_as(call, call.script.priority).await
    }

    /// Executes one call, at a priority of its own.
    pub(crate) async fn call_as(&self, call: ScriptCall<'_>, priority: Priority) -> Result<Value> {
        match self {
            Server::One(node) => node.call(call, priority, None).await,
            // Boxed, so that the future for one server stays small.
            Server::Cluster(cluster) => Box::pin(cluster.send(Request::Call(call))).await,
        }
    }

    /// Sends one request by itself.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Value> {
        match self {
            Server::One(node) => node.node().send(request).await?.map_err(explain),
            Server::Cluster(cluster) => cluster.send(request).await,
        }
    }

    /// The server that has `key`, if that is known.
    fn node_of(&self, key: &str) -> Option<Arc<Node>> {
        match self {
            Server::One(node) => Some(node.node().clone()),
            Server::Cluster(cluster) => cluster.node_of(key),
        }
    }

    /// The error for a reply that no script gives, about the lock at `key`. Its connection is
    /// replaced: it may be out of step, and answer one request with the reply to another.
    pub(crate) fn protocol_error(&self, key: &str, script: &str) -> Error {
        if let Some(node) = self.node_of(key) {
            node.connection().mark_broken("it gave an unexpected reply");
        }
        protocol_error(script)
    }

    /// Why the server that has `key` has no connection at the moment, if it has none.
    pub(crate) fn trouble(&self, key: &str) -> Option<Error> {
        match self.node_of(key) {
            Some(node) => node.connection().state().err(),
            None => self.any().state().err(),
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

    /// From now on no attempt is sent that waits for others. In a cluster none does.
    pub(crate) fn stop_attempts(&self) {
        if let Server::One(node) = self {
            node.batcher().stop_attempts();
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Server::One(node) => node.node().close(),
            Server::Cluster(cluster) => cluster.close(),
        }
    }
}
