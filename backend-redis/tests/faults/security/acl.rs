//! The least permissions that a user needs: every word of the documented rules, and no more.

use fencelock_core::{ErrorKind, Guard, Locks, LostReason};
use fencelock_testkit::helpers::*;
use fencelock_testkit::servers::{RedisOptions, TestCluster, TestRedis, TestSentinel};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::security::document::{more_for, rules};
use crate::security::support::{connect, use_all, use_cells, use_once, words};
use crate::support::{contested, hand_over, queued};

const LOGIN: &str = "jobs:correct-horse";
/// A topic of the document's list.
const NOTIFIED: &str =
    "to be notified of a foreign client's release, and of a cell's change, at once";

/// Gives the user these rules and no others, on a server where it has used nothing yet.
async fn allow(server: &TestRedis, rules: &[&str]) {
    let user = ["ACL", "SETUSER", "jobs", "reset", "resetchannels", "on", ">correct-horse"];
    server.command(&[&user, rules].concat()).await.unwrap();
    for command in [["FLUSHALL", "SYNC"], ["SCRIPT", "FLUSH"]] {
        server.command(&command).await.unwrap();
    }
}

fn url(server: &TestRedis, end: &str) -> String {
    format!("redis://{LOGIN}@{}{end}", server.addr())
}

#[tokio::test]
async fn the_documented_rules_suffice_and_each_is_needed() {
    let server = TestRedis::start().await.unwrap();
    let rules = rules();
    allow(&server, &rules).await;
    use_all(&url(&server, "")).await.unwrap();
    for gone in &rules {
        let rest: Vec<_> = rules.iter().copied().filter(|rule| rule != gone).collect();
        allow(&server, &rest).await;
        let start = Instant::now();
        let error = use_all(&url(&server, "")).await.expect_err(gone);
        println!("without {gone}, after {:?}: {error}", start.elapsed());
        // Not waited for, as a server that is down would be.
        assert!(
            matches!(error.kind(), ErrorKind::Refused | ErrorKind::Unsupported),
            "{gone}: {error}"
        );
    }
}

#[tokio::test]
async fn the_additional_rules_for_parameters_are_documented() {
    let options = RedisOptions::new().append_only();
    let topology = options.sentinel().await.unwrap();
    let master = topology.master().await.unwrap();
    for (topic, end) in [("a database other than 0", "/3"), ("`replicas=N`", "?replicas=2")] {
        allow(master, &rules()).await;
        let error = use_all(&url(master, end)).await.expect_err(topic);
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        allow(master, &[rules(), more_for(topic)].concat()).await;
        use_all(&url(master, end)).await.unwrap();
    }
}

#[tokio::test]
async fn the_rules_for_notifications_are_optional() {
    let server = TestRedis::start().await.unwrap();
    for (more, heard) in
        [(Vec::new(), "tracking_clients:0"), (more_for(NOTIFIED), "tracking_clients:1")]
    {
        allow(&server, &[rules(), more].concat()).await;
        let locks = connect(&url(&server, "")).await.unwrap();
        server.command(&["SET", "lock:a", "other"]).await.unwrap();
        let waiting = queued(&locks, "a", 1).await;
        let clients = server.command(&["INFO", "clients"]).await.unwrap();
        assert!(clients.contains(heard), "{heard}: {clients}");
        server.command(&["DEL", "lock:a"]).await.unwrap();
        release(until_granted(waiting).await).await;
        use_cells(&locks).await.unwrap();
        locks.close().await.unwrap();
        // The server takes a moment to notice the end of a connection.
        until("it has gone", async || {
            !redis_command(&server, &["CLIENT", "LIST"]).await.contains("user=jobs")
        })
        .await;
    }
}

