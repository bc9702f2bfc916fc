//! Cells: their keys, their watches and the replicas that confirm them, beyond what every store promises.

use std::time::Duration;

use fencelock_core::{Cell, CellValue, CellWatch, Content, ErrorKind, Keep, Locks, Stamp};
use fencelock_testkit::servers::{TestCluster, TestRedis, TestSentinel};
use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::*;

/// Without a notification the next read comes five seconds after the one that saw the last change.
const AT_ONCE: Duration = Duration::from_secs(4);

async fn put(cell: &Cell, bytes: &[u8]) {
    let seen = soon("the cell is read", cell.read()).await.expect("an answer");
    let setting = cell.compare_and_set(seen.map(|value| value.version()), bytes);
    let set = soon("it is written", setting).await.expect("an answer");
    assert!(set, "no other client writes");
}

async fn bytes(cell: &Cell) -> Option<Vec<u8>> {
    let seen = soon("the cell is read", cell.read()).await.expect("an answer");
    seen.map(|value| value.bytes().to_vec())
}

/// Waits until the watch has seen these bytes.
async fn sees(watch: &mut CellWatch, bytes: Option<&[u8]>) {
    let next = async |watch: &mut CellWatch| watch.next().await.expect("an answer");
    let seeing = async { while next(watch).await.as_ref().map(CellValue::bytes) != bytes {} };
    soon("the change is seen", seeing).await;
}

/// As [`sees`], by a notification.
async fn is_told(watch: &mut CellWatch, bytes: Option<&[u8]>) {
    let since = Instant::now();
    sees(watch, bytes).await;
    assert!(since.elapsed() < AT_ONCE, "{bytes:?} was seen after {:?}", since.elapsed());
}

