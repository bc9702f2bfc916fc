//! The connection of a client: reset, half open, silent in one direction, garbled, or its session ended.

use std::sync::Arc;

use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_conformance::{How, ProtectedRegister};
use fencelock_core::Locks;
use fencelock_testkit::proxy::{AfterDrop, Close, Direction, DropReply, NewConnections};
use tokio::time::Instant;

use crate::support::*;

/// Row 23. The backends of all clients end, as by an administrator.
/// Fault 23: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_ends_no_hold_and_no_place_in_the_queue() {
    let server = start().await;
    let clients = [direct(&server, "ttl=3s").await, direct(&server, "ttl=3s").await];
    let kept = acquire(&clients[0], "kept").await;
    let blocker = acquire(&clients[0], "wanted").await;
    let mut waiters = Vec::new();
    for client in &clients {
        for _ in 0..2 {
            waiters.push(spawn_waiter(client, "wanted"));
            until_queued(client, "wanted", waiters.len()).await;
        }
    }
    server.end_sessions().await.unwrap();
    until_renewed(&clients[0], &kept, ms(3000)).await;
    release(blocker).await;
    for waiter in waiters {
        // In the order of their arrival: a later one is not granted before.
        let guard = until_granted(waiter).await;
        server.end_sessions().await.unwrap();
        release(guard).await;
    }
    release(kept).await;
    until("each client has its session", async || sessions(&server).await == 2).await;
    drained(&server).await;
}

/// The hand-over is not told to the session that has ended: all waiters ask as soon as there is another one.
/// Fault 23: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_while_the_session_was_gone_is_noticed_at_once_afterwards() {
    let testbed = Testbed::start().await;
    let near = testbed.direct("ttl=30s").await;
    let others =
        "SELECT application_name FROM pg_stat_activity WHERE application_name ~ '^fencelock_'";
    let others = sql(&testbed.server, others).await;
    let far = testbed.through_proxy("ttl=30s").await;
    let mut late = Vec::new();
    for _ in 0..7 {
        let (mut held, mut waiters) = (Vec::new(), Vec::new());
        for name in ["one", "two", "three"] {
            held.push(acquire(&near, name).await);
            waiters.push(spawn_waiter(&far, name));
            until_queued(&near, name, 1).await;
        }
        let accepted = testbed.proxy.stats().accepted;
        // It does not learn of its end yet.
        testbed.proxy.stall(Direction::ToClient);
        let end = format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE application_name ~ '^fencelock_' AND application_name <> '{others}'"
        );
        assert_eq!(sql(&testbed.server, &end).await, "t");
        for guard in held {
            release(guard).await;
        }
        testbed.proxy.heal().await.unwrap();
        let back = Instant::now();
        for waiter in waiters {
            release(until_granted(waiter).await).await;
        }
        late.push(back.elapsed());
        assert!(testbed.proxy.stats().accepted > accepted, "its session was not ended");
    }
    // The look of each second would take half of one on average.
    late.sort_unstable();
    assert!(late[3] < ms(400), "granted so late after the end of the session: {late:?}");
    drained(&testbed.server).await;
}

/// Row 10: the peer vanishes silently, such as behind a firewall that dropped the connection.
/// Fault 10: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced_within_seconds() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=12s").await);
    let kept = acquire(&far, "kept").await;
    let blocker = acquire(&near, "wanted").await;
    let waiter = spawn_waiter(&far, "wanted");
    until_queued(&near, "wanted", 1).await;
    testbed.proxy.drop_reply(DropReply::first(AfterDrop::BlackHole)).unwrap();
    soon("a reply vanishes", testbed.proxy.dropped_reply()).await;
    let vanished = Instant::now();
    // The waiter cannot be notified over its connection.
    release(blocker).await;
    let guard = until_granted(waiter).await;
    let silent = vanished.elapsed();
    assert!(silent < ms(6000), "granted {silent:?} after the connection had failed");
    until_renewed(&far, &kept, ms(12_000)).await;
    release(guard).await;
    release(kept).await;
    drained(&testbed.server).await;
}

