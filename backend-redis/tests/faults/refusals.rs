//! Servers that refuse requests: full, read-only, without replicas, without permission.

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use tokio::time::Instant;

use crate::support::*;

/// Row 27: a redis:// URL names one server, which an operator may change back.
/// Fault 27: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_read_only_for_a_moment_loses_nothing() {
    let (server, locks) = started("ttl=20s").await;
    let (kept, waiter) = contested(&locks, &locks, "kept").await;
    // A replica of a master that does not exist, so that it keeps its data.
    redis_command(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    refused_with(&locks, "fresh", "a replica").await;
    let fresh = spawn_waiter(&locks, "fresh");
    let releasing = tokio::spawn(kept.release());
    refused_with(&locks, "other", "a replica").await;
    redis_command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    soon("the release succeeds", releasing).await.unwrap().unwrap();
    release(until_granted(fresh).await).await;
    release(until_granted(waiter).await).await;
    drained(&server).await;
}

/// Row 37: a full server accepts no new claims, and continues to serve the old ones.
/// Fault 37: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_claims_and_nothing_else() {
    let (server, locks) = started("ttl=2s").await;
    let held = acquire(&locks, "lock").await;
    let readers = [locks.rw_lock("doc").read(), locks.rw_lock("doc").read()];
    let reader = readers[0].acquire().await.unwrap();
    let writer = locks.rw_lock("doc").write();
    let writer = tokio::spawn(async move { writer.acquire().await });
    until_queued(&locks, "doc", 1).await;
    let waiter = queued(&locks, "lock", 1).await;
    set(&server, "maxmemory", "1").await;
    refused_with(&locks, "fresh", "maxmemory").await;
    until_renewed(&locks, &held, ms(2000)).await;
    until_renewed(&locks, &reader, ms(2000)).await;
    release(held).await;
    let next = until_granted(waiter).await;
    until_renewed(&locks, &next, ms(2000)).await;
    release(next).await;
    release(reader).await;
    let writer = until_granted(writer).await;
    until_renewed(&locks, &writer, ms(2000)).await;
    release(writer).await;
    let fresh = spawn_waiter(&locks, "fresh");
    set(&server, "maxmemory", "0").await;
    release(until_granted(fresh).await).await;
    drained(&server).await;
}

/// Row 37: the other policies evict locks, which the profile reports.
/// Fault 37: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_evict_locks_is_reported_in_the_profile() {
    let server = TestRedis::start().await.unwrap();
    let dangers = async || {
        let profile = direct(&server, "").await.profile().clone();
        profile.exclusion_fails_when.join("; ")
    };
    assert!(!dangers().await.contains("evict"));
    set(&server, "maxmemory", "100mb").await;
    assert!(!dangers().await.contains("evict"));
    set(&server, "maxmemory-policy", "volatile-ttl").await;
    assert!(dangers().await.contains("evict"), "{}", dangers().await);
}

/// Without this the path of its file is fixed.
pub(crate) fn may_rename_its_file(options: RedisOptions) -> RedisOptions {
    options.arg("--enable-protected-configs").arg("local")
}

/// The test for `server`, to which `url` connects, possibly as a master of several.
pub(crate) async fn cannot_save(server: &TestRedis, url: &str) {
    let locks = connect(url).await;
    let held = acquire(&locks, "lock").await;
    // There is a directory at the path of the file.
    std::fs::create_dir(server.directory().join("taken")).expect("a directory");
    set(server, "dbfilename", "taken").await;
    set(server, "save", "3600 1").await;
    redis_command(server, &["BGSAVE"]).await;
    until("saving has failed", async || {
        redis_command(server, &["INFO", "persistence"]).await.contains("rdb_last_bgsave_status:err")
    })
    .await;
    refused_with(&locks, "lock", "cannot save").await;
    let fresh = spawn_waiter(&locks, "lock");
    let releasing = tokio::spawn(held.release());
    refused_with(&locks, "lock", "cannot save").await;
    assert!(!fresh.is_finished() && !releasing.is_finished(), "it could save");
    set(server, "save", "").await;
    soon("the release succeeds", releasing).await.expect("no panic").expect("released");
    release(until_granted(fresh).await).await;
}

