//! The servers of a store: one, or a cluster of them.

use std::sync::Arc;

use fencelock_core::Result;
use redis::Value;

use crate::cluster::Cluster;
use crate::error::explain;
use crate::link::{Audience, Link};
use crate::node::{Node, Step};
use crate::route::{Caller, Host, Route};

/// Where steps are done.
#[derive(Debug)]
pub(crate) enum Server {
    /// One server, perhaps found by Sentinel.
    One(Box<Node>),
    Cluster(Box<Cluster>),
}

impl Server {
    /// Connects to one server; waits for the connection.
    pub(crate) async fn one(
        route: &Route,
        caller: &Arc<Caller>,
        audience: Audience,
        replicas: u32,
    ) -> Result<Server> {
        let node = Node::start(route, caller, Some(audience), replicas);
        node.link().first().await?;
        Ok(Server::One(Box::new(node)))
    }

    /// Connects to a cluster; waits for a connection and the map of its slots.
    pub(crate) async fn cluster(
        seeds: Vec<Host>,
        caller: Arc<Caller>,
        audience: Audience,
        replicas: u32,
    ) -> Result<Server> {
        let cluster = Cluster::start(seeds, caller, audience, replicas);
        cluster.first().await?;
        Ok(Server::Cluster(Box::new(cluster)))
    }

    /// Does one step.
    pub(crate) async fn step(&self, step: Step<'_>) -> Result<Value> {
        match self {
            Server::One(node) => node.step(step).await?.map_err(|error| explain(&error)),
            Server::Cluster(cluster) => cluster.step(step).await,
        }
    }

    /// Confirms a grant by replicas, if the store wants any.
    pub(crate) async fn confirm(&self, step: Step<'_>) -> Option<Result<Value>> {
        match self {
            Server::One(node) => node.confirm(step).await,
            Server::Cluster(cluster) => cluster.confirm(step).await,
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
            Server::One(node) => node.link(),
            Server::Cluster(cluster) => cluster.any(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Server::One(node) => node.close(),
            Server::Cluster(cluster) => cluster.close(),
        }
    }
}