/// For the store itself, whatever is in it.
fn content(stamp: u8) -> Content {
    Content { stamp: Stamp::from_bytes([stamp; Stamp::BYTES]), bytes: vec![0, b'\n'] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_notified_of_every_kind_of_change_at_once() {
    let server = TestRedis::start().await.unwrap();
    let (one, other) = (direct(&server, "").await, direct(&server, "").await);
    let cell = one.cell("value");
    let mut watch = other.cell("value").watch().await.unwrap();
    sees(&mut watch, None).await;
    // A waiter of the same client watches a key of another program meanwhile.
    redis_command(&server, &["SET", "lock:x", "foreign"]).await;
    let waiter = queued(&other, "x", 1).await;
    for round in 0..3u8 {
        put(&cell, &[round]).await;
        is_told(&mut watch, Some(&[round])).await;
    }
    redis_command(&server, &["DEL", "{lock:value}:c"]).await;
    is_told(&mut watch, None).await;
    put(&cell, b"x").await;
    is_told(&mut watch, Some(b"x")).await;
    redis_command(&server, &["PEXPIRE", "{lock:value}:c", "50"]).await;
    is_told(&mut watch, None).await;
    put(&cell, b"y").await;
    is_told(&mut watch, Some(b"y")).await;
    redis_command(&server, &["DEL", "lock:x"]).await;
    release(until_granted(waiter).await).await;
    redis_command(&server, &["FLUSHALL"]).await;
    is_told(&mut watch, None).await;
    // After a reconnect, too.
    put(&cell, b"z").await;
    is_told(&mut watch, Some(b"z")).await;
    for kind in ["normal", "pubsub"] {
        redis_command(&server, &["CLIENT", "KILL", "TYPE", kind]).await;
    }
    put(&cell, b"last").await;
    is_told(&mut watch, Some(b"last")).await;
    soon("it is removed", cell.remove()).await.unwrap();
    drained(&server).await;
}

/// Row 43.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_of_another_program_is_an_error_and_stays_as_it_is() {
    let (server, locks) = started("").await;
    let key = "{lock:x}:c";
    let large = "x".repeat(Content::MAX_BYTES + Stamp::BYTES + 1);
    let foreign: [&[&str]; 8] = [
        &["SET", key, ""],
        &["SET", key, "fifteen letters"],
        &["SET", key, "a text of more than 16 letters"],
        &["SET", key, &large],
        &["RPUSH", key, "a"],
        &["HSET", key, "a", "b"],
        &["ZADD", key, "1", "a"],
        &["XADD", key, "1-1", "a", "b"],
    ];
    for put in foreign {
        redis_command(&server, put).await;
        let sum = "return redis.sha1hex(redis.call('DUMP', KEYS[1]))";
        let dump = async || redis_command(&server, &["EVAL", sum, "1", key]).await;
        let before = dump().await;
        let put = &put[..2];
        let error = soon("a read ends", locks.cell("x").read()).await.expect_err("foreign");
        assert_kind(&error, ErrorKind::Foreign);
        let error = soon("a write ends", locks.counter("x").add(1)).await.expect_err("foreign");
        assert_kind(&error, ErrorKind::Foreign);
        let watched = locks.cell("x");
        let watching = async { watched.watch().await?.next().await };
        let error = soon("a watch ends", watching).await.expect_err("foreign");
        assert_kind(&error, ErrorKind::Foreign);
        // A long text may be a cell, for the store: of another stamp.
        match locks.swap_cell("x", None, Some(&content(7)), Keep::Forever).await {
            Ok(false) => {}
            Ok(true) => panic!("{put:?} was overwritten"),
            Err(error) => assert_kind(&error, ErrorKind::Foreign),
        }
        assert_eq!(dump().await, before, "{put:?} was changed");
        redis_command(&server, &["DEL", key]).await;
    }
    put(&locks.cell("x"), b"ours").await;
    soon("it is removed", locks.cell("x").remove()).await.unwrap();
    drained(&server).await;
}

/// Row 37: what is there can still be read, and removed.
/// Fault 37: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_writes_of_cells_and_keeps_what_is_there() {
    let (server, locks) = started("unreachable_after=1s").await;
    let cell = locks.cell("value");
    put(&cell, b"before").await;
    set(&server, "maxmemory", "1").await;
    let seen = cell.read().await.unwrap().unwrap().version();
    let setting = cell.compare_and_set(Some(seen), *b"after");
    let error = soon("patience ends", setting).await.expect_err("it is full");
    assert_kind(&error, ErrorKind::Unreachable);
    let error = locks.swap_cell("other", None, Some(&content(7)), Keep::Forever).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("maxmemory"), "{}", error_chain(&error));
    assert_eq!(bytes(&cell).await.as_deref(), Some(&b"before"[..]));
    soon("it is removed", cell.remove()).await.unwrap();
    set(&server, "maxmemory", "0").await;
    put(&cell, b"again").await;
    soon("it is removed", cell.remove()).await.unwrap();
    drained(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_is_kept_for_as_long_as_was_said() {
    let (server, locks) = started("").await;
    let ttl = async |name: &str| -> i64 {
        redis_command(&server, &["PTTL", &format!("{{lock:{name}}}:c")]).await.parse().unwrap()
    };
    put(&locks.cell("a"), b"a").await;
    assert_eq!(ttl("a").await, -1);
    let brief = locks.cell("a").keep_for(Duration::from_secs(600));
    put(&brief, b"b").await;
    let left = ttl("a").await;
    assert!(left > 0 && left <= 600_000 && left > 600_000 - 30_000, "{left} ms");
    put(&locks.cell("a"), b"c").await;
    assert_eq!(ttl("a").await, -1);
    soon("it is removed", locks.cell("a").remove()).await.unwrap();
    // Of the store itself, whatever the core allows.
    let keep = Keep::For(Duration::MAX);
    assert!(locks.swap_cell("a", None, Some(&content(7)), keep).await.unwrap());
    assert!(ttl("a").await > i64::MAX / 4);
    assert!(locks.swap_cell("a", Some(content(7).stamp), None, keep).await.unwrap());
    drained(&server).await;
}

#[tokio::test]
async fn concurrent_swaps_share_calls() {
    const CELLS: u64 = 300;
    let (server, locks) = started("").await;
    let (content, keep) = (&content(7), Keep::For(Duration::from_secs(600)));
    let swap_all = async |from, to| {
        let swapping = (0..CELLS).map(|n| locks.swap_cell(format!("cell-{n}"), from, to, keep));
        let swapped = within(PATIENCE, "all have replies", join_all(swapping)).await;
        assert!(swapped.into_iter().all(Result::unwrap));
    };
    // Loads the text of the scripts.
    swap_all(None, Some(content)).await;
    redis_command(&server, &["CONFIG", "RESETSTAT"]).await;
    swap_all(Some(content.stamp), None).await;
    let calls = calls(&server, "evalsha").await;
    // A busy machine may send some again.
    assert!(calls <= 3 * (16 + (CELLS - 16).div_ceil(64)), "{calls} calls");
    drained(&server).await;
}

fn spawn_add(locks: &Locks) -> JoinHandle<fencelock_core::Result<i64>> {
    let counter = locks.counter("number");
    tokio::spawn(async move { counter.add(1).await })
}

/// With `replicas=N` also one that was asked again, or read to settle it.
/// Fault 28: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_a_cell_counts_once_the_replica_has_it() {
    let (master, replica) = crate::replicas::pair().await;
    let locks = direct(&master, "replicas=1").await;
    let hasty = direct(&master, "replicas=1&unreachable_after=1500ms").await;
    for n in 1..=20 {
        assert_eq!(soon("it is added", locks.counter("number").add(1)).await.unwrap(), n);
        let at = async |server| redis_command(server, &["GET", "{lock:number}:c"]).await;
        assert_eq!(at(&replica).await, at(&master).await);
    }
    replica.freeze().await.unwrap();
    let error = soon("patience ends", hasty.counter("number").add(1)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("may or may not"), "{}", error_chain(&error));
    // A busy machine may be late with that answer.
    until("it says what it waits for", async || {
        let written = content(7);
        let swap = hasty.swap_cell("other", None, Some(&written), Keep::Forever);
        let error = swap.await.expect_err("the replica does not have it");
        assert_kind(&error, ErrorKind::Unreachable);
        error_chain(&error).contains("replicas=1")
    })
    .await;
    let adding = spawn_add(&locks);
    tokio::time::sleep(ms(2500)).await;
    assert!(!adding.is_finished(), "the replica does not have it");
    replica.thaw().unwrap();
    // The one that gave up was made.
    assert_eq!(soon("it is added", adding).await.unwrap().unwrap(), 22);
    assert_eq!(soon("it is read", locks.counter("number").get()).await.unwrap(), 22);
    // Asked again, it has nothing to write, and is confirmed all the same.
    assert!(hasty.swap_cell("other", None, Some(&content(7)), Keep::Forever).await.unwrap());
    let other = Some(content(7).stamp);
    assert!(locks.swap_cell("other", other, None, Keep::Forever).await.unwrap());
    // Removals, too.
    replica.freeze().await.unwrap();
    let counter = locks.counter("number");
    let removing = tokio::spawn(async move { counter.remove().await });
    tokio::time::sleep(ms(1500)).await;
    assert!(!removing.is_finished(), "the replica still has it");
    replica.thaw().unwrap();
    soon("it is removed", removing).await.unwrap().unwrap();
    assert_eq!(redis_command(&replica, &["DBSIZE"]).await, "0");
    drained(&master).await;
}

