//! Tasks of one process: cancellation, many waiters, two connected stores, limits, and clean-up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use fencelock_core::{ErrorKind, Locks, Settings};
use fencelock_file::FileStore;
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::support::*;

/// Holds locks until there is no free descriptor.
pub(crate) fn use_up_descriptors(dir: &Path) {
    let limit = Rlimit { current: Some(64), maximum: Some(64) };
    setrlimit(Resource::Nofile, limit).unwrap();
    in_runtime(async {
        // Creating a lock's files may take that long on a busy disk.
        let settings = Settings::default().unreachable_after(Duration::from_secs(3)).unwrap();
        let locks = FileStore::at(dir).locks(settings).await.unwrap();
        let mut held = Vec::new();
        let error = loop {
            match locks.lock(format!("lock {}", held.len())).acquire().await {
                Ok(guard) => held.push(guard),
                Err(error) => break error,
            }
        };
        report(format_args!("{:?} {error:?}", error.kind()));
        let some = held.len();
        for guard in held.drain(some / 2..) {
            guard.release().await.unwrap();
        }
        let again = locks.lock("another").acquire().await.unwrap();
        again.release().await.unwrap();
        for guard in held {
            assert!(guard.is_held());
            guard.release().await.unwrap();
        }
        report(format_args!("held {some}"));
        locks.close().await.unwrap();
    });
}