/// The test for `server`, to which `url` connects, possibly as a master of several.
pub(crate) async fn no_room(server: &TestRedis, url: &str) {
    let locks = connect(url).await;
    let kept = acquire(&locks, "lock").await;
    let mut operator = Operator::of(server).await;
    assert_eq!(operator.says("CONFIG SET maxclients 1").await, "+OK\r\n");
    // The server replies so and closes the connection. A client that is still writing may see the
    // closed connection first, without the reason: sometimes, never each time.
    let mut said = String::new();
    for _ in 0..100 {
        let error = connect_once(url).await.expect_err("there is no room");
        assert_kind(&error, ErrorKind::Unreachable);
        said = error_chain(&error);
        if said.contains("no more clients") {
            break;
        }
    }
    assert!(said.contains("no more clients"), "{said}");
    // Nor is there room for the connected client, once it has to reconnect.
    for kind in ["normal", "pubsub"] {
        operator.says(&format!("CLIENT KILL TYPE {kind}")).await;
    }
    assert_kind(&acquire_error(&locks, "lock", ms(200)).await, ErrorKind::Unreachable);
    let fresh = spawn_waiter(&locks, "lock");
    assert_kind(&acquire_error(&locks, "lock", ms(200)).await, ErrorKind::Unreachable);
    assert_eq!(operator.says("CONFIG SET maxclients 100").await, "+OK\r\n");
    until_queued(&locks, "lock", 1).await;
    until_renewed(&locks, &kept, ms(20_000)).await;
    hand_over(kept, fresh).await;
}

/// Row 41: a password that is changed at the server first. Clients notice when they reconnect, and
/// wait for as long as for a server that is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_being_changed_is_waited_for() {
    let server = RedisOptions::new().password("correct").start().await.unwrap();
    let patient = connect(&format!("{}?ttl=60s", server.url())).await;
    let hasty = connect(&format!("{}?ttl=60s&unreachable_after=1s", server.url())).await;
    let (held, waiter) = contested(&patient, &patient, "held").await;
    set(&server, "requirepass", "changed").await;
    let mut operator = Operator::of(&server).await;
    operator.says("AUTH changed").await;
    operator.says("CLIENT KILL TYPE pubsub").await;
    let fresh = spawn_waiter(&patient, "fresh");
    let releasing = tokio::spawn(held.release());
    // A claim that stops waiting gets the server's error: the first time perhaps only that the
    // connection broke, from then on always, also while no request is sent.
    let in_vain = async || {
        let asked = Instant::now();
        let error = soon("it ends", hasty.lock("lock").acquire()).await.expect_err("refused");
        assert!(asked.elapsed() >= ms(1000), "{:?}", asked.elapsed());
        error
    };
    until("it is refused", async || in_vain().await.kind() == ErrorKind::Refused).await;
    for _ in 0..4 {
        let error = in_vain().await;
        assert_kind(&error, ErrorKind::Refused);
        assert!(
            error_chain(&error).contains("check the URL's user and password"),
            "{}",
            error_chain(&error)
        );
    }
    assert!(!fresh.is_finished() && !waiter.is_finished() && !releasing.is_finished());
    operator.says("CONFIG SET requirepass correct").await;
    soon("the release succeeds", releasing).await.unwrap().unwrap();
    release(until_granted(fresh).await).await;
    release(until_granted(waiter).await).await;
    drained(&server).await;
}

/// An unreadable key may be the claim's own: the release is an error that names the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_permission_to_read_is_refused() {
    let server = RedisOptions::new().acl_user("limited on >pw ~* &* +@all").start().await.unwrap();
    let locks = connect(&format!("redis://limited:pw@{}/0?ttl=60s", server.addr())).await;
    let users =
        async |rule: &str| drop(redis_command(&server, &["ACL", "SETUSER", "limited", rule]).await);
    for (denied, allowed) in [("-get", "+get"), ("-type", "+type")] {
        let (exclusive, waiter) = contested(&locks, &locks, "exclusive").await;
        let reader = soon("granted", locks.rw_lock("group").read().acquire()).await.unwrap();
        users(denied).await;
        // A group needs no GET, and an exclusive lock no TYPE.
        let refused = if denied == "-get" { exclusive } else { reader };
        let error = soon("it ends", refused.release()).await.expect_err(denied);
        assert_kind(&error, ErrorKind::Refused);
        assert!(
            error_chain(&error).contains("the ACL denies it"),
            "{denied}: {}",
            error_chain(&error)
        );
        users(allowed).await;
        waiter.abort();
        for name in ["exclusive", "group"] {
            let seen = locks.inspect(name).await.unwrap();
            for holder in &seen.holders {
                locks.evict(name, &holder.id).await.unwrap();
            }
        }
        drained(&server).await;
    }
}
