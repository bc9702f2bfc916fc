//! `close` is final: it waits for releases that are owed, but not for futures that are not polled,
//! and nothing is sent after it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fencelock_core::memory::Memory;
use fencelock_core::{ErrorKind, Guard, Locks, Settings};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;

use crate::scripted::{Call, SECOND, Script, Scripted, is_attempt, is_release, waiting};

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_a_waiter_that_is_not_polled() {
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
        // Its place in the queue is gone, and it returns the error when it is polled.
        assert_eq!(acquiring.await.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(memory.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_does_not_inspect_or_evict() {
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

/// Acquires on one thread while another closes, at a different moment in each round, until close has
/// returned; `visit` checks the result of each round.
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

/// Acquires until the client is closed: of the guards, a third is released, a third dropped, a third
/// returned.
async fn acquire_all(locks: Locks, together: Arc<Barrier>) -> Vec<Guard> {
    together.wait().await;
    let mut kept = Vec::new();
    for number in 0.. {
        let Ok(guard) = locks.lock(number.to_string()).acquire().await else { break };
        match number % 3 {
            // If the client was closed meanwhile, the lock is lost: released or not, it is over.
            0 => drop(guard.release().await),
            1 => drop(guard),
            _ => kept.push(guard),
        }
    }
    kept
}

#[test]
fn nothing_is_sent_after_close() {
    close_amid_acquisitions(100, |store, _| {
        let calls = store.calls();
        assert_eq!(calls.last(), Some(&Call::Close), "{} calls", calls.len());
        let (released, attempts) = (store.count(is_release), store.count(is_attempt));
        assert!(released >= attempts, "each attempt is released");
    });
}

#[test]
fn a_claim_that_is_over_stays_over_when_it_is_woken() {
    close_amid_acquisitions(100, |store, kept| {
        assert!(kept.iter().all(|guard| !guard.is_held()));
        for claim in store.claims() {
            assert!(claim.is_over(), "{claim:?}");
            assert!(!claim.wake() && claim.is_over(), "a wake-up does not revive it: {claim:?}");
        }
    });
}
