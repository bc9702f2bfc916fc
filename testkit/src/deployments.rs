//! A complete store on demand, by its name, and the faults that can be injected into it.
//!
//! A deployment starts its servers on loopback and ends them when it is dropped. Faults that hit
//! all clients of a server are never injected into a server that others depend on: a store that the
//! user named by a URL only has the faults of its clients.

use std::fmt;
use std::io;
use std::str::FromStr;

use fencelock_conformance::{Params, Peer};

mod cluster;
mod deployment;
mod failover;
mod fault;
mod lines;
mod local;
mod meter;
mod named;
mod postgres;
mod redis;
mod redlock;
mod sentinel;
mod zookeeper;

pub use deployment::{Deployment, Library};
pub use fault::Fault;
pub use lines::{Traffic, Wiring};
pub use meter::Meter;

/// One kind of store that a deployment can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The memory of one process.
    Memory,
    /// A directory of its own.
    File,
    /// One server.
    Postgres,
    /// One server behind pgbouncer in transaction mode.
    PostgresPgbouncer,
    /// A primary and a standby that follows asynchronously, which fail over and lose something.
    PostgresFailover,
    /// A primary and a standby for which commits wait.
    PostgresSync,
    /// One server without persistence.
    Redis,
    /// One server that has every write on its disk before it answers.
    RedisAof,
    /// A master and a replica behind one address, which fail over and lose something.
    RedisFailover,
    /// A master and two replicas under three sentinels.
    RedisSentinel,
    /// Three masters with a replica each.
    RedisCluster,
    /// A quorum of three servers.
    Redlock3,
    /// A quorum of five servers.
    Redlock5,
    /// One server.
    ZooKeeper,
    /// An ensemble of three servers.
    ZooKeeper3,
}

/// Each with its name on the command line, in the order of their declaration.
const KINDS: [(Kind, &str); 15] = [
    (Kind::Memory, "memory"),
    (Kind::File, "file"),
    (Kind::Postgres, "postgres"),
    (Kind::PostgresPgbouncer, "postgres-pgbouncer"),
    (Kind::PostgresFailover, "postgres-failover"),
    (Kind::PostgresSync, "postgres-sync"),
    (Kind::Redis, "redis"),
    (Kind::RedisAof, "redis-aof"),
    (Kind::RedisFailover, "redis-failover"),
    (Kind::RedisSentinel, "redis-sentinel"),
    (Kind::RedisCluster, "redis-cluster"),
    (Kind::Redlock3, "redlock-3"),
    (Kind::Redlock5, "redlock-5"),
    (Kind::ZooKeeper, "zookeeper"),
    (Kind::ZooKeeper3, "zookeeper-3"),
];

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 15] = {
        let (mut all, mut at) = ([Kind::Memory; KINDS.len()], 0);
        while at < all.len() {
            all[at] = KINDS[at].0;
            at += 1;
        }
        all
    };

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// Starts one.
    ///
    /// # Errors
    /// When a server is not installed, which says how to, or does not get ready.
    pub async fn start(self, library: Library, wiring: Wiring) -> io::Result<Box<dyn Deployment>> {
        use postgres::{Commits, Replicated};
        use redis::Keeps;
        Ok(match self {
            Kind::Memory => Box::new(local::Memory),
            Kind::File => Box::new(local::Directory::new()?),
            Kind::Postgres => Box::new(postgres::OneServer::start(wiring).await?),
            Kind::PostgresPgbouncer => Box::new(postgres::Pooled::start(wiring).await?),
            Kind::PostgresFailover => {
                Box::new(Replicated::start(Commits::Asynchronous, wiring).await?)
            }
            Kind::PostgresSync => Box::new(Replicated::start(Commits::Synchronous, wiring).await?),
            Kind::Redis => Box::new(redis::OneServer::start(Keeps::Nothing, wiring).await?),
            Kind::RedisAof => Box::new(redis::OneServer::start(Keeps::EveryWrite, wiring).await?),
            Kind::RedisFailover => Box::new(failover::Failover::start(wiring).await?),
            Kind::RedisSentinel => Box::new(sentinel::Sentinel::start(wiring).await?),
            Kind::RedisCluster => Box::new(cluster::Cluster::start(wiring).await?),
            Kind::Redlock3 => Box::new(redlock::Quorum::start(3, library, wiring).await?),
            Kind::Redlock5 => Box::new(redlock::Quorum::start(5, library, wiring).await?),
            Kind::ZooKeeper => Box::new(zookeeper::Ensemble::start(1, wiring).await?),
            Kind::ZooKeeper3 => Box::new(zookeeper::Ensemble::start(3, wiring).await?),
        })
    }
}

/// The store that a URL names, with the faults that affect no other client of it.
///
/// # Errors
/// When the URL is invalid, or no proxy can be started.
pub async fn named(url: &str, library: Library, wiring: Wiring) -> io::Result<Box<dyn Deployment>> {
    Ok(Box::new(named::Named::open(library.connect, url, wiring).await?))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Kind, String> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::as_str).join(", ");
            format!("unknown store {word:?}: expected one of {known}")
        })
    }
}

/// A client in a process of its own, to be killed.
///
/// # Errors
/// When it cannot be started, or cannot connect.
pub async fn spawn_client(deployment: &dyn Deployment, params: &Params) -> io::Result<Peer> {
    Peer::start("deployment", &deployment.url(), params).await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_parsed_from_its_name() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        let error = "redis-7".parse::<Kind>().unwrap_err();
        assert!(error.contains("redis-aof"), "{error}");
    }
}
