//! A program whose futures are not polled for long, such as in a `select!` with a long handler.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use crate::support::*;

const TTL: Duration = Duration::from_secs(4);

/// The client library reads no further answer while a part of one is not taken.
#[tokio::test]
async fn a_long_answer_that_is_not_taken_stops_no_renewal() {
    let server = database().await;
    let locks = direct(&server, "").await;
    let holder = soon("acquired", locks.lock("crowd").acquire()).await.expect("acquired");
    let queue = "
        UPDATE fencelock.locks SET crowd = true;
        INSERT INTO fencelock.claims (owner, key, state, seq, mode, n, lim, ttl, proc, label, tokens, until)
          SELECT gen_random_uuid(), k.key, 'w', n, 'x', 1, 1, 1, 'process', repeat('x', 100)::bytea, 1, 9e18
          FROM fencelock.locks k, generate_series(1, 5000) n";
    server.sql(queue).await.expect("a queue is made");
    let lock = locks.lock("held").ttl(TTL);
    let guard = soon("acquired", lock.acquire()).await.expect("acquired");
    let mut inspect = Box::pin(locks.inspect("crowd"));
    assert!(inspect.as_mut().now_or_never().is_none(), "answered at once");
    let started = Instant::now();
    while started.elapsed() < 3 * TTL {
        assert!(guard.is_held(), "lost after {:?}", started.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    let seen = soon("the answer is taken", inspect).await.expect("an answer");
    assert_eq!(seen.waiters.len(), 5_000);
    for guard in [guard, holder] {
        soon("released", guard.release()).await.expect("released");
    }
}