/// Row 29: the watch follows the slot, also while it is moving.
/// Fault 29: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cells_and_their_watches_follow_a_slot() {
    let servers = TestCluster::start().await.unwrap();
    let (one, other) = (connect(&servers.url()).await, connect(&servers.url()).await);
    let slot = TestCluster::slot_of("{lock:value}:c");
    assert_eq!(slot, TestCluster::slot_of("lock:value"));
    let cell = one.cell("value");
    let mut watch = other.cell("value").watch().await.unwrap();
    put(&cell, b"before").await;
    sees(&mut watch, Some(b"before")).await;
    let from = servers.master_of(slot).await.unwrap().port();
    let to = servers.nodes()[..3].iter().find(|node| node.port() != from).unwrap();
    let migration = servers.begin_migration(slot, to).await.unwrap();
    put(&cell, b"still at the old master").await;
    is_told(&mut watch, Some(b"still at the old master")).await;
    migration.move_keys().await.unwrap();
    for round in 0..3u8 {
        put(&cell, &[round]).await;
        is_told(&mut watch, Some(&[round])).await;
    }
    // Absent in both places.
    soon("it is removed", cell.remove()).await.unwrap();
    is_told(&mut watch, None).await;
    put(&cell, b"new").await;
    is_told(&mut watch, Some(b"new")).await;
    migration.finish().await.unwrap();
    for round in 0..3u8 {
        put(&cell, &[round]).await;
        sees(&mut watch, Some(&[round])).await;
    }
    put(&cell, b"at the new master").await;
    is_told(&mut watch, Some(b"at the new master")).await;
    servers.replicas_caught_up().await.unwrap();
    servers.kill_master_of(slot).await.unwrap();
    put(&cell, b"after a failover").await;
    sees(&mut watch, Some(b"after a failover")).await;
    soon("it is removed", cell.remove()).await.unwrap();
    sees(&mut watch, None).await;
    drained(servers.master_of(slot).await.unwrap()).await;
}

/// Rows 26 and 27: while the master changes, each add counts once, and what the replicas had is there.
/// Faults 26, 27: sentinel
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_and_repeats_no_write_that_the_replicas_have() {
    const ADDS: i64 = 40;
    let servers = TestSentinel::start().await.unwrap();
    let (one, other) =
        (connect(&servers.url()).await, connect(&format!("{}?replicas=1", servers.url())).await);
    let mut watch = one.cell("value").watch().await.unwrap();
    put(&one.cell("value"), b"before").await;
    sees(&mut watch, Some(b"before")).await;
    let mut least = 0;
    for killed in [false, true] {
        for locks in [&one, &other] {
            for _ in 0..ADDS {
                soon("it is added", locks.counter("number").add(1)).await.unwrap();
            }
        }
        least += 2 * ADDS;
        servers.replicas_caught_up().await.unwrap();
        let before = soon("it is read", one.counter("number").get()).await.unwrap();
        assert!(before >= least, "{before} of {least}");
        // Asked again until the new master answers.
        let adding = [&one, &other].map(spawn_add);
        match killed {
            false => servers.failover().await.unwrap(),
            true => servers.kill_master().await.unwrap(),
        };
        for adding in adding {
            within(PATIENCE, "it is added", adding).await.unwrap().unwrap();
        }
        let now = soon("it is read", other.counter("number").get()).await.unwrap();
        // The two may have been made by the old master, which takes them with it.
        assert!((before..=before + 2).contains(&now), "{now} after {before}");
        least = now;
        if !killed {
            servers.settled().await.unwrap();
        }
    }
    put(&other.cell("value"), b"after").await;
    sees(&mut watch, Some(b"after")).await;
    soon("it is removed", one.cell("value").remove()).await.unwrap();
    soon("it is removed", one.counter("number").remove()).await.unwrap();
    drained(servers.master().await.unwrap()).await;
}
