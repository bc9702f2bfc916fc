//! Servers that restart, freeze, load, are blocked by a script, or lose data.

use fencelock_conformance::ProtectedRegister;
use fencelock_core::{ErrorKind, LostReason};
use fencelock_testkit::scenes;
use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::support::*;

/// Row 17: what a server without persistence cannot promise, and what the token is for.
/// Fault 17: redis (permitted: the restarted server grants a lock that is still believed in)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_without_persistence_the_token_still_rises() {
    let server = TestRedis::start().await.unwrap();
    let (one, other) = (direct(&server, "ttl=3s").await, direct(&server, "ttl=30s").await);
    let register = ProtectedRegister::checking();
    let forgotten = acquire(&one, "lock").await;
    assert!(register.write(forgotten.fencing_token().get(), 1));
    let waiters = [spawn_waiter(&one, "lock"), spawn_waiter(&other, "lock")];
    until_queued(&one, "lock", 2).await;
    server.restart().await.unwrap();
    let tokens = in_turns(waiters).await;
    assert!(tokens.len() == 2 && tokens[0] > forgotten.fencing_token(), "{tokens:?}");
    assert!(register.write(tokens[0].get(), 2));
    soon("the holder is notified", forgotten.lost()).await;
    assert!(!register.write(forgotten.fencing_token().get(), 3), "a stale write was accepted");
    let releasing = soon("its release ends", forgotten.release()).await;
    assert_kind(&releasing.unwrap_err(), ErrorKind::NotHeld);
    drained(&server).await;
}

/// Row 18, also by SIGKILL: the server writes its log before it replies.
/// Fault 18: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_append_only_file_holders_and_waiters_survive_a_restart() {
    let server = RedisOptions::new().append_only().start().await.unwrap();
    let (one, other) = (direct(&server, "ttl=8s").await, direct(&server, "ttl=8s").await);
    let kept = acquire(&one, "lock").await;
    let mut waiters = Vec::new();
    for locks in [&other, &one, &other] {
        waiters.push(spawn_waiter(locks, "lock"));
        until_queued(locks, "lock", waiters.len()).await;
    }
    server.kill().unwrap();
    server.restart().await.unwrap();
    assert!(is_busy(&other, "lock").await);
    until_renewed(&one, &kept, ms(8000)).await;
    server.restart().await.unwrap();
    let mut token = kept.fencing_token();
    release(kept).await;
    for waiter in waiters {
        let guard = until_granted(waiter).await;
        assert!(guard.fencing_token() > token);
        token = guard.fencing_token();
        release(guard).await;
    }
    drained(&server).await;
}

/// Row 19.
/// Fault 19: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_on_a_frozen_server_are_lost_in_time_and_it_works_again_afterwards() {
    let (server, locks) = started("ttl=1s").await;
    scenes::frozen(&server, &locks).await;
    drained(&server).await;
}

/// The test for `server`, to which `url` connects, possibly as a master of several.
pub(crate) async fn loading(server: &TestRedis, url: &str) {
    let locks = connect(url).await;
    let (kept, waiter) = contested(&locks, &locks, "lock").await;
    let meanwhile = Box::pin(async {
        let fresh = spawn_waiter(&locks, "lock");
        let newcomer = connect(url).await;
        refused_with(&newcomer, "lock", "is loading its data").await;
        (fresh, newcomer)
    });
    let (fresh, newcomer) = while_loading(server, meanwhile).await;
    until_queued(&newcomer, "lock", 2).await;
    assert!(kept.is_held());
    release(kept).await;
    // Places may be lost if the server loads for longer than it keeps them.
    in_turns([waiter, fresh]).await;
}

/// Has the server load its data until this returns.
pub(crate) async fn while_loading<T>(server: &TestRedis, meanwhile: impl Future<Output = T>) -> T {
    // In a slot of this server, if there are slots.
    redis_command(server, &["DEBUG", "POPULATE", "8000", "{lock:lock}"]).await;
    // 1 ms for each key; clients are served after every few keys.
    set(server, "key-load-delay", "1000").await;
    set(server, "loading-process-events-interval-bytes", "1024").await;
    let loading =
        async || redis_command(server, &["INFO", "persistence"]).await.contains("loading:1");
    let mut operator = Operator::of(server).await;
    let reload = operator.says("DEBUG RELOAD");
    let meanwhile = async {
        until("it loads", async || loading().await).await;
        let done = meanwhile.await;
        assert!(loading().await, "it was ready too soon to test anything");
        set(server, "key-load-delay", "0").await;
        done
    };
    let (reloaded, done) = tokio::join!(reload, meanwhile);
    assert_eq!(reloaded, "+OK\r\n");
    let ballast = "for i = 0, 7999 do redis.call('DEL', KEYS[1] .. ':' .. i) end";
    redis_command(server, &["EVAL", ballast, "1", "{lock:lock}"]).await;
    done
}

/// Row 25; the suite tests the holder, this the waiters.
/// Fault 25: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_a_flushall_and_deleted_queues_and_tokens() {
    let server = TestRedis::start().await.unwrap();
    let clients = [direct(&server, "ttl=2s").await, direct(&server, "ttl=2s").await];
    for forget in [
        &["FLUSHALL"][..],
        &["DEL", "{lock:one}:q"],
        &["DEL", "lock:one", "{lock:one}:q"],
        &["DEL", "lock:one", "{lock:one}:q", "{lock:one}:f"],
    ] {
        let held = acquire(&clients[0], "one").await;
        let mut waiters = Vec::new();
        for client in clients.iter().cycle().take(6) {
            waiters.push(spawn_waiter(client, "one"));
            until_queued(client, "one", waiters.len()).await;
        }
        assert!(
            redis_command(&server, &["EXISTS", "lock:one"]).await == "1",
            "the prefix has changed"
        );
        redis_command(&server, forget).await;
        let lost = if forget[1..].contains(&"lock:one") || forget[0] == "FLUSHALL" {
            let reason = soon("the holder is notified", held.lost()).await;
            assert_eq!(reason, LostReason::TakenAway);
            Some(held)
        } else {
            release(held).await;
            None
        };
        let token = lost.as_ref().map(fencelock_core::Guard::fencing_token);
        let tokens = in_turns(waiters).await;
        assert_eq!(tokens.len(), 6, "after {forget:?}");
        assert!(tokens.is_sorted() && token < Some(tokens[0]), "{token:?} {tokens:?}");
        drop(lost);
        drained(&server).await;
    }
}
