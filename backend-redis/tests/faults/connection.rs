//! Connections that fail, in every way in which they do.

use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_conformance::proxy::{AfterDrop, Close, Direction, DropReply, NewConnections};
use fencelock_conformance::{How, ProtectedRegister};
use fencelock_core::Locks;
use tokio::time::Instant;

use crate::support::*;

/// Row 10: the peer vanishes silently, such as behind a firewall that dropped the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced_within_seconds() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("ttl=30s").await, rig.behind("ttl=12s").await);
    let kept = hold(&far, "kept").await;
    let blocker = hold(&near, "wanted").await;
    let waiter = wait_for(&far, "wanted");
    queued(&near, "wanted", 1).await;
    rig.proxy.drop_reply(DropReply::first(AfterDrop::BlackHole)).unwrap();
    soon("a reply vanishes", rig.proxy.dropped_reply()).await;
    let vanished = Instant::now();
    // The waiter cannot be notified over its connection.
    give_back(blocker).await;
    let guard = granted(waiter).await;
    let silent = vanished.elapsed();
    assert!(silent < ms(6000), "granted {silent:?} after the connection had failed");
    renewed(&far, &kept, ms(12_000)).await;
    give_back(guard).await;
    give_back(kept).await;
    drained(&rig.server).await;
}

/// Row 11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_direction_dropped_a_holder_is_lost_in_time_and_work_continues_afterwards() {
    let one_way = async |direction: Direction| {
        const TTL: u64 = 1500;
        let rig = Rig::start().await;
        let (near, far) = (rig.direct("ttl=30s").await, rig.behind("ttl=1500ms").await);
        let held = hold(&far, "held").await;
        let next = wait_for(&near, "held");
        let blocker = hold(&near, "wanted").await;
        let waiter = wait_for(&far, "wanted");
        queued(&near, "wanted", 1).await;
        queued(&near, "held", 1).await;
        let cut = far.now();
        rig.proxy.black_hole(direction);
        lost_in_time(&far, &held, cut, ms(TTL)).await;
        let next = granted(next).await;
        assert!(!held.is_held());
        assert!(next.fencing_token() > held.fencing_token());
        give_back(blocker).await;
        rig.proxy.heal().await.unwrap();
        give_back(granted(waiter).await).await;
        give_back(next).await;
        drop(held);
        give_back(hold(&far, "held").await).await;
        drained(&rig.server).await;
    };
    tokio::join!(one_way(Direction::ToServer), one_way(Direction::ToClient));
}

/// Rows 12 and 23, lesson 1: the push of that release had no receiver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_while_the_subscription_was_down_is_noticed_at_once_afterwards() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("ttl=30s").await, rig.behind("ttl=30s").await);
    let kept = hold(&far, "kept").await;
    let mut late = Vec::new();
    for round in 0..7 {
        let blocker = hold(&near, "wanted").await;
        let waiter = wait_for(&far, "wanted");
        queued(&near, "wanted", 1).await;
        let how = if round % 2 == 0 { Close::Reset } else { Close::Fin };
        let before = rig.proxy.stats().accepted;
        rig.proxy.cut(how, NewConnections::Refused).await.unwrap();
        give_back(blocker).await;
        rig.proxy.heal().await.unwrap();
        soon("the client reconnects", rig.proxy.accepted(before + 1)).await;
        let back = Instant::now();
        let guard = granted(waiter).await;
        late.push(back.elapsed());
        give_back(guard).await;
    }
    // The check of each second would take half of one on average.
    late.sort_unstable();
    assert!(late[3] < ms(200), "granted so late after reconnecting: {late:?}");
    renewed(&far, &kept, ms(30_000)).await;
    give_back(kept).await;
    drained(&rig.server).await;
}

