//! Keys of nodes without a TTL, such as after a restore that dropped it.

use crate::shared::held_without_an_expiry;
use crate::support::*;

const NAME: &str = "lock";

/// The value of a round of a claim that is gone.
const GONE: &str = "x3 1500 lock:@0123456789abcdef 67e5504410b1426f9247bb680e5fe0c8 host";

/// A key that no client renews expires after the TTL that it was acquired for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_ours_and_has_no_end_is_given_one() {
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    for value in [GONE.to_owned(), format!("{GONE}\n")] {
        for node in &quorum.nodes {
            redis_command(node, &["SET", &key(NAME), &value]).await;
        }
        release(until_granted(spawn_waiter(&locks, NAME)).await).await;
        quorum.drained().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_keys_lost_their_ttl_keeps_the_lock() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let locks = quorum.direct(QUICK).await;
    for node in 0..3 {
        quorum.open(node).await;
    }
    held_without_an_expiry(&locks, &quorum.nodes, QUICK_TTL).await;
    quorum.drained().await;
}
