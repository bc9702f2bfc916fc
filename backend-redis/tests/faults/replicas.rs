//! `replicas=N`: grants that count only once replicas have them.

use std::future::poll_fn;
use std::task::Poll;

use fencelock_core::{Content, ErrorKind, Guard, Keep, Locks, Stamp};
use fencelock_testkit::proxy::{Close, Proxy};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::join_all;
use tokio::time::{Duration, Instant};

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
        let waiter = queued(&locks, &name, 1).await;
        hand_over(guard, waiter).await;
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

/// Until each of these is renewed, or would have been.
async fn past_a_renewal(locks: &Locks, held: &[Guard], ttl: Duration) {
    let due = held.iter().map(Guard::valid_until).max().expect("some are held");
    let left = due.duration_since(locks.now());
    tokio::time::sleep((left + SLACK).saturating_sub(ttl * 2 / 3)).await;
}

/// As by the DNS, or a proxy, with connections that end and begin again. The replica is behind: it has none of the
/// locks, and does not follow.
/// Fault 27: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_believed_of_a_replica_to_which_the_name_leads() {
    let (master, replica) = pair().await;
    redis_command(&replica, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let proxy = Proxy::start(master.addr()).await.unwrap();
    let url = format!("redis://{}/0?ttl=20s&unreachable_after=3s", proxy.addr());
    let (locks, other) = (connect(&url).await, direct(&master, "").await);
    let names: Vec<_> = (0..1_000).map(|n| format!("lock-{n}")).collect();
    let held = join_all(names.iter().map(|name| acquire(&locks, name))).await;
    assert!(locks.cell("value").compare_and_set(None, *b"new").await.unwrap());
    proxy.lead_to(replica.addr());
    proxy.close_connections(Close::Reset).await;
    refused_with(&locks, "free", "is a replica").await;
    let error = try_connect(&url).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("the server is a replica"), "{error}");
    // A process that starts meanwhile waits, too.
    let patient = url.replace("=3s", "=60s");
    let starting = tokio::spawn(async move { try_connect(&patient).await });
    assert_kind(
        &soon("refused", locks.cell("value").read()).await.unwrap_err(),
        ErrorKind::Unreachable,
    );
    past_a_renewal(&locks, &held, ms(20_000)).await;
    assert!(held.iter().all(Guard::is_held));
    proxy.lead_to(master.addr());
    proxy.close_connections(Close::Reset).await;
    for guard in &held {
        until_renewed(&locks, guard, ms(20_000)).await;
        assert!(is_busy(&other, guard.name().as_str()).await);
    }
    for guard in held {
        release(guard).await;
    }
    locks.cell("value").remove().await.unwrap();
    soon("connected", starting).await.unwrap().unwrap();
    drained(&master).await;
}

/// A master that becomes a replica where it is keeps its connections. What it has lost, or still has, says nothing.
/// Fault 27: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_believed_of_a_master_that_became_a_replica() {
    let server = TestRedis::start().await.unwrap();
    let (locks, other) =
        (direct(&server, "ttl=9s").await, direct(&server, "unreachable_after=2s").await);
    let held = [acquire(&locks, "kept").await];
    let reader = locks.rw_lock("read").read().acquire().await.unwrap();
    // A refused request ends its connection: each has one of its own.
    let own = async || direct(&server, "ttl=9s&unreachable_after=1s").await;
    let [releasing, changing, swapping, looking] =
        [own().await, own().await, own().await, own().await];
    let left = acquire(&releasing, "left").await;
    let writer = changing.rw_lock("write").write().acquire().await.unwrap();
    // By the step itself: the library compares with what it has read before.
    let content = |n| Content { stamp: Stamp::from_bytes([n; 16]), bytes: vec![n] };
    let swap = async |from: Option<Stamp>, to: Content| {
        swapping.swap_cell("value", from, Some(&to), Keep::Forever).await
    };
    assert!(swap(None, content(1)).await.unwrap());
    redis_command(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    // Not busy: it may be free at the new master.
    let error = soon("refused", other.lock("kept").try_acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    let health = other.health(PATIENCE).await;
    assert!(health.connected && health.answered.is_none());
    set(&server, "replica-read-only", "no").await;
    for key in ["kept", "read"] {
        redis_command(&server, &["RENAME", &format!("lock:{key}"), &format!("away:{key}")]).await;
    }
    redis_command(&server, &["DEL", "lock:left", "lock:write", "{lock:value}:c"]).await;
    set(&server, "replica-read-only", "yes").await;
    let (swapped, downgraded, released, seen) = tokio::join!(
        swap(Some(content(1).stamp), content(2)),
        writer.downgrade(),
        left.release(),
        looking.inspect("left")
    );
    let all = [swapped.map(drop), downgraded, released, seen.map(drop)]
        .map(|it| it.map_err(|error| error.kind()));
    assert_eq!(all, [Err(ErrorKind::Unreachable); 4], "swap, downgrade, release, inspect");
    past_a_renewal(&locks, &held, ms(9000)).await;
    assert!(held[0].is_held() && reader.is_held());
    set(&server, "replica-read-only", "no").await;
    for key in ["kept", "read"] {
        redis_command(&server, &["RENAME", &format!("away:{key}"), &format!("lock:{key}")]).await;
    }
    redis_command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    let [held] = held;
    for guard in [held, reader] {
        until_renewed(&locks, &guard, ms(9000)).await;
        release(guard).await;
    }
    drained(&server).await;
}
