//! The replies of real servers that do not serve: each error has the same meaning for a step sent
//! alone, for one in a batch, at a cluster and at the nodes of a quorum.

use fencelock_core::{Error, ErrorKind, Guard, Locks, url};
use fencelock_redis::{REDLOCK_SCHEME, redlock};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::*;

/// A condition of servers, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    ReadOnly,
    NoReplicas,
    OutOfMemory,
    CannotSave,
    Busy,
    DeniedCommand,
    DeniedKey,
    OtherType,
}

use ServerFault::*;

const LOCKS: usize = 64;

fn name(n: usize) -> String {
    format!("lock-{n}")
}

impl ServerFault {
    const ALL: [ServerFault; 8] =
        [ReadOnly, NoReplicas, OutOfMemory, CannotSave, Busy, DeniedCommand, DeniedKey, OtherType];

    fn kind(self) -> ErrorKind {
        match self {
            DeniedCommand | DeniedKey => ErrorKind::Refused,
            OtherType => ErrorKind::Foreign,
            ReadOnly | NoReplicas | OutOfMemory | CannotSave | Busy => ErrorKind::Unreachable,
        }
    }

    fn says(self) -> &'static str {
        match self {
            ReadOnly => "a replica",
            NoReplicas => "min-replicas-to-write",
            OutOfMemory => "maxmemory",
            CannotSave => "cannot save",
            Busy => "a long script",
            DeniedCommand | DeniedKey => "the ACL denies it",
            OtherType => "has another type",
        }
    }

    /// Whether this version of the server can be made to return it from a script.
    pub(crate) async fn is_possible_at(self, server: &TestRedis) -> bool {
        let before_7 =
            redis_command(server, &["INFO", "server"]).await.contains("redis_version:6.");
        !(before_7 && self == NoReplicas)
    }

    pub(crate) async fn inject(self, server: &TestRedis) {
        match self {
            // A replica of a master that does not exist, so that it keeps its data.
            ReadOnly => drop(redis_command(server, &["REPLICAOF", "127.0.0.1", "1"]).await),
            NoReplicas => set(server, "min-replicas-to-write", "9").await,
            OutOfMemory => set(server, "maxmemory", "1").await,
            CannotSave => {
                // The saved file does not replace a directory. Before Redis 7 a master has
                // saved a file there for its replicas.
                let dump = server.directory().join("dump.rdb");
                let _ = std::fs::remove_file(&dump);
                std::fs::create_dir_all(dump.join("x")).expect("made");
                set(server, "save", "3600 1").await;
                set(server, "stop-writes-on-bgsave-error", "yes").await;
                redis_command(server, &["BGSAVE"]).await;
                until("saving has failed", async || {
                    let info = redis_command(server, &["INFO", "persistence"]).await;
                    info.contains("rdb_last_bgsave_status:err")
                })
                .await;
            }
            Busy => {
                set(server, "lua-time-limit", "20").await;
                let mut line = TcpStream::connect(server.addr()).await.expect("a connection");
                line.write_all(b"EVAL \"while true do end\" 0\r\n").await.expect("an order");
                until("it is busy", async || {
                    let answer = server.command(&["PING"]).await;
                    answer.is_err_and(|error| error.to_string().contains("BUSY"))
                })
                .await;
            }
            DeniedCommand => {
                drop(redis_command(server, &["ACL", "SETUSER", "limited", "-set"]).await);
            }
            DeniedKey => {
                let keys = ["resetkeys", "~fencelock:redlock", "~{*"];
                redis_command(server, &[&["ACL", "SETUSER", "limited"], &keys[..]].concat()).await;
            }
            OtherType => {
                for n in 0..LOCKS {
                    let token = format!("{{lock:{}}}:f", name(n));
                    // At the slot's server, where there are slots.
                    let _ = server.command(&["DEL", &token]).await;
                    let _ = server.command(&["RPUSH", &token, "foreign"]).await;
                }
            }
        }
    }

    pub(crate) async fn heal(self, server: &TestRedis) {
        match self {
            ReadOnly => drop(redis_command(server, &["REPLICAOF", "NO", "ONE"]).await),
            NoReplicas => set(server, "min-replicas-to-write", "0").await,
            OutOfMemory => set(server, "maxmemory", "0").await,
            CannotSave => set(server, "stop-writes-on-bgsave-error", "no").await,
            Busy => {
                redis_command(server, &["SCRIPT", "KILL"]).await;
                until("it serves", async || server.command(&["PING"]).await.is_ok()).await;
            }
            DeniedCommand => {
                drop(redis_command(server, &["ACL", "SETUSER", "limited", "+set"]).await);
            }
            DeniedKey => drop(redis_command(server, &["ACL", "SETUSER", "limited", "~*"]).await),
            OtherType => {
                for n in 0..LOCKS {
                    let token = format!("{{lock:{}}}:f", name(n));
                    let _ = server.command(&["DEL", &token]).await;
                }
            }
        }
    }
}

