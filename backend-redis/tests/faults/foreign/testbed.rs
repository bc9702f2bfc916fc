//! A server, this library's locks on it, and direct views of its keys.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::{calls, redis_command, started, until};

pub(crate) struct Testbed {
    pub(crate) server: TestRedis,
    pub(crate) locks: Locks,
}

impl Testbed {
    pub(crate) async fn start() -> Testbed {
        let (server, locks) = started("").await;
        Testbed { server, locks }
    }

    /// Waits until one of ours is in the queue of the lock at `key`.
    pub(crate) async fn until_queued(&self, key: &str) {
        let queue = format!("{{{key}}}:q");
        // The waiter, and its client.
        until("a waiter", async || redis_command(&self.server, &["ZCARD", &queue]).await == "2")
            .await;
    }

    /// Waits until clients of other libraries have tried to acquire `times` more: refused attempts write
    /// nothing, so this shows that they wait.
    pub(crate) async fn until_refused(&self, times: u64) {
        let before = self.refused_attempts().await;
        until("a foreign client asks", async || self.refused_attempts().await >= before + times)
            .await;
    }

    async fn refused_attempts(&self) -> u64 {
        // redis-py sends SET; node-redlock's script calls EXISTS.
        calls(&self.server, "set").await + calls(&self.server, "exists").await
    }
}