/// Row 11.
/// Fault 11: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_direction_dropped_a_holder_is_lost_in_time_and_work_continues_afterwards() {
    let one_way = async |direction: Direction| {
        const TTL: u64 = 1500;
        let testbed = Testbed::start().await;
        let (near, far) =
            (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=1500ms").await);
        let held = acquire(&far, "held").await;
        let next = spawn_waiter(&near, "held");
        let blocker = acquire(&near, "wanted").await;
        let waiter = spawn_waiter(&far, "wanted");
        until_queued(&near, "wanted", 1).await;
        until_queued(&near, "held", 1).await;
        let cut = far.now();
        testbed.proxy.black_hole(direction);
        assert_lost_in_time(&far, &held, cut, ms(TTL)).await;
        let next = until_granted(next).await;
        assert!(!held.is_held());
        assert!(next.fencing_token() > held.fencing_token());
        release(blocker).await;
        testbed.proxy.heal().await.unwrap();
        release(until_granted(waiter).await).await;
        release(next).await;
        drop(held);
        release(acquire(&far, "held").await).await;
        drained(&testbed.server).await;
    };
    tokio::join!(one_way(Direction::ToServer), one_way(Direction::ToClient));
}

/// Pushes that are lost although the session lives, such as those of a LISTEN that a tool has ended.
/// Fault 55: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_pushes_a_waiter_is_granted_within_a_look() {
    let server = start().await;
    drop(direct(&server, "").await);
    // The functions find it before the server's own.
    let mute = "CREATE FUNCTION fencelock.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''; \
                GRANT EXECUTE ON FUNCTION fencelock.pg_notify TO PUBLIC";
    sql(&server, mute).await;
    let (one, other) = (direct(&server, "ttl=30s").await, direct(&server, "ttl=30s").await);
    let mut late = Vec::new();
    for _ in 0..5 {
        let held = acquire(&one, "lock").await;
        let waiter = spawn_waiter(&other, "lock");
        until_queued(&one, "lock", 1).await;
        release(held).await;
        let released = Instant::now();
        let guard = until_granted(waiter).await;
        late.push(released.elapsed());
        release(guard).await;
    }
    late.sort_unstable();
    assert!(late[4] < ms(1000) + SLACK, "granted {late:?} after the release");
    assert!(late[4] > ms(100), "it was told: {late:?}");
    drained(&server).await;
}

/// Row 12, lesson 1: the push of that release had no receiver.
/// Fault 12: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_connection_was_down_is_noticed_at_once_afterwards() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=30s").await);
    let kept = acquire(&far, "kept").await;
    let mut late = Vec::new();
    for round in 0..7 {
        let blocker = acquire(&near, "wanted").await;
        let waiter = spawn_waiter(&far, "wanted");
        until_queued(&near, "wanted", 1).await;
        let how = if round % 2 == 0 { Close::Reset } else { Close::Fin };
        let before = testbed.proxy.stats().accepted;
        testbed.proxy.cut(how, NewConnections::Refused).await.unwrap();
        release(blocker).await;
        testbed.proxy.heal().await.unwrap();
        soon("the client reconnects", testbed.proxy.accepted(before + 1)).await;
        let back = Instant::now();
        let guard = until_granted(waiter).await;
        late.push(back.elapsed());
        release(guard).await;
    }
    // The look of each second would take half of one on average.
    late.sort_unstable();
    assert!(late[3] < ms(300), "granted so late after reconnecting: {late:?}");
    until_renewed(&far, &kept, ms(30_000)).await;
    release(kept).await;
    drained(&testbed.server).await;
}