/// Fault 40: file
#[test]
fn without_a_free_descriptor_the_error_says_so_and_what_is_held_stays() {
    let dir = directory();
    let mut process = TestProcess::start(dir.path(), "use-up-descriptors");
    let error = process.expect("Unreachable");
    assert!(error.contains("ulimit -n"), "{error}");
    let held: usize = process.expect("held").parse().unwrap();
    assert!(held > 10, "{held}");
    process.end();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

async fn until_empty(dir: &Path) {
    until("nothing is left", async || {
        fencelock_file::leftovers(dir).unwrap().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_connected_stores_of_one_process_exclude_each_other() {
    let dir = directory();
    let (one, two) = (connect(dir.path()).await, connect(dir.path()).await);
    let held = one.lock("x").acquire().await.unwrap();
    assert!(two.lock("x").try_acquire().await.unwrap().is_none());
    assert!(one.lock("x").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { two.lock("x").acquire().await.unwrap() });
    until_queue_is(&one, "x", 1, 1).await;
    let first = held.fencing_token();
    held.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(second.fencing_token() > first);
    second.release().await.unwrap();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_on_several_threads_exclude_each_other_in_every_mode() {
    let dir = directory();
    let stores = [connect(dir.path()).await, connect(dir.path()).await];
    let (writers, readers, permits) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..12)
        .map(|task| {
            let locks = stores[task % 2].clone();
            let (writers, readers, permits) = (writers.clone(), readers.clone(), permits.clone());
            tokio::spawn(async move {
                let (mode, own) = match task % 3 {
                    0 => ("exclusive", &writers),
                    1 => ("shared", &readers),
                    _ => ("permits:1:2", &permits),
                };
                for _ in 0..60 {
                    let guard = lock(&locks, "x", mode).acquire().await.unwrap();
                    own.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    let seen = [&writers, &readers, &permits].map(|n| n.load(Ordering::SeqCst));
                    assert!(
                        matches!(seen, [1, 0, 0] | [0, 1..=12, 0] | [0, 0, 1..=2]),
                        "{mode} with {seen:?}"
                    );
                    own.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

/// Polls `future` at most `times` times, then drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>, times: u32) {
    let mut future = std::pin::pin!(future);
    for _ in 0..times {
        let done =
            std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_dropped_at_any_point_leave_nothing() {
    let dir = directory();
    let (one, two) = (connect(dir.path()).await, connect(dir.path()).await);
    let seed: u64 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut random = seed | 1;
    let mut dice = move |sides: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        ((random >> 33) % sides) as u32
    };
    let modes = ["exclusive", "shared", "permits:1:2", "permits:2:2"];
    // Other tasks keep the latch and the queue busy meanwhile.
    let busy = |locks: Locks| {
        tokio::spawn(async move {
            loop {
                let guard = lock(&locks, "x", modes[0]).acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        })
    };
    let others = [busy(one.clone()), busy(two.clone())];
    for round in 0..1000 {
        let locks = if round % 2 == 0 { &one } else { &two };
        let lock = lock(locks, "x", modes[dice(4) as usize]);
        poll_and_drop(lock.acquire(), dice(6)).await;
    }
    for other in others {
        other.abort();
    }
    until_empty(dir.path()).await;
    for mode in modes {
        lock(&one, "x", mode).acquire().await.unwrap().release().await.unwrap();
    }
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_gives_up_causes_no_wrong_wake_up_and_leaves_no_gap() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let gives_up = locks.lock("x").wait_at_most(Duration::from_millis(200));
    let gives_up = tokio::spawn(async move { gives_up.acquire().await });
    until_queue_is(&locks, "x", 1, 1).await;
    let stays = locks.lock("x");
    let stays = tokio::spawn(async move { stays.acquire().await });
    until_queue_is(&locks, "x", 1, 2).await;
    let error = gives_up.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimedOut);
    until_queue_is(&locks, "x", 1, 1).await;
    held.release().await.unwrap();
    stays.await.unwrap().unwrap().release().await.unwrap();
    until_empty(dir.path()).await;
}

#[tokio::test]
async fn three_hundred_waiters_are_served_in_order() {
    const MANY: usize = 350;
    let dir = directory();
    let (one, two) = (connect(dir.path()).await, connect(dir.path()).await);
    let held = one.lock("x").acquire().await.unwrap();
    let (noted, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..MANY {
        let locks = if number % 2 == 0 { one.clone() } else { two.clone() };
        let noted = noted.clone();
        tokio::spawn(async move {
            let guard = locks.lock("x").acquire().await.unwrap();
            noted.send((number, guard.fencing_token())).unwrap();
            guard.release().await.unwrap();
        });
        // The queue outgrows its page on the way, and comes back.
        until_queue_is(&one, "x", 1, number + 1).await;
    }
    held.release().await.unwrap();
    let mut last = None;
    for number in 0..MANY {
        let (served, token) = order.recv().await.unwrap();
        assert_eq!(served, number);
        assert!(last.is_none_or(|last| token > last));
        last = Some(token);
    }
    until_empty(dir.path()).await;
}

#[test]
fn a_latch_that_another_process_holds_blocks_neither_other_locks_nor_the_end_of_the_runtime() {
    let dir = directory();
    let path = dir.path().to_owned();
    let (ended, end) = std::sync::mpsc::channel();
    let (kept, kept_page) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        in_runtime(async {
            let locks = connect(&path).await;
            for name in ["x", "y"] {
                locks.lock(name).acquire().await.unwrap().release().await.unwrap();
            }
            // Like a process that was stopped while it had the latch.
            let page = page(&path);
            rustix::fs::flock(&page, FlockOperation::LockExclusive).unwrap();
            kept.send(page).unwrap();
            let lock = || locks.lock("x");
            // For a short time this looks like a busy machine, where the process waits for a processor.
            let limited = lock().wait_at_most(Duration::from_secs(1));
            let impatient = lock().unreachable_after(Duration::from_secs(1));
            let for_long = lock().wait_at_most(Duration::from_millis(5_500));
            for (acquired, kind) in [
                (limited.acquire().await, ErrorKind::WaitTimedOut),
                (impatient.acquire().await, ErrorKind::Unreachable),
                (for_long.acquire().await, ErrorKind::Unreachable),
            ] {
                let error = acquired.unwrap_err();
                assert_eq!(error.kind(), kind, "{error:?}");
                assert!(format!("{error:?}").contains("locked for"), "{error:?}");
            }
            locks.lock("y").acquire().await.unwrap().release().await.unwrap();
        });
        ended.send(()).unwrap();
    });
    let ends = end.recv_timeout(LONG);
    let page = kept_page.recv().unwrap();
    ends.expect("the runtime ends while the latch is kept");
    drop(page);
    in_runtime(async {
        let locks = connect(dir.path()).await;
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
        until_empty(dir.path()).await;
    });
}

/// Among thousands of processes, a claim may not get the latch within its wait limit. The store
/// answers, and the lock is busy.
#[tokio::test]
async fn a_claim_that_never_gets_the_contended_latch_finds_the_lock_busy() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    // Like many processes that always hold the latch and change the queue.
    let page = page(dir.path());
    rustix::fs::flock(&page, FlockOperation::LockExclusive).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let others = {
        let (page, ended) = (page.try_clone().unwrap(), ended.clone());
        tokio::spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                page.set_modified(std::time::SystemTime::now()).unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let limited = locks.lock("x").wait_at_most(Duration::from_secs(2));
    let error = limited.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimedOut, "{error:?}");
    assert!(format!("{error:?}").contains("had no turn for"), "{error:?}");
    ended.store(true, Ordering::Relaxed);
    others.await.unwrap();
    drop(page);
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    until_empty(dir.path()).await;
}

#[tokio::test]
async fn a_future_that_is_not_polled_is_passed_over() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let lazy = locks.lock("x");
    let mut lazy = Box::pin(lazy.acquire());
    std::future::poll_fn(|cx| {
        assert!(lazy.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    until_queue_is(&locks, "x", 1, 1).await;
    let next = locks.lock("x");
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queue_is(&locks, "x", 1, 2).await;
    held.release().await.unwrap();
    let next = tokio::time::timeout(LONG, next).await.unwrap().unwrap();
    next.release().await.unwrap();
    lazy.await.unwrap().release().await.unwrap();
    until_empty(dir.path()).await;
}

#[tokio::test]
async fn a_custom_label_is_shown() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let plain = locks.rw_lock("x").read().acquire().await.unwrap();
    let named = locks.rw_lock("x").read().label("nightly report").acquire().await.unwrap();
    let seen = locks.inspect("x").await.unwrap();
    let labels: Vec<_> = seen.holders.iter().map(|who| who.label.clone().unwrap()).collect();
    assert!(!labels[0].as_str().contains("nightly"));
    assert!(labels[1].as_str().ends_with("nightly report"));
    let tokens: Vec<_> = seen.holders.iter().map(|who| who.token.unwrap()).collect();
    assert_eq!(tokens, [plain.fencing_token(), named.fencing_token()]);
    plain.release().await.unwrap();
    named.release().await.unwrap();
}

/// Fault 46: file
#[tokio::test]
async fn a_store_whose_runtime_ended_leaves_nothing_held() {
    let dir = directory();
    let path = dir.path().to_owned();
    let guard = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { connect(&path).await.lock("x").acquire().await.unwrap() })
    });
    let guard = guard.join().unwrap();
    assert!(!guard.is_held());
    drop(guard);
    let locks = connect(dir.path()).await;
    let next = locks.lock("x").acquire().await.unwrap();
    next.release().await.unwrap();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}