/// Fault 41: sentinel
#[tokio::test]
async fn the_rules_for_sentinel_suffice() {
    let topology = TestSentinel::start().await.unwrap();
    for node in topology.nodes() {
        // Replicas refuse FLUSHALL, and have no keys.
        let user = ["ACL", "SETUSER", "jobs", "on", ">correct-horse"];
        node.command(&[&user[..], &rules()].concat()).await.unwrap();
    }
    let at_sentinels = more_for("`redis+sentinel://`, at the sentinels");
    let sentinels = topology.sentinels().iter().map(|server| server.addr().to_string());
    let sentinels = sentinels.collect::<Vec<_>>().join(",");
    let login = "sentinel_user=looker&sentinel_password=battery";
    let url = format!("redis+sentinel://{LOGIN}@{sentinels}/{}?{login}", topology.service());
    for (rules, suffice) in [(&[][..], false), (&at_sentinels[..], true)] {
        for sentinel in topology.sentinels() {
            let user = ["ACL", "SETUSER", "looker", "on", ">battery"];
            sentinel.command(&[&user[..], rules].concat()).await.unwrap();
        }
        let used = use_all(&url).await;
        assert_eq!(used.is_ok(), suffice, "{used:?}");
    }
}

/// Fault 41: cluster
#[tokio::test]
async fn the_rules_for_a_cluster_suffice_and_each_is_needed() {
    let cluster = TestCluster::start().await.unwrap();
    let nodes = cluster.nodes().iter().map(|server| server.addr().to_string());
    let nodes = nodes.collect::<Vec<_>>().join(",");
    let url = format!("redis-cluster://{LOGIN}@{nodes}");
    let more = more_for("`redis-cluster://`");
    allow_all(&cluster, "jobs", &[&rules()[..], &more].concat()).await;
    use_all(&url).await.unwrap();

    // While a slot moves, locks can be used whose keys have all moved: held, and waited for.
    let locks = connect(&url).await.unwrap();
    let (guard, waiting) = contested(&locks, &locks, "once").await;
    let slot = TestCluster::slot_of("lock:once");
    let from = cluster.master_of(slot).await.unwrap();
    let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
    let moving = cluster.begin_migration(slot, to).await.unwrap();
    moving.move_keys().await.unwrap();
    // Another user's rules: a waiter would be refused, too, if it checked its place meanwhile.
    let less = format!("redis-cluster://less:correct-horse@{nodes}?unreachable_after=1s");
    for gone in &more {
        let rest: Vec<_> = more.iter().copied().filter(|rule| rule != gone).collect();
        allow_all(&cluster, "less", &[&rules()[..], &rest].concat()).await;
        println!("without {gone}: {}", use_once(&less).await.expect_err(gone));
    }
    release(guard).await;
    let next = until_granted(waiting).await;
    moving.finish().await.unwrap();
    release(next).await;
}

async fn allow_all(cluster: &TestCluster, user: &str, rules: &[&str]) {
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", user, "reset", "resetchannels", "on", ">correct-horse"];
        node.command(&[&user, rules].concat()).await.unwrap();
    }
}

#[tokio::test]
async fn another_prefix_is_refused_at_once() {
    let server = TestRedis::start().await.unwrap();
    allow(&server, &rules()).await;
    let start = Instant::now();
    let error = connect(&url(&server, "?prefix=other:")).await.unwrap_err();
    assert_refused(&error, start);

    // The channels are allowed, the keys are not.
    allow(&server, &[&rules()[..], &["allchannels"]].concat()).await;
    let locks = connect(&url(&server, "?prefix=other:")).await.unwrap();
    let start = Instant::now();
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert_refused(&error, start);
    let error = locks.rw_lock("a").read().try_acquire().await.unwrap_err();
    assert_refused(&error, start);
    let error = locks.inspect("a").await.unwrap_err();
    assert_refused(&error, start);
    locks.close().await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]).await.unwrap(), "0");
}

fn assert_refused(error: &fencelock_core::Error, start: Instant) {
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(!error.is_retryable(), "{error}");
    // A server is waited for half a minute.
    assert!(start.elapsed() < PATIENCE, "{error} after {:?}", start.elapsed());
    assert!(words(error).contains("docs/redis.md"), "{error}");
    assert!(!words(error).contains("correct-horse"), "{error}");
}

