//! The columns of the matrix.

/// A column: a store, and where its conformance suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    Memory,
    File,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    ZooKeeper,
    Ensemble,
    Postgres,
    Synchronous,
    Pooled,
}

use Store::{
    Cluster, Ensemble, File, Memory, Pooled, Postgres, Redis, Redlock, Sentinel, Synchronous,
    ZooKeeper,
};

pub(crate) const ALL: &[Store] = &[
    Memory,
    File,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    ZooKeeper,
    Ensemble,
    Postgres,
    Synchronous,
    Pooled,
];

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
            Postgres => "postgres",
            Synchronous => "postgres-sync",
            Pooled => "pgbouncer",
        }
    }

    /// Parses `redis, sentinel`.
    pub(crate) fn list(titles: &str) -> Result<Vec<Store>, String> {
        let store = |title: &str| {
            let known = ALL.iter().copied().find(|store| store.title() == title);
            known.ok_or_else(|| format!("unknown store {title:?}"))
        };
        titles.split(", ").map(store).collect()
    }

    /// The target, and what stands before the behaviours' names there.
    pub(crate) fn suite(self) -> (&'static str, &'static [&'static str]) {
        const REDIS: &str = "backend-redis/tests/conformance";
        const ZK: &str = "backend-zk/tests/conformance";
        const POSTGRES: &str = "backend-postgres/tests/conformance";
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
            Postgres => (POSTGRES, &["postgres"]),
            Synchronous => (POSTGRES, &["postgres-sync"]),
            Pooled => (POSTGRES, &["pgbouncer"]),
        }
    }
}
