//! Clearing removes the keys that a run of a tool left, and no other key of the server.

use fencelock_core::Scratch;
use futures_util::StreamExt;
use futures_util::stream;

use crate::support::*;

const OTHERS: usize = 5_000;
const NAMES: usize = 1_500;

/// Locks under the names of `scratch`, each used once.
async fn use_names(testbed: &Testbed, scratch: &Scratch) -> fencelock_core::Locks {
    let locks = testbed.direct(&format!("prefix={}", scratch.prefix())).await;
    let using = stream::iter(0..NAMES).map(async |n| {
        release(acquire(&locks, &format!("order/{n}{{}}*")).await).await;
    });
    using.buffer_unordered(100).collect::<()>().await;
    locks
}

async fn size(testbed: &Testbed) -> usize {
    let size = testbed.server.command(&["DBSIZE"]).await.expect("it answers");
    size.parse().expect("a number")
}

#[tokio::test]
async fn a_run_is_cleared_from_among_many_other_keys_and_other_runs() {
    let testbed = Testbed::start().await;
    testbed.server.command(&["DEBUG", "POPULATE", &OTHERS.to_string()]).await.unwrap();
    let (own, other) = (Scratch::fresh("app:", "test"), Scratch::fresh("app:", "test"));
    let locks = use_names(&testbed, &own).await;
    use_names(&testbed, &other).await.close().await.unwrap();
    // The keys that a killed client leaves.
    let (_held, waiter) = contested(&locks, &locks, "held").await;
    locks.counter("number").add(1).await.unwrap();
    // A lock, its queue and its token, and a cell.
    assert_eq!(size(&testbed).await, OTHERS + 2 * NAMES + 4);

    let tool = testbed.direct("").await;
    waiter.abort();
    let _ = waiter.await;
    soon("it is cleared", tool.clear(&own, PATIENCE)).await.unwrap();
    assert_eq!(size(&testbed).await, OTHERS + NAMES);
    soon("it is cleared", tool.clear(&other, PATIENCE)).await.unwrap();
    assert_eq!(size(&testbed).await, OTHERS);
}
