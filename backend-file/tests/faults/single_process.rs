//! Tasks of one process: many waiters, latches that are taken, limits, and clean-up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::{ErrorKind, Settings};
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
    let (dir, locks) = store().await;
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