fn options() -> RedisOptions {
    RedisOptions::new().acl_user("limited on >pw ~* &* +@all")
}

/// Concurrent attempts, each on a lock of its own: their errors while the fault lasts, and their
/// grants afterwards.
async fn meets(servers: &[&TestRedis], locks: &Locks, fault: ServerFault, count: usize) {
    join_all(servers.iter().map(|server| fault.inject(server))).await;
    // What is final ends the wait at once; a busy machine needs the time.
    let wait = if fault.kind() == ErrorKind::Unreachable { ms(300) } else { PATIENCE / 2 };
    until(&format!("{fault:?}: {count} fail with the reason"), async || {
        let asking = (0..count).map(|n| {
            let lock = locks.lock(name(n)).wait_at_most(wait);
            async move { lock.acquire().await }
        });
        let answers = within(PATIENCE, "all have replies", join_all(asking)).await;
        let says = |error: &Error| error_chain(error).contains(fault.says());
        let mut errors = Vec::new();
        for answer in answers {
            match answer {
                Err(error) => errors.push(error),
                // A script that has written, such as a release, may continue when memory is full.
                Ok(guard) if fault == OutOfMemory && count > 1 => release(guard).await,
                Ok(_) => panic!("{fault:?}, {count}: granted"),
            }
        }
        for error in &errors {
            assert_eq!(error.kind(), fault.kind(), "{fault:?}, {count}: {}", error_chain(error));
            // On a busy machine a temporary error may also be reported as a timeout.
            let is_sure = says(error) || fault.kind() == ErrorKind::Unreachable;
            assert!(is_sure, "{fault:?}, {count}: {}", error_chain(error));
        }
        errors.iter().any(says)
    })
    .await;
    join_all(servers.iter().map(|server| fault.heal(server))).await;
    let asking = (0..count).map(|n| async move { acquire(locks, &name(n)).await });
    let guards: Vec<Guard> = join_all(asking).await;
    join_all(guards.into_iter().map(release)).await;
}

#[tokio::test]
async fn a_server_error_has_the_same_meaning_alone_and_in_a_batch() {
    let server = options().start().await.unwrap();
    let locks = connect(&format!("redis://limited:pw@{}/0?ttl=60s", server.addr())).await;
    for fault in ServerFault::ALL {
        if fault.is_possible_at(&server).await {
            for count in [1, LOCKS] {
                meets(&[&server], &locks, fault, count).await;
            }
            drained(&server).await;
        }
    }
}

#[tokio::test]
async fn a_server_error_has_the_same_meaning_in_a_cluster() {
    let cluster = options().cluster().await.unwrap();
    cluster.never_fail_over().await.unwrap();
    let masters: Vec<&TestRedis> = cluster.nodes()[..3].iter().collect();
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://limited:pw@");
    let locks = connect(&format!("{url}?ttl=60s")).await;
    // A master of a cluster does not become a replica in this way.
    for fault in ServerFault::ALL.into_iter().filter(|fault| *fault != ReadOnly) {
        if fault.is_possible_at(masters[0]).await {
            meets(&masters, &locks, fault, 16).await;
        }
    }
    for master in masters {
        drained(master).await;
    }
}

/// Faults 21, 37, 38: redlock
#[tokio::test]
async fn a_server_error_has_the_same_meaning_at_the_nodes_of_a_quorum() {
    let nodes = join_all((0..3).map(|_| options().start())).await;
    let nodes: Vec<TestRedis> = nodes.into_iter().map(Result::unwrap).collect();
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock://limited:pw@{}/0?ttl=20s&clock_tolerance=5s", hosts.join(","));
    redlock::init(&url).await.unwrap();
    let locks = connect_retrying(|| url::connect(&[REDLOCK_SCHEME], &url)).await;
    for fault in ServerFault::ALL {
        if fault.is_possible_at(&nodes[0]).await {
            for count in [1, LOCKS] {
                meets(&nodes.iter().collect::<Vec<_>>(), &locks, fault, count).await;
            }
        }
    }
}
