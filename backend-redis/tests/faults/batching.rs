//! Many claims of one client at once, whose steps share calls to the server.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencelock_core::{ErrorKind, Guard, Locks, Result};
use fencelock_testkit::proxy::Direction;
use fencelock_testkit::servers::TestRedis;
use futures_util::future::{join, join_all};
use futures_util::poll;
use tokio::task::JoinHandle;

use crate::classes::ServerFault;
use crate::support::*;

const CLAIMS: usize = 300;
/// More tasks, each with a lock of its own.
const CHURN: usize = 400;

/// All at once, each with a lock of its own.
async fn acquire_all(locks: &Locks) -> Vec<Result<Guard>> {
    let acquiring = (0..CLAIMS).map(|n| spawn_waiter(locks, &format!("lock-{n}")));
    let all = within(PATIENCE, "all have replies", join_all(acquiring)).await;
    all.into_iter().map(|joined| joined.expect("no panic")).collect()
}

#[tokio::test]
async fn concurrent_attempts_share_calls() {
    let (server, locks) = started("ttl=60s").await;
    // Loads the text of the batch script, so that only batches are counted.
    acquire_all(&locks).await.into_iter().for_each(|guard| drop(guard.unwrap()));
    drained(&server).await;
    let before = [calls(&server, "evalsha").await, calls(&server, "set").await];
    let guards: Vec<Guard> = acquire_all(&locks).await.into_iter().map(Result::unwrap).collect();
    let asked = calls(&server, "evalsha").await - before[0];
    let sets = calls(&server, "set").await - before[1];
    assert_eq!(sets, 2 * CLAIMS as u64, "each was executed once");
    // One thread: all have sent their requests before the first reply is read.
    let (alone, together) = (16, (CLAIMS as u64 - 16).div_ceil(64));
    // A busy machine may send some again; one by one they would be 300.
    assert!(asked <= 3 * (alone + together), "{asked} calls");
    for guard in guards {
        assert!(guard.is_held());
        release(guard).await;
    }
    drained(&server).await;
}

/// Fault 24: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_does_not_disturb_concurrent_attempts() {
    let (server, locks) = started("ttl=60s").await;
    for _ in 0..5 {
        redis_command(&server, &["SCRIPT", "FLUSH"]).await;
        for guard in acquire_all(&locks).await {
            release(guard.unwrap()).await;
        }
    }
    drained(&server).await;
}

/// Lesson 5, in a batch: a step that waits to be sent is sent, or not, but never after the release
/// that undoes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_attempts_of_a_batch_leave_nothing() {
    let testbed = Testbed::start().await;
    // A lock that was left would stay longer than this test waits.
    let locks = testbed.through_proxy("ttl=60s").await;
    let delay = ms(4);
    testbed.proxy.delay(Direction::ToServer, delay);
    for round in 0..20u32 {
        let acquiring: Vec<_> =
            (0..CLAIMS).map(|n| spawn_waiter(&locks, &format!("lock-{n}"))).collect();
        // From before the first request to after the last reply.
        tokio::time::sleep(delay * round / 4).await;
        cancel_every_other(acquiring).await;
    }
    testbed.proxy.heal().await.unwrap();
    drained(&testbed.server).await;
}

/// `close` releases what a caller awaits, but does not poll, while the attempt waits behind others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_is_sent_behind_its_release_at_the_end() {
    let testbed = Testbed::start().await;
    // A lock that was left would stay longer than this test waits.
    let locks = testbed.through_proxy("ttl=60s&answer_timeout=20s").await;
    testbed.proxy.stall(Direction::ToServer);
    let acquiring = (0..CLAIMS).map(async |n| locks.lock(format!("lock-{n}")).acquire().await);
    let mut acquiring = pin!(join_all(acquiring));
    assert!(poll!(tokio::task::unconstrained(&mut acquiring)).is_pending());
    let closing = locks.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    // Longer than `close` waits for their callers.
    tokio::time::sleep(ms(1500)).await;
    testbed.proxy.heal().await.unwrap();
    within(PATIENCE, "it ends", closing).await.unwrap().unwrap();
    drained(&testbed.server).await;
}

/// Rows 12 and 19: however many steps wait to be sent, each fails in time.
/// Fault 19: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_reported_in_time_to_concurrent_attempts() {
    let (server, patient) = started("ttl=60s&unreachable_after=60s").await;
    let hasty = direct(&server, "ttl=60s&unreachable_after=3s").await;
    server.freeze().await.unwrap();
    let waiting: Vec<_> =
        (0..CLAIMS).map(|n| spawn_waiter(&patient, &format!("lock-{n}"))).collect();
    // Within `PATIENCE`, far less than the patient client's minute.
    for refused in acquire_all(&hasty).await {
        assert_kind(&refused.unwrap_err(), ErrorKind::Unreachable);
    }
    server.thaw().unwrap();
    for guard in within(PATIENCE, "the others are granted", join_all(waiting)).await {
        release(guard.unwrap().unwrap()).await;
    }
    drained(&server).await;
}

/// Rows 27 and 37: a thousand tasks acquire, wait and release meanwhile. None of them fails, and no key is
/// left. What the other temporary errors mean to a batch is in `classes`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_error_ends_no_attempt_of_a_batch() {
    join(while_there_is(ServerFault::ReadOnly), while_there_is(ServerFault::OutOfMemory)).await;
}

async fn while_there_is(fault: ServerFault) {
    let server = TestRedis::start().await.expect("a server starts");
    let (locks, others) = (direct(&server, "ttl=60s").await, direct(&server, "ttl=60s").await);
    let held = acquire_all(&locks).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    let waiting: Vec<_> =
        (0..CLAIMS).map(|n| spawn_waiter(&others, &format!("lock-{n}"))).collect();
    for n in 0..CLAIMS {
        until_queued(&locks, &format!("lock-{n}"), 1).await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let churn = |n: usize| {
        let (lock, is_over) = (locks.lock(format!("churn-{n}")), is_over.clone());
        tokio::spawn(async move {
            let mut turns = 0;
            while !is_over.load(Ordering::Relaxed) {
                release(lock.acquire().await.expect("acquired")).await;
                turns += 1;
            }
            turns
        })
    };
    let churning: Vec<JoinHandle<u32>> = (0..CHURN).map(churn).collect();
    fault.inject(&server).await;
    let released: Vec<_> = held.into_iter().map(|guard| tokio::spawn(release(guard))).collect();
    // Long enough for several attempts of each.
    tokio::time::sleep(ms(2000)).await;
    fault.heal(&server).await;
    within(2 * PATIENCE, "all are released", join_all(released))
        .await
        .into_iter()
        .for_each(|released| released.expect("no error"));
    for granted in within(2 * PATIENCE, "all are granted", join_all(waiting)).await {
        release(granted.expect("no panic").expect("granted")).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let turns = within(2 * PATIENCE, "all end", join_all(churning)).await;
    let turns: Vec<u32> = turns.into_iter().map(|turns| turns.expect("no error")).collect();
    assert!(turns.iter().all(|turns| *turns > 0), "{fault:?}: {turns:?}");
    drained(&server).await;
}
