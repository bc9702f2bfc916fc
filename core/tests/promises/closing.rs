//! `close` is the last word: it waits for what is owed, for nobody who is not there, and nothing
//! is sent behind it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fencelock_core::memory::Memory;
use fencelock_core::{ErrorKind, Guard, Locks, LostReason, ReleaseOutcome, Settings};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::time::sleep;

use crate::scripted::{Call, SECOND, Script, Scripted, ms, waiting};

#[tokio::test(start_paused = true)]
async fn close_waits_for_every_release_that_is_owed() {
    let slow = |_| async {
        sleep(ms(300)).await;
        Ok(ReleaseOutcome::Removed)
    };
    let (store, locks) = Script::new().releases(slow).connect();
    let released = locks.lock("a").acquire().await.unwrap();
    let dropped = locks.lock("b").acquire().await.unwrap();
    let held = locks.lock("c").acquire().await.unwrap();
    let releasing = tokio::spawn(released.release());
    drop(dropped);
    store.until(2, |call| *call == Call::Release).await;
    let asked = store.now();
    locks.close().await.unwrap();
    assert!(releasing.is_finished(), "close ended before a release under way");
    releasing.await.unwrap().unwrap();
    let took = store.now().duration_since(asked);
    assert!(took >= ms(300) && took <= ms(310), "{took:?}");
    assert_eq!(held.lost().await, LostReason::Closed);
    assert_eq!(store.calls().pop().unwrap().1, Call::Close);
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_a_waiter_that_nobody_polls() {
    let memory = Memory::new();
    let of_memory = memory.locks(Settings::default()).unwrap();
    let _held = of_memory.lock("a").acquire().await.unwrap();
    let queues = |_| async { waiting(SECOND) };
    let (_store, of_script) = Script::new().attempts(queues).connect();
    for locks in [of_memory, of_script] {
        let lock = locks.lock("a");
        let mut acquiring = pin!(lock.acquire());
        let first = poll_fn(|cx| Poll::Ready(acquiring.as_mut().poll(cx))).await;
        assert!(first.is_pending());
        let asked = locks.now();
        locks.close().await.unwrap();
        assert_eq!(locks.now(), asked, "nothing to wait for");
        // Its place in the queue is gone, and it hears of it whenever it is polled.
        assert_eq!(acquiring.await.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_sends_nothing_more_once_close_has_begun() {
    let queues = |_| async { waiting(SECOND) };
    let (store, locks) = Script::new().attempts(queues).connect();
    let lock = locks.lock("a");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.until(1, |call| *call == Call::Attempt).await;
    locks.close().await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    sleep(100 * SECOND).await;
    let calls: Vec<Call> = store.calls().into_iter().map(|(_, call)| call).collect();
    assert_eq!(calls, [Call::Attempt, Call::Release, Call::Close]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_store_is_not_asked_who_holds() {
    let locks = Memory::new().locks(Settings::default()).unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let seen = locks.inspect("a").await.unwrap();
    locks.close().await.unwrap();
    drop(held);
    let inspected = locks.inspect("a").await.unwrap_err();
    let evicted = locks.evict("a", &seen.holders[0].id).await.unwrap_err();
    assert_eq!([inspected.kind(), evicted.kind()], [ErrorKind::Closed; 2]);
    assert_eq!(inspected.lock(), Some("a"));
}

/// Acquires on one thread while another closes, at a different moment each round, until close is
/// done; `visit` sees what is left of each round.
fn close_amid_acquisitions(rounds: usize, visit: impl Fn(&Scripted, &[Guard])) {
    let runtime = two_threads();
    for round in 0..rounds {
        let (store, kept) = runtime.block_on(async {
            let (store, locks) = Script::new().connect();
            let together = Arc::new(Barrier::new(2));
            let acquiring = tokio::spawn(acquire_all(locks.clone(), together.clone()));
            let closing = tokio::spawn(async move {
                together.wait().await;
                for _ in 0..round * 37 % 3_000 {
                    std::hint::spin_loop();
                }
                locks.close().await
            });
            let kept = acquiring.await.unwrap();
            closing.await.unwrap().unwrap();
            (store, kept)
        });
        visit(&store, &kept);
    }
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Until the store is closed: a third is released, a third dropped, a third returned.
async fn acquire_all(locks: Locks, together: Arc<Barrier>) -> Vec<Guard> {
    together.wait().await;
    let mut kept = Vec::new();
    for number in 0.. {
        let Ok(guard) = locks.lock(number.to_string()).acquire().await else { break };
        match number % 3 {
            // Closed under it, it is not held any more: either way it is over.
            0 => drop(guard.release().await),
            1 => drop(guard),
            _ => kept.push(guard),
        }
    }
    kept
}

#[test]
fn nothing_is_sent_behind_close() {
    close_amid_acquisitions(100, |store, _| {
        let calls = store.calls();
        assert_eq!(calls.last().unwrap().1, Call::Close, "{} calls", calls.len());
        let sent = |which: Call| store.count(|call| *call == which);
        assert!(sent(Call::Release) >= sent(Call::Attempt), "each attempt is released");
    });
}

#[test]
fn a_claim_that_is_over_stays_over_when_it_is_rung() {
    close_amid_acquisitions(100, |store, kept| {
        assert!(kept.iter().all(|guard| !guard.is_held()));
        for claim in store.claims() {
            assert!(claim.is_over(), "{claim:?}");
            assert!(!claim.wake() && claim.is_over(), "a ring revives nobody: {claim:?}");
        }
    });
}
