//! Connections that fail, in every way in which they do.

use fencelock_testkit::scenes;

use crate::support::*;

/// Row 10: the peer vanishes silently, such as behind a firewall that dropped the connection.
/// Fault 10: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced_within_seconds() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=12s").await);
    scenes::half_open(&testbed.proxy, &near, &far, ms(12_000)).await;
    drained(&testbed.server).await;
}

/// Rows 12 and 23, lesson 1: the push of that release had no receiver.
/// Fault 12: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_subscription_was_down_is_noticed_at_once_afterwards() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=30s").await);
    scenes::released_while_down(&testbed.proxy, &near, &far, ms(30_000), ms(200)).await;
    drained(&testbed.server).await;
}

/// Row 15: after the beginning of a push the next replies are parsed as its rest, and from then on
/// each reply is taken for that to an earlier request.
/// Fault 15: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_out_of_step_is_replaced() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=3s").await);
    let kept = acquire(&far, "kept").await;
    for torn in [&b">3\r\n$7\r\nmessage\r\n"[..], b"*2\r\n"] {
        let (blocker, waiter) = contested(&near, &far, "wanted").await;
        assert!(testbed.proxy.inject(torn) > 0);
        release(blocker).await;
        let guard = until_granted(waiter).await;
        assert!(guard.fencing_token() > kept.fencing_token(), "{guard:?}");
        release(guard).await;
    }
    drop(kept);
    drained(&testbed.server).await;
}