/// Row 16.
/// Fault 16: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flapping_connection_only_slows_things_down_and_leaves_no_orphans() {
    const GRANTS: usize = 30;
    let testbed = Testbed::start().await;
    let clients = [
        testbed.through_proxy("ttl=5s").await,
        testbed.through_proxy("ttl=5s").await,
        testbed.direct("").await,
    ];
    let flapping = testbed.proxy.flap(ms(300), ms(700), Close::Reset, NewConnections::Closed);
    flapping.await.unwrap();
    let register = Arc::new(ProtectedRegister::checking());
    let work = async |locks: Locks, register: Arc<ProtectedRegister>| {
        let mut worker = Worker::new();
        let mut grants = 0;
        while grants < GRANTS || testbed.proxy.stats().cuts < 5 {
            let (guard, claim) = worker.acquire(&locks, "one", How::Exclusive).await.unwrap();
            register.write(guard.fencing_token().get(), grants as u64);
            tokio::time::sleep(ms(5)).await;
            // The history has the result.
            let _ = worker.release(guard, &claim).await;
            grants += 1;
        }
        worker.into_events()
    };
    let workers = clients.iter().cycle().take(6).cloned();
    let workers = workers.map(|locks| work(locks, register.clone()));
    let all = within(PATIENCE * 2, "all work is done", futures_util::future::join_all(workers));
    let events = all.await.into_iter().flatten().collect();
    assert_clean(events, Rules::default());
    assert_eq!(register.stale_writes(), 0);
    testbed.proxy.heal().await.unwrap();
    drained(&testbed.server).await;
}

/// Row 15.
/// Fault 15: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_from_the_server_is_an_error_and_then_a_new_connection() {
    let garbage: [&[u8]; 8] = [
        b"\x00\xff\x13garbage\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        // Of a length that is too short, or negative.
        b"Z\x00\x00\x00\x00",
        b"D\xff\xff\xff\xff",
        // Whole messages that nothing has asked for.
        b"Z\x00\x00\x00\x05I",
        b"C\x00\x00\x00\x0dSELECT 1\x00",
        b"E\x00\x00\x00\x05\x00",
        // A notification that ends too soon.
        b"A\x00\x00\x00\x06ab",
    ];
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=12s").await);
    let kept = acquire(&far, "kept").await;
    for bytes in garbage {
        let shown = String::from_utf8_lossy(bytes);
        let blocker = acquire(&near, "wanted").await;
        let waiter = spawn_waiter(&far, "wanted");
        until_queued(&near, "wanted", 1).await;
        assert!(testbed.proxy.inject(bytes) > 0);
        release(blocker).await;
        let guard = soon(&format!("after {shown:?} a waiter is granted"), waiter).await;
        release(guard.unwrap().unwrap()).await;
        assert!(kept.is_held(), "lost by {shown:?}");
    }
    release(kept).await;
    drained(&testbed.server).await;
}

/// Row 15: replies that are truncated or have bits flipped.
/// Fault 15: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_reply_does_no_harm() {
    let tear: [fn(&mut Vec<u8>); 5] = [
        |reply| reply[0] ^= 0x7f,
        |reply| reply.truncate(1),
        |reply| reply.truncate(reply.len() - 1),
        |reply| reply.iter_mut().for_each(|byte| *byte ^= 0xff),
        |reply| reply.insert(1, b'-'),
    ];
    let testbed = Testbed::start().await;
    let (near, far) =
        (testbed.direct("").await, testbed.through_proxy("ttl=9s&unreachable_after=15s").await);
    for tear in tear {
        testbed.proxy.mangle_next_reply(tear);
        let lock = far.lock("torn");
        // An invalid reply may be an error for the caller.
        if let Ok(guard) = soon("an acquisition ends", lock.acquire()).await {
            let _ = soon("a release ends", guard.release()).await;
        }
        soon("a reply was damaged", testbed.proxy.mangled_reply()).await;
        release(acquire(&near, "torn").await).await;
        release(acquire(&far, "torn").await).await;
    }
    drained(&testbed.server).await;
}