/// Of the table in docs/guarantees.md.
#[tokio::test]
async fn a_user_of_other_keys_changes_nothing() {
    let server = TestRedis::start().await.unwrap();
    allow(&server, &["~other:*", "&other:*", "+@all", "-@dangerous", "-@admin"]).await;
    let locks = connect(&server.url()).await.unwrap();
    let (held, waiter) = contested(&locks, &locks, "a").await;
    let mut stranger = BufReader::new(TcpStream::connect(server.addr()).await.unwrap());
    for command in [
        "DEL lock:a",
        "SET lock:a x",
        "GET lock:a",
        "PEXPIRE lock:a 1",
        "RENAME lock:a other:a",
        "ZADD {lock:a}:q 1 x",
        "INCR {lock:a}:f",
        "EVAL \"return redis.call('DEL','lock:a')\" 0",
        "EVAL \"return redis.call('DEL',KEYS[1])\" 1 lock:a",
        "PUBLISH lock:@0123456789abcdef x",
        "FLUSHALL",
        "SWAPDB 0 1",
        "KEYS *",
        "MONITOR",
        "CLIENT KILL TYPE pubsub",
        "CLIENT PAUSE 10000",
        "CONFIG SET maxmemory 1",
        "REPLICAOF 127.0.0.1 1",
        "ACL SETUSER jobs allkeys",
        "SHUTDOWN NOSAVE",
    ] {
        let asked = format!("AUTH jobs correct-horse\r\n{command}\r\n");
        stranger.write_all(asked.as_bytes()).await.unwrap();
        let mut said = [String::new(), String::new()];
        for said in &mut said {
            soon(command, stranger.read_line(said)).await.unwrap();
        }
        assert!(said[0].starts_with("+OK") && said[1].starts_with('-'), "{command}: {said:?}");
    }
    until_queued(&locks, "a", 1).await;
    assert!(held.is_held() && !waiter.is_finished());
    hand_over(held, waiter).await;
    locks.close().await.unwrap();
}

/// Or the next would begin while it is at work. Its prefix need not be the operator's.
#[tokio::test]
async fn the_lock_of_a_holder_that_cannot_be_told_is_not_taken() {
    let server = TestRedis::start().await.unwrap();
    allow(&server, &["allkeys", "allchannels", "+@all"]).await;
    let locks = connect(&format!("{}?prefix=lock:app:&ttl=1h", server.url())).await.unwrap();
    let operator = connect(&url(&server, "")).await.unwrap();
    cannot_be_told(&server, &operator, acquire(&locks, "a").await, &locks).await;
    let reader = locks.rw_lock("a").read().acquire().await.unwrap();
    cannot_be_told(&server, &operator, reader, &locks).await;
    locks.close().await.unwrap();
}

async fn cannot_be_told(server: &TestRedis, operator: &Locks, held: Guard, locks: &Locks) {
    let waiter = queued(locks, "a", 1).await;
    let holder = locks.inspect("a").await.unwrap().holders.remove(0).id;
    let commands = ["publish", "del", "zrem", "zrange", "zincrby"];
    let commands = commands.map(|it| [format!("-{it}"), format!("+{it}")]);
    let channels = ["resetchannels &lock:@*", "allchannels"].map(str::to_owned);
    for [denied, allowed] in commands.into_iter().chain([channels]) {
        let set = async |rules: &str| {
            let rules = rules.split(' ').collect::<Vec<_>>();
            server.command(&[&["ACL", "SETUSER", "jobs"], &rules[..]].concat()).await.unwrap();
        };
        set(&denied).await;
        assert_kind(&operator.evict("app:a", &holder).await.unwrap_err(), ErrorKind::Refused);
        let seen = locks.inspect("a").await.unwrap();
        assert_eq!((&seen.holders[0].id, seen.waiters.len()), (&holder, 1), "{denied}");
        set(&allowed).await;
    }
    assert!(operator.evict("app:a", &holder).await.unwrap());
    assert_eq!(soon("it is told", held.lost()).await, LostReason::TakenAway);
    release(until_granted(waiter).await).await;
}
