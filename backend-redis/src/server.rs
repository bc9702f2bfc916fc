//! The servers of a store: one, or a cluster of them.

use std::sync::Arc;

use fencelock_core::{Error, Result};
use futures_util::future::join_all;
use redis::Value;

use crate::batch::Batches;
use crate::cluster::{Cluster, uncovered};
use crate::error::{explain, strange_answer};
use crate::link::{Audience, Link};
use crate::node::{Node, Step, Watched};
use crate::route::{Caller, Host, Route};
use crate::scratch::Leftovers;
use crate::script::SCRIPTS;

/// Where steps are done.
#[derive(Debug)]
pub(crate) enum Server {
    /// One server, perhaps found by Sentinel.
    One(Arc<Batches>),
    Cluster(Arc<Cluster>),
}

impl Server {
    /// Connects to one server; waits for the connection.
    pub(crate) async fn one(
        route: &Route,
        caller: &Arc<Caller>,
        audience: Audience,
        replicas: u32,
    ) -> Result<Server> {
        let node = Node::start(route, caller, audience, replicas);
        node.link().first().await?;
        Ok(Server::One(Batches::new(node, caller.runtime.clone(), &SCRIPTS.batch)))
    }

    /// Connects to a cluster; waits for a connection to one of its nodes.
    pub(crate) async fn cluster(
        seeds: Vec<Host>,
        caller: Arc<Caller>,
        audience: Audience,
        replicas: u32,
    ) -> Result<Server> {
        let cluster = Cluster::start(seeds, caller, audience, replicas);
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
    pub(crate) async fn step(&self, step: Step<'_>) -> Result<Value> {
        match self {
            Server::One(batches) => batches.step(step).await,
            // In a box, so that the future for one server stays small.
            Server::Cluster(cluster) => Box::pin(cluster.step(step)).await,
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
    pub(crate) fn strange_answer(&self, key: &str, script: &str) -> Error {
        const WHY: &str = "it gave an answer that cannot be";
        match self {
            Server::One(batches) => batches.node().link().distrust(WHY),
            Server::Cluster(cluster) => {
                cluster.node_of(key).iter().for_each(|node| node.link().distrust(WHY));
            }
        }
        strange_answer(script)
    }

    /// Whether a grant counts only once [confirmed](Server::confirm) by replicas.
    pub(crate) fn wants_replicas(&self) -> bool {
        match self {
            Server::One(batches) => batches.node().replicas().is_some(),
            Server::Cluster(cluster) => cluster.wants_replicas(),
        }
    }

    /// Does a step that confirms a grant, and waits for the replicas to have it.
    pub(crate) async fn confirm(&self, step: Step<'_>) -> Result<Value> {
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
            Server::One(batches) => batches.node().link().state().err(),
            Server::Cluster(cluster) => match cluster.node_of(key) {
                Some(node) => node.link().state().err(),
                None => cluster.any().state().err(),
            },
        }
    }

    /// The server that has `key`: steps for different ones must not wait for each other.
    pub(crate) fn shard_of(&self, key: &str) -> Option<Host> {
        match self {
            Server::One(_) => None,
            Server::Cluster(cluster) => cluster.host_of(key),
        }
    }

    /// A connection for questions about the server itself.
    pub(crate) fn any(&self) -> &Link {
        match self {
            Server::One(batches) => batches.node().link(),
            Server::Cluster(cluster) => cluster.any(),
        }
    }

    /// Removes them from all servers that take writes.
    pub(crate) async fn clear(&self, leftovers: &Leftovers) -> Result<()> {
        match self {
            Server::One(batches) => leftovers.clear(batches.node().link()).await,
            Server::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                let clearing = masters.iter().map(|node| leftovers.clear(node.link()));
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

async fn confirmed_by(node: &Node, step: Step<'_>) -> Result<Value> {
    match node.replicas() {
        Some(replicas) => replicas.confirm(step).await,
        None => node.step(step).await?.map_err(|error| explain(&error)),
    }
}
