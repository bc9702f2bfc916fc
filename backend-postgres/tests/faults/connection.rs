//! The connection of a client: reset, half open, silent in one direction, garbled, or its session ended.

use fencelock_testkit::proxy::Direction;
use fencelock_testkit::scenes;

use crate::support::*;

/// Row 23. The backends of all clients end, as by an administrator.
/// Fault 23: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_ends_no_hold_and_no_place_in_the_queue() {
    let server = database().await;
    let clients = [direct(&server, "ttl=9s").await, direct(&server, "ttl=9s").await];
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
    until_renewed(&clients[0], &kept, ms(9000)).await;
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
    let others = format!("SELECT application_name FROM pg_stat_activity WHERE {IS_OURS}");
    let others = sql(&testbed.server, &others).await;
    let far = testbed.through_proxy("ttl=30s").await;
    // Each look moves it, which comes once a second.
    let deadline = "SELECT coalesce(max(deadline), 0) FROM fencelock.processes";
    let deadline = async || sql(&testbed.server, deadline).await;
    let mut without_a_look = false;
    // On a busy machine a look comes between in most rounds.
    for _ in 0..40 {
        let (mut held, mut waiters) = (Vec::new(), Vec::new());
        for name in ["one", "two", "three"] {
            held.push(acquire(&near, name).await);
            waiters.push(spawn_waiter(&far, name));
            until_queued(&near, name, 1).await;
        }
        let last = deadline().await;
        until("it has looked", async || deadline().await != last).await;
        let accepted = testbed.proxy.stats().accepted;
        // It does not learn of its end yet.
        testbed.proxy.stall(Direction::ToClient);
        let end = format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE {IS_OURS} AND application_name <> '{others}'"
        );
        assert_eq!(sql(&testbed.server, &end).await, "t");
        for guard in held {
            release(guard).await;
        }
        let before = deadline().await;
        testbed.proxy.heal().await.unwrap();
        for waiter in waiters {
            release(until_granted(waiter).await).await;
        }
        assert!(testbed.proxy.stats().accepted > accepted, "its session was not ended");
        without_a_look = deadline().await == before;
        if without_a_look {
            break;
        }
    }
    assert!(without_a_look, "none was granted before a look");
    drained(&testbed.server).await;
}

/// Row 10: the peer vanishes silently, such as behind a firewall that dropped the connection.
/// Fault 10: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced_within_seconds() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=12s").await);
    scenes::half_open(&testbed.proxy, &near, &far, ms(12_000)).await;
    drained(&testbed.server).await;
}

/// Pushes that are lost although the session lives, such as those of a LISTEN that a tool has ended.
/// Fault 55: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_pushes_a_waiter_is_granted_within_a_look() {
    let server = database().await;
    mute(&server).await;
    let (one, other) = (direct(&server, "ttl=30s").await, direct(&server, "ttl=30s").await);
    let late = hand_overs(&one, &other).await;
    // A look is a second after the last one; that each was granted is the promise.
    assert!(late[2] > ms(100), "it was told: {late:?}");
    drained(&server).await;
}

/// Row 12, lesson 1: the push of that release had no receiver.
/// Fault 12: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_connection_was_down_is_noticed_at_once_afterwards() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=30s").await);
    scenes::released_while_down(&testbed.proxy, &near, &far, ms(30_000), ms(300)).await;
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
    scenes::garbage(&testbed.proxy, &near, &far, &garbage).await;
    drained(&testbed.server).await;
}