/// Row 23.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_kill_ends_no_hold_and_no_place_in_the_queue() {
    let rig = Rig::start().await;
    let clients = [rig.direct("ttl=3s").await, rig.direct("ttl=3s").await];
    let kept = hold(&clients[0], "kept").await;
    let blocker = hold(&clients[0], "wanted").await;
    let mut waiters = Vec::new();
    for client in &clients {
        for _ in 0..2 {
            waiters.push(wait_for(client, "wanted"));
            queued(client, "wanted", waiters.len()).await;
        }
    }
    ask(&rig.server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    until("all are subscribed again", async || {
        ask(&rig.server, &["PUBSUB", "CHANNELS"]).await.lines().count() == 2
    })
    .await;
    renewed(&clients[0], &kept, ms(3000)).await;
    give_back(blocker).await;
    for waiter in waiters {
        // In the order of their arrival: a later one is not granted before.
        let guard = granted(waiter).await;
        ask(&rig.server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        give_back(guard).await;
    }
    give_back(kept).await;
    drained(&rig.server).await;
}

/// Row 16.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flapping_connection_only_slows_things_down_and_leaves_no_orphans() {
    const GRANTS: usize = 30;
    let rig = Rig::start().await;
    let clients = [rig.behind("ttl=5s").await, rig.behind("ttl=5s").await, rig.direct("").await];
    let flapping = rig.proxy.flap(ms(300), ms(700), Close::Reset, NewConnections::Closed);
    flapping.await.unwrap();
    let register = std::sync::Arc::new(ProtectedRegister::checking());
    let work = async |locks: Locks, register: std::sync::Arc<ProtectedRegister>| {
        let mut worker = Worker::new();
        let mut grants = 0;
        while grants < GRANTS || rig.proxy.stats().cuts < 5 {
            let (guard, claim) = worker.acquire(&locks, "one", How::Exclusive).await.unwrap();
            register.write(guard.fencing_token().get(), grants as u64);
            tokio::time::sleep(ms(5)).await;
            // The history has the result.
            let _ = worker.release(guard, claim).await;
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
    rig.proxy.heal().await.unwrap();
    drained(&rig.server).await;
}

/// Row 15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_from_the_server_is_an_error_and_then_a_new_connection() {
    let garbage: [&[u8]; 8] = [
        b"\x00\xff\x13garbage\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$99999999999999999999\r\n",
        b"$-7\r\n",
        b"*2147483647\r\n",
        b":12345678901234567890123\r\n",
        b"%1\r\n",
        b"-\r\n",
    ];
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("ttl=30s").await, rig.behind("ttl=9s").await);
    let kept = hold(&far, "kept").await;
    for bytes in garbage {
        let shown = String::from_utf8_lossy(bytes);
        let blocker = hold(&near, "wanted").await;
        let waiter = wait_for(&far, "wanted");
        queued(&near, "wanted", 1).await;
        assert!(rig.proxy.inject(bytes) > 0);
        give_back(blocker).await;
        let guard = soon(&format!("after {shown:?} a waiter is granted"), waiter).await;
        give_back(guard.unwrap().unwrap()).await;
        assert!(kept.is_held(), "lost by {shown:?}");
    }
    give_back(kept).await;
    drained(&rig.server).await;
}

/// Row 15: replies that are truncated or have bits flipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_reply_does_no_harm() {
    let tear: [fn(&mut Vec<u8>); 5] = [
        |reply| reply[0] ^= 0x7f,
        |reply| reply.truncate(1),
        |reply| reply.truncate(reply.len() - 1),
        |reply| reply.iter_mut().for_each(|byte| *byte ^= 0xff),
        |reply| reply.insert(1, b'-'),
    ];
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("").await, rig.behind("ttl=9s&unreachable_after=15s").await);
    for tear in tear {
        rig.proxy.mangle_next_reply(tear);
        let lock = far.lock("torn");
        // An invalid reply may be an error for the caller.
        if let Ok(guard) = soon("an acquisition ends", lock.acquire()).await {
            let _ = soon("a release ends", guard.release()).await;
        }
        soon("a reply was damaged", rig.proxy.mangled_reply()).await;
        give_back(hold(&near, "torn").await).await;
        give_back(hold(&far, "torn").await).await;
    }
    drained(&rig.server).await;
}

/// Row 15: after the beginning of a push the next replies are parsed as its rest, and from then on
/// each reply is taken for that to an earlier request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_out_of_step_is_replaced() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("ttl=30s").await, rig.behind("ttl=3s").await);
    let kept = hold(&far, "kept").await;
    for torn in [&b">3\r\n$7\r\nmessage\r\n"[..], b"*2\r\n"] {
        let blocker = hold(&near, "wanted").await;
        let waiter = wait_for(&far, "wanted");
        queued(&near, "wanted", 1).await;
        assert!(rig.proxy.inject(torn) > 0);
        give_back(blocker).await;
        let guard = granted(waiter).await;
        assert!(guard.fencing_token() > kept.fencing_token(), "{guard:?}");
        give_back(guard).await;
    }
    drop(kept);
    drained(&rig.server).await;
}
