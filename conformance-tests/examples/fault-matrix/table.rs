//! What the matrix is made of: its columns, and what may stand in a row.

/// A column: a store, and where its conformance suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    File,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    ZooKeeper,
    Ensemble,
}

use Store::{Cluster, Ensemble, File, Memory, Redis, Redlock, Sentinel, ZooKeeper};

pub(crate) const ALL: &[Store] =
    &[Memory, File, Redis, Sentinel, Cluster, Redlock, ZooKeeper, Ensemble];
/// Without a server.
pub(crate) const LOCAL: &[Store] = &[Memory, File];
pub(crate) const MEMORY: &[Store] = &[Memory];
pub(crate) const FILE: &[Store] = &[File];
pub(crate) const REDIS: &[Store] = &[Redis];
pub(crate) const SENTINEL: &[Store] = &[Sentinel];
pub(crate) const CLUSTER: &[Store] = &[Cluster];
/// The topologies that one server's code serves too.
pub(crate) const FOLLOWED: &[Store] = &[Sentinel, Cluster];
pub(crate) const REDLOCK: &[Store] = &[Redlock];
pub(crate) const ZOOKEEPER: &[Store] = &[ZooKeeper];
pub(crate) const ENSEMBLE: &[Store] = &[Ensemble];
/// One server and three.
pub(crate) const ZK: &[Store] = &[ZooKeeper, Ensemble];
/// Those whose grants end by time.
pub(crate) const TIMED: &[Store] =
    &[Memory, Redis, Sentinel, Cluster, Redlock, ZooKeeper, Ensemble];
/// Those with leases on Redis servers, and memory.
pub(crate) const LEASES: &[Store] = &[Memory, Redis, Sentinel, Cluster, Redlock];

impl Store {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Memory => "memory",
            File => "file",
            Redis => "redis",
            Sentinel => "sentinel",
            Cluster => "cluster",
            Redlock => "redlock",
            ZooKeeper => "zookeeper",
            Ensemble => "zookeeper-3",
        }
    }

    /// The target, and what stands before the behaviours' names there.
    pub(crate) fn suite(self) -> (&'static str, &'static [&'static str]) {
        const REDIS: &str = "backend-redis/tests/conformance";
        const ZK: &str = "backend-zk/tests/conformance";
        match self {
            Memory => ("conformance-tests/tests/memory", &["memory"]),
            File => ("backend-file/tests/conformance", &["file"]),
            Redis => (REDIS, &["redis"]),
            Sentinel => (REDIS, &["sentinel"]),
            Cluster => (REDIS, &["cluster"]),
            Redlock => {
                let of_each =
                    &["redlock3", "redlock3-1dead", "redlock5", "redlock5-1dead", "redlock5-2dead"];
                (REDIS, of_each)
            }
            ZooKeeper => (ZK, &["zookeeper"]),
            Ensemble => (ZK, &["ensemble"]),
        }
    }
}

/// Rows that belong together.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) rows: &'static [Row],
}

/// One fault.
pub(crate) struct Row {
    pub(crate) number: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) demand: &'static str,
    pub(crate) entries: &'static [Entry],
}

/// What is said of some stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A behaviour of the conformance suite, which counts wherever a store's harness can run it.
    Suite(&'static str),
    /// A test of its own.
    Test { stores: &'static [Store], target: &'static str, name: &'static str },
    /// What is allowed to happen, and the test that makes it happen and counts it.
    Allowed {
        stores: &'static [Store],
        what: &'static str,
        target: &'static str,
        name: &'static str,
    },
    /// Why there is nothing to test.
    Ignored { stores: &'static [Store], why: &'static str },
}

pub(crate) const fn row(
    number: &'static str,
    fault: &'static str,
    demand: &'static str,
    entries: &'static [Entry],
) -> Row {
    Row { number, fault, demand, entries }
}

pub(crate) const fn suite(name: &'static str) -> Entry {
    Entry::Suite(name)
}

pub(crate) const fn test(
    stores: &'static [Store],
    target: &'static str,
    name: &'static str,
) -> Entry {
    Entry::Test { stores, target, name }
}

pub(crate) const fn allowed(
    stores: &'static [Store],
    what: &'static str,
    target: &'static str,
    name: &'static str,
) -> Entry {
    Entry::Allowed { stores, what, target, name }
}

pub(crate) const fn ignored(stores: &'static [Store], why: &'static str) -> Entry {
    Entry::Ignored { stores, why }
}

/// Targets with fault tests.
pub(crate) const FILE_SINGLE_PROCESS: &str = "backend-file/tests/single_process";
pub(crate) const FILE_DIRECTORIES: &str = "backend-file/tests/directories";
pub(crate) const FILE_PROCESSES: &str = "backend-file/tests/processes";
pub(crate) const FILE_TOKENS: &str = "backend-file/tests/tokens";
pub(crate) const REDIS_FAULTS: &str = "backend-redis/tests/faults";
pub(crate) const REDIS_SECURITY: &str = "backend-redis/tests/security";
pub(crate) const REDLOCK_FAULTS: &str = "backend-redis/tests/redlock";
pub(crate) const REDLOCK_ADMIN: &str = "backend-redis/tests/redlock_admin";
pub(crate) const ZK_FAULTS: &str = "backend-zk/tests/faults";
/// The core under a simulated store: what is decided there is so for every store.
pub(crate) const SIMULATION: &str = "conformance-tests/tests/simulation";
