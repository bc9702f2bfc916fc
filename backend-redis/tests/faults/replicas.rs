//! `replicas=N`: grants that count only once replicas have them.

use std::future::poll_fn;
use std::task::Poll;

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use tokio::time::Instant;

use crate::support::*;

/// A master and its replica.
pub(crate) async fn pair() -> (TestRedis, TestRedis) {
    let master = TestRedis::start().await.expect("a master starts");
    redis_command(&master, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
    let follow = format!("replicaof 127.0.0.1 {}", master.port());
    let replica = RedisOptions::new().config(&follow).start().await.expect("a replica starts");
    until("the replica is in sync", async || {
        redis_command(&master, &["INFO", "replication"]).await.contains("state=online")
    })
    .await;
    (master, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_at_the_replica_when_it_is_returned() {
    let (master, replica) = pair().await;
    let locks = direct(&master, "replicas=1&ttl=20s").await;
    for round in 0..20 {
        let name = format!("lock-{round}");
        let (guard, reader) = (acquire(&locks, &name).await, locks.rw_lock(format!("doc-{round}")));
        let reader = soon("a reader is granted", reader.read().acquire()).await.unwrap();
        for key in [format!("lock:{name}"), format!("lock:doc-{round}")] {
            assert_eq!(redis_command(&replica, &["EXISTS", &key]).await, "1");
        }
        let waiter = spawn_waiter(&locks, &name);
        until_queued(&locks, &name, 1).await;
        release(guard).await;
        release(until_granted(waiter).await).await;
        release(reader).await;
    }
    // Concurrent grants share one WAIT.
    let all = (0..200).map(|n| spawn_waiter(&locks, &format!("many-{n}"))).collect::<Vec<_>>();
    for waiter in all {
        release(until_granted(waiter).await).await;
    }
    drained(&master).await;
}

/// Fault 28: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_live_replicas_grants_are_released_and_renewals_continue() {
    let (master, replica) = pair().await;
    let locks = direct(&master, "replicas=1&ttl=1500ms").await;
    let plain = direct(&master, "ttl=20s").await;
    let kept = acquire(&locks, "kept").await;
    replica.freeze().await.unwrap();
    let since = Instant::now();
    let (first, mut tries) = (kept.fencing_token(), 0);
    // Longer than two leases, with one WAIT after the other.
    while since.elapsed() < ms(3500) {
        // Its lease is long: another client is granted the lock because it was released.
        let lock = locks.lock("wanted").ttl(ms(60_000)).wait_at_most(ms(900));
        let error = soon("it ends", lock.acquire()).await.unwrap_err();
        assert_in_vain(&error, "replicas=1");
        let other = soon("it is released", plain.lock("wanted").acquire()).await;
        release(other.unwrap()).await;
        tries += 1;
        assert!(kept.is_held(), "a WAIT has held up the renewals");
    }
    assert!(tries > 1 && kept.fencing_token() == first);
    let waiter = spawn_waiter(&locks, "wanted");
    replica.thaw().unwrap();
    release(until_granted(waiter).await).await;
    release(kept).await;
    drained(&master).await;
}

/// There will never be enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_replicas_than_exist_are_an_error_in_time() {
    let (master, _replica) = pair().await;
    let locks = direct(&master, "replicas=2&unreachable_after=1500ms").await;
    let error = soon("patience ends", locks.lock("lock").acquire()).await.unwrap_err();
    assert_in_vain(&error, "replicas=2");
    drained(&master).await;
    let error = soon("a try ends", locks.lock("lock").try_acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    drained(&master).await;
}

/// Row 44, lesson 9: between the grant and its confirmation, too.
/// Fault 44: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_dropped_at_any_await_leaves_nothing_while_replicas_confirm() {
    let (master, replica) = pair().await;
    let locks = direct(&master, "replicas=1&ttl=20s").await;
    for frozen in [false, true] {
        if frozen {
            replica.freeze().await.unwrap();
        }
        for polls in 0..12 {
            let lock = locks.lock("lock");
            let other = spawn_waiter(&locks, "other");
            let mut acquiring = Box::pin(lock.acquire());
            for _ in 0..polls {
                let polled = async {
                    poll_fn(|cx| Poll::Ready(acquiring.as_mut().poll(cx).is_ready())).await
                };
                if polled.await {
                    break;
                }
                tokio::time::sleep(ms(2)).await;
            }
            drop(acquiring);
            if frozen {
                other.abort();
                let _ = other.await;
            } else {
                // Its confirmation may have been sent together with the dropped one's.
                release(until_granted(other).await).await;
            }
        }
        drained(&master).await;
    }
    replica.thaw().unwrap();
    release(acquire(&locks, "lock").await).await;
    drained(&master).await;
}
