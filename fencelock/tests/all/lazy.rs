//! Clients that connect in the background behave as all others do, from their first acquisition on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use fencelock::{Locks, Result, connect_lazy};
use fencelock_conformance::{Harness, Params, RunOptions, Store, run_suite};
use fencelock_testkit::servers::TestRedis;

/// A store whose clients are handed out before they are connected.
struct Lazy {
    name: &'static str,
    url: String,
}

#[async_trait]
impl Harness for Lazy {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, _prefix: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(Part { url: self.url.clone(), has_connected: AtomicBool::new(false) }))
    }
}

struct Part {
    url: String,
    has_connected: AtomicBool,
}

#[async_trait]
impl Store for Part {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        let locks = connect_lazy(&params.on_url(&self.url))?;
        // By the first one the suite learns what the store promises.
        if !self.has_connected.swap(true, Ordering::Relaxed) {
            locks.until_connected().await?;
        }
        Ok(locks)
    }
}

#[test]
fn locks_of_a_store_that_is_still_connecting_keep_every_promise() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(TestRedis::start()).expect("a redis-server starts");
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file://{}", directory.path().join("locks").display());
    let harnesses: [Arc<dyn Harness>; 2] = [
        Arc::new(Lazy { name: "file", url: file }),
        Arc::new(Lazy { name: "redis", url: server.url() }),
    ];
    for group in ["::exclusion::", "::cancel::", "::closing::"] {
        let report = run_suite(&harnesses, &RunOptions::default().filter(group));
        let (passed, failed, _) = report.counts();
        assert_eq!(report.verdict(), Ok(()), "{group}");
        assert!(passed >= 4 && failed == 0, "{group}: {passed} passed, {failed} failed");
    }
}
