//! Resources: what one process may cost a server and itself.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::mpsc;

use fencelock_core::{FencingToken, Guard, Locks};
use fencelock_testkit::servers::TestRedis;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::support::*;

/// The number of subscribers, and of connections other than the test's own.
async fn traffic(server: &TestRedis) -> (usize, usize) {
    let channels = redis_command(server, &["PUBSUB", "CHANNELS"]).await.lines().count();
    let clients = redis_command(server, &["CLIENT", "LIST"]).await;
    (channels, clients.lines().filter(|client| !client.contains("cmd=client")).count())
}

/// Lesson 2: other libraries ran out of subscriptions at 250 contended locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_contended_locks_need_one_subscription() {
    const LOCKS: usize = if cfg!(debug_assertions) { 1000 } else { 10_000 };
    let server = TestRedis::start().await.unwrap();
    let (holder, waiting) = (direct(&server, "ttl=60s").await, direct(&server, "ttl=60s").await);
    let name = |n: usize| format!("lock-{n}");
    let held = join_all((0..LOCKS).map(|n| {
        let lock = holder.lock(name(n));
        async move { lock.acquire().await.expect("held") }
    }));
    let held = within(PATIENCE * 2, "all are held", held).await;
    let waiters = (0..2 * LOCKS).map(|n| spawn_waiter(&waiting, &name(n / 2))).collect::<Vec<_>>();
    until("all wait", async || {
        let queues = "local n = 0
            for _, key in ipairs(redis.call('KEYS', '*:q')) do
              n = n + redis.call('ZCOUNT', key, '1000000000000000', '+inf')
            end
            return n";
        redis_command(&server, &["EVAL", queues, "0"]).await == (2 * LOCKS).to_string()
    })
    .await;
    // A channel and a connection for each of the two clients.
    assert_eq!(traffic(&server).await, (2, 2));
    for guard in held {
        drop(guard);
    }
    let tokens = within(PATIENCE * 2, "all are granted", in_turns(waiters)).await;
    assert_eq!(tokens.len(), 2 * LOCKS);
    assert_eq!(traffic(&server).await, (2, 2));
    drained(&server).await;
}

const CHILD: &str = "FENCELOCK_FAULTS_PORT";

/// Lessons 2 and 9: the memory of a claim is freed with it. In a process of its own, whose memory no
/// other test uses.
#[test]
fn memory_does_not_grow_with_past_claims() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(TestRedis::start()).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limits::child_that_measures_itself", "--ignored", "--nocapture"])
        .env(CHILD, server.port().to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    let kib = |word: &str| -> i64 {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(word));
        line.and_then(|number| number.trim().parse().ok()).unwrap()
    };
    let grown = kib("after:") - kib("before:");
    // 2,700 claims of a few hundred bytes each would be more.
    assert!(grown < 700, "grown by {grown} KiB");
    runtime.block_on(drained(&server));
}

#[tokio::test]
#[ignore = "is started by memory_does_not_grow_with_past_claims"]
async fn child_that_measures_itself() {
    let port = std::env::var(CHILD).expect("a port");
    let locks = connect(&format!("redis://127.0.0.1:{port}")).await;
    let blocker = acquire(&locks, "busy").await;
    let churn = async |locks: &Locks, rounds: usize| {
        for round in 0..rounds {
            release(acquire(locks, &format!("lock-{}", round % 7)).await).await;
            assert!(is_busy(locks, "busy").await);
            let waiting = locks.lock("busy");
            // Some are dropped before they are queued, some after.
            let waited = tokio::time::timeout(ms(round as u64 % 3), waiting.acquire()).await;
            assert!(waited.is_err());
        }
        until_queued(locks, "busy", 0).await;
    };
    churn(&locks, 300).await;
    println!("\nbefore: {}", resident());
    churn(&locks, 900).await;
    println!("\nafter: {}", resident());
    release(blocker).await;
}

/// In KiB, without the pages of the program itself, which are loaded on first use.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Row 46: tasks that hold, wait, acquire and release are dropped by the runtime's end.
/// Fault 46: redis
#[test]
fn the_end_of_the_runtime_during_any_operation_causes_no_panic() {
    let outside = runtime();
    let server = outside.block_on(TestRedis::start()).unwrap();
    let other = outside.block_on(direct(&server, "ttl=2s"));
    let mut tokens = BTreeSet::new();
    for _ in 0..2 {
        let ending = runtime();
        let (report, reports) = mpsc::channel::<FencingToken>();
        let (kept, keep) = mpsc::channel::<Guard>();
        ending.block_on(async {
            let locks = direct(&server, "ttl=1s").await;
            for n in 0..20 {
                let (lock, report) = (locks.lock(format!("lock-{}", n % 3)), report.clone());
                let kept = (n < 3).then(|| kept.clone());
                tokio::spawn(async move {
                    loop {
                        let Ok(guard) = lock.acquire().await else { return };
                        let _ = report.send(guard.fencing_token());
                        if let Some(kept) = &kept {
                            let _ = kept.send(guard);
                            return;
                        }
                        let _ = guard.release().await;
                    }
                });
            }
        });
        let first = reports.recv_timeout(PATIENCE).expect("one claim is granted");
        tokens.insert(first);
        drop(ending);
        // A guard that outlives its runtime is lost, and can be dropped.
        for guard in keep.try_iter() {
            assert!(!guard.is_held());
        }
        outside.block_on(async {
            for n in 0..3 {
                let guard = acquire(&other, &format!("lock-{n}")).await;
                assert!(tokens.last() < Some(&guard.fencing_token()) || n > 0);
                release(guard).await;
            }
        });
    }
    outside.block_on(drained(&server));
}
