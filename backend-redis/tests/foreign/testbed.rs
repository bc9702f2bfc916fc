//! A server, this library's locks on it, and looks past both.

use std::time::Duration;

use fencelock_core::{Locks, url};
use fencelock_redis::SCHEME;
use fencelock_testkit::servers::TestRedis;
use tokio::time::Instant;

pub(crate) struct Testbed {
    pub(crate) server: TestRedis,
    pub(crate) locks: Locks,
}

impl Testbed {
    pub(crate) async fn start() -> Testbed {
        let server = TestRedis::start().await.unwrap();
        let locks = url::connect(&[SCHEME], &server.url()).await.unwrap();
        Testbed { server, locks }
    }

    pub(crate) async fn command(&self, command: &[&str]) -> String {
        self.server.command(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Waits until one of ours stands in the queue of the lock at `key`.
    pub(crate) async fn until_queued(&self, key: &str) {
        let queue = format!("{{{key}}}:q");
        // The waiter, and its process.
        self.until("a waiter", async || self.command(&["ZCARD", &queue]).await == "2").await;
    }

    /// How often clients of other libraries have asked for a lock: those who are refused write
    /// nothing, so this is how they are seen to wait.
    pub(crate) async fn refused_attempts(&self) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).await;
        // redis-py sends SET; node-redlock's script calls EXISTS.
        let calls = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        ["cmdstat_set", "cmdstat_exists"].iter().filter_map(|name| calls(name)).sum()
    }

    pub(crate) async fn until(&self, awaited: &str, is_so: impl AsyncFn() -> bool) {
        const PATIENCE: Duration = Duration::from_secs(20);
        let start = Instant::now();
        while !is_so().await {
            assert!(start.elapsed() < PATIENCE, "no sign of {awaited} within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
