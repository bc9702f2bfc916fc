//! Keys of nodes that never end, such as after a restore that dropped their TTL.

use crate::support::*;

const NAME: &str = "lock";

/// As a round of a claim that is gone has it at a node.
const GONE: &str = "x3 1500 lock:@0123456789abcdef 67e5504410b1426f9247bb680e5fe0c8 host";

/// What nobody renews ends with the TTL that it was acquired for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_ours_and_has_no_end_is_given_one() {
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    for value in [GONE.to_owned(), format!("{GONE}\n")] {
        for node in &testbed.nodes {
            redis_command(node, &["SET", &key(NAME), &value]).await;
        }
        release(until_granted(spawn_waiter(&locks, NAME)).await).await;
        testbed.drained().await;
    }
}

/// A holder who lives renews what it holds, whatever end it was given meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_keys_lost_their_ttl_keeps_the_lock() {
    let testbed = Testbed::new(3, QUICK).await;
    let locks = testbed.direct(QUICK).await;
    for node in 0..3 {
        testbed.open(node).await;
    }
    let held = acquire(&locks, NAME).await;
    let waiter = spawn_waiter(&locks, NAME);
    until_queued(&locks, NAME, 1).await;
    for node in &testbed.nodes {
        redis_command(node, &["PERSIST", &key(NAME)]).await;
    }
    until("they have ends", async || {
        for node in &testbed.nodes {
            if redis_command(node, &["PTTL", &key(NAME)]).await == "-1" {
                return false;
            }
        }
        true
    })
    .await;
    until_renewed(&locks, &held, QUICK_TTL).await;
    assert!(!waiter.is_finished(), "two hold it");
    release(held).await;
    release(until_granted(waiter).await).await;
    testbed.drained().await;
}
