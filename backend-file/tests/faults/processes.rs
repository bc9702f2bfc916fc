//! Real processes: killed, stopped, evicted, and with inherited descriptors.

use std::time::Duration;

use fencelock_core::{ErrorKind, Moment};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::*;

/// Repeats `hand_over`, which returns the times before and after it, until a wake-up was seen to have
/// granted the lock some times. A waiter that is not woken is found by a check, at a whole second of
/// the store's clock; on a busy machine a wake-up can take until then, too.
async fn assert_woken(mut hand_over: impl AsyncFnMut() -> (Moment, Moment)) {
    const ENOUGH: u32 = 5;
    let second = |moment: Moment| moment.as_nanos() / 1_000_000_000;
    let mut woken = 0;
    for _ in 0..60 {
        let (before, after) = hand_over().await;
        woken += u32::from(second(before) == second(after));
        if woken == ENOUGH {
            return;
        }
    }
    panic!("only {woken} hand-overs by a wake-up");
}

/// Fault 1: file
#[tokio::test]
async fn a_killed_holder_frees_at_once_and_a_killed_waiter_is_skipped() {
    let (dir, locks) = store().await;
    assert_woken(async || {
        let holder = TestProcess::holding(dir.path(), "hold x exclusive");
        let mut waiters = Vec::new();
        for number in 1..=3 {
            waiters.push(TestProcess::queued(dir.path(), &locks, number).await);
        }
        let mut last = waiters.pop().unwrap();
        for waiter in waiters {
            // First the next waiter, then the one after it.
            waiter.kill();
        }
        let killed = locks.now();
        holder.kill();
        last.holds();
        let held = locks.now();
        last.release();
        last.end();
        (killed, held)
    })
    .await;
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

/// Fault 5: file
#[tokio::test]
async fn a_stopped_waiter_is_passed_over_and_queues_again() {
    let (dir, locks) = store().await;
    let held = locks.lock("x").acquire().await.unwrap();
    let mut stopped = TestProcess::queued(dir.path(), &locks, 1).await;
    let mut next = TestProcess::queued(dir.path(), &locks, 2).await;
    stopped.stop().await;
    held.release().await.unwrap();
    next.holds();
    stopped.signal(Signal::CONT);
    until_queue_is(&locks, "x", 1, 1).await;
    next.release();
    stopped.holds();
    stopped.release();
}

/// A lock that may be free must not look like a busy one, after which a job is skipped. A process that only waits for a
/// processor is another matter: see `single_process.rs`.
#[tokio::test]
async fn a_lock_that_a_stopped_process_has_latched_is_unreachable_at_the_end_of_any_limit() {
    let (dir, locks) = store().await;
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    // The pipe of a lock that nobody uses has no other reader.
    let page = page(dir.path());
    let mut latching = std::process::Command::new("flock");
    let latching = latching.arg("--no-fork").arg(dir.path().join(PAGE)).args(["sleep", "600"]);
    let mut latching = latching.spawn().unwrap();
    until("the latch is taken", async || {
        let taken = flock(&page, FlockOperation::NonBlockingLockExclusive).err();
        flock(&page, FlockOperation::Unlock).unwrap();
        taken
    })
    .await;
    let pid = Pid::from_child(&latching);
    kill_process(pid, Signal::STOP).unwrap();
    for limit in [0, 100, 1_000].map(Duration::from_millis) {
        let lock = locks.lock("x").wait_at_most(limit).unreachable_after(Duration::from_secs(1));
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        assert!(format!("{error:?}").contains(&format!("kill -CONT {pid}")), "{error:?}");
    }
    let error = format!("{:?}", locks.inspect("x").await.unwrap_err());
    assert!(error.contains(&format!("kill -CONT {pid}")), "{error}");
    kill_process(pid, Signal::CONT).unwrap();
    latching.kill().unwrap();
    latching.wait().unwrap();
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_frees_the_lock_although_a_child_has_a_copy() {
    let (dir, locks) = store().await;
    assert_woken(async || {
        let mut holder = TestProcess::holding(dir.path(), "hold x exclusive");
        let child = holder.pass_on();
        let mut waiter = TestProcess::queued(dir.path(), &locks, 1).await;
        let sent = locks.now();
        holder.release();
        waiter.holds();
        let held = locks.now();
        kill_process(child, Signal::KILL).unwrap();
        waiter.release();
        (sent, held)
    })
    .await;
}

#[tokio::test]
async fn an_evicted_waiter_queues_again_at_the_end() {
    let (dir, locks) = store().await;
    let mut holder = TestProcess::holding(dir.path(), "hold x exclusive");
    let mut second = TestProcess::queued(dir.path(), &locks, 1).await;
    let mut third = TestProcess::queued(dir.path(), &locks, 2).await;
    let seen = locks.inspect("x").await.unwrap();
    assert!(locks.evict("x", &seen.waiters[0].id).await.unwrap());
    until("the evicted waiter is the last", async || {
        let now = locks.inspect("x").await.unwrap();
        (now.waiters.len() == 2 && now.waiters[0].id == seen.waiters[1].id).then_some(())
    })
    .await;
    holder.release();
    for process in [&mut third, &mut second] {
        process.holds();
        process.release();
    }
}

#[tokio::test]
async fn permits_of_killed_processes_are_freed() {
    let (dir, locks) = store().await;
    let mut holders: Vec<_> =
        (0..3).map(|_| TestProcess::holding(dir.path(), "hold x permits:1:3")).collect();
    let mut waiters = Vec::new();
    for number in 1..=3 {
        waiters.push(TestProcess::start(dir.path(), "hold x permits:1:3"));
        until_queue_is(&locks, "x", 3, number).await;
    }
    // Whichever holder is killed, the oldest or the youngest, the next waiter has to be woken.
    for (at, waiter) in [0, 1, 0].into_iter().zip(&mut waiters) {
        holders.remove(at).kill();
        waiter.holds();
    }
    for waiter in &mut waiters {
        waiter.release();
    }
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}
