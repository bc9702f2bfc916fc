//! The page of a lock, in the buffer of a pipe: its loss, children that outlive it, stray readers,
//! and the kernel's limits.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::{ErrorKind, Locks, Mode, Permits, Settings};
use fencelock_file::FileStore;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::*;

/// Starts a child that holds `x` in `mode` while no process has the page open. Returns its pid and
/// the token.
fn orphan(dir: &Path, mode: &str) -> (Pid, u64) {
    let mut holder = TestProcess::start(dir, &format!("hold x {mode}"));
    let token = holder.holds().parse().unwrap();
    let child = holder.pass_on();
    holder.kill();
    (child, token)
}

async fn is_free(locks: &Locks, mode: &str) -> bool {
    match lock(locks, "x", mode).try_acquire().await.unwrap() {
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

#[tokio::test]
async fn a_child_that_outlives_its_parent_keeps_the_lock_in_the_same_mode() {
    let two_of_three = Mode::Permits(Permits::new(2, 3).unwrap());
    for (mode, expected, compatible) in [
        ("exclusive", Mode::Exclusive, None),
        ("shared", Mode::Shared, Some("shared")),
        ("permits:2:3", two_of_three, Some("permits:1:3")),
    ] {
        let dir = directory();
        let (child, token) = orphan(dir.path(), mode);
        for _ in 0..2 {
            let locks = connect(dir.path()).await;
            assert!(!is_free(&locks, "exclusive").await, "{mode}");
            let seen = locks.inspect("x").await.unwrap();
            assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{mode}");
            assert_eq!(seen.holders[0].token.unwrap().get(), token, "{mode}");
            assert_eq!(seen.holders[0].mode, expected);
            for other in ["shared", "permits:1:3", "permits:2:3"] {
                assert_eq!(
                    is_free(&locks, other).await,
                    Some(other) == compatible,
                    "{other} by {mode}"
                );
            }
            // The page is lost again.
            locks.close().await.unwrap();
        }
        let locks = connect(dir.path()).await;
        let waits = locks.lock("x");
        let waits = tokio::spawn(async move { waits.acquire().await.unwrap() });
        until_queue_is(&locks, "x", 1, 1).await;
        kill_process(child, Signal::KILL).unwrap();
        let next = waits.await.unwrap();
        assert!(next.fencing_token().get() > token);
        next.release().await.unwrap();
        assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_child_does_not_keep_a_released_or_evicted_lock() {
    for evicts in [false, true] {
        let dir = directory();
        let mut holder = TestProcess::holding(dir.path(), "hold x exclusive");
        let child = holder.pass_on();
        if evicts {
            holder.kill();
            let locks = connect(dir.path()).await;
            let seen = locks.inspect("x").await.unwrap();
            assert!(locks.evict("x", &seen.holders[0].id).await.unwrap());
            locks.close().await.unwrap();
        } else {
            holder.release();
            holder.end();
        }
        // Clears the note that the queue was left empty, so that living owners are searched for.
        let state = fs::File::options().write(true).open(dir.path().join("lock%3Ax/L")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&state, &[0], 16).unwrap();
        let locks = connect(dir.path()).await;
        assert!(is_free(&locks, "exclusive").await, "evicted: {evicts}");
        kill_process(child, Signal::KILL).unwrap();
    }
}

/// Empties the page of `x`, like `cat q`. Returns whether it had content.
fn empty(dir: &Path) -> bool {
    let mut page = page(dir);
    let reader = rustix::fs::fcntl_getfl(&page).unwrap() | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&page, reader).unwrap();
    let mut found = false;
    while page.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
        found = true;
    }
    found
}

#[tokio::test]
async fn a_record_that_an_earlier_owner_left_in_a_pipe_is_not_the_next_owner_s() {
    let (dir, locks) = store().await;
    for _ in 0..2 {
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    }
    let (child, _) = orphan(dir.path(), "shared");
    // The buffer keeps its content for as long as any process has the pipe open.
    let pipe = fs::File::options().write(true).open(dir.path().join("lock%3Ax/s0")).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    let guard =
        until("the child's end", async || locks.lock("x").try_acquire().await.unwrap()).await;
    assert!(empty(dir.path()));
    let other = connect(dir.path()).await;
    assert!(!is_free(&other, "shared").await, "it is held exclusively");
    drop((guard, pipe));
}

#[tokio::test]
async fn a_holder_whose_page_is_lost_excludes_others_until_it_ends() {
    let (dir, locks) = store().await;
    let mut holder = TestProcess::holding(dir.path(), "hold x shared");
    empty(dir.path());
    assert!(!is_free(&locks, "exclusive").await && !is_free(&locks, "shared").await);
    assert_eq!(locks.inspect("x").await.unwrap().holders[0].token, None);
    // Its release reports that its entry is lost; until then no other claim held.
    holder.send("release");
    holder.expect("not held");
    holder.end();
    let next = locks.lock("x").acquire().await.unwrap();
    // The inherited pipe has a record of the holder.
    next.keep_alive().unwrap();
    empty(dir.path());
    assert!(!is_free(&locks, "exclusive").await);
    next.release().await.unwrap();
    assert!(is_free(&locks, "exclusive").await);
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

#[tokio::test]
async fn a_removed_page_is_recreated_and_its_holder_still_excludes_others() {
    let (dir, locks) = store().await;
    let held = locks.lock("x").acquire().await.unwrap();
    fs::remove_file(dir.path().join("lock%3Ax/q")).unwrap();
    assert!(!is_free(&connect(dir.path()).await, "exclusive").await);
    assert!(!is_free(&locks, "exclusive").await);
    // An operator can still evict the holder, since it has the same id in every process.
    let (one, two) = (connect(dir.path()).await, connect(dir.path()).await);
    let seen = one.inspect("x").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert!(two.evict("x", &seen.holders[0].id).await.unwrap());
    assert!(is_free(&locks, "exclusive").await);
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stray_reader_of_the_page_never_causes_two_holders() {
    const TIMES: u32 = 300;
    let dir = directory();
    let stores = [connect(dir.path()).await, connect(dir.path()).await];
    stores[0].lock("x").acquire().await.unwrap().release().await.unwrap();
    let ended = std::sync::Arc::new(AtomicBool::new(false));
    let stray = {
        let (path, ended) = (dir.path().to_owned(), ended.clone());
        std::thread::spawn(move || {
            // Waiters notice within a second, so this takes a while.
            let mut emptied = 0;
            while emptied < 10 && !ended.load(Ordering::Relaxed) {
                emptied += u32::from(empty(&path));
            }
            emptied
        })
    };
    let inside = std::sync::Arc::new(AtomicU32::new(0));
    let last = std::sync::Arc::new(std::sync::Mutex::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (locks, inside, last) = (stores[task % 2].clone(), inside.clone(), last.clone());
            tokio::spawn(async move {
                let mut lost = 0_u32;
                for _ in 0..TIMES {
                    let guard = locks.lock("x").acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    {
                        let mut last = last.lock().unwrap();
                        assert!(guard.fencing_token().get() > *last, "tokens rise");
                        *last = guard.fencing_token().get();
                    }
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if let Err(error) = guard.release().await {
                        assert_eq!(error.kind(), ErrorKind::NotHeld, "{error:?}");
                        lost += 1;
                    }
                }
                lost
            })
        })
        .collect();
    let mut lost = 0;
    for task in tasks {
        lost += task.await.unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    let emptied = stray.join().unwrap();
    println!("{emptied} emptied, {lost} lost");
    assert!(emptied > 0, "the page was emptied at least once");
}

/// Holds `count` locks at once, as a user to whom the kernel gives only small pipes.
pub(crate) fn hold_small_pipes(dir: &Path, count: usize) {
    in_runtime(async {
        let settings = Settings::default().unreachable_after(Duration::from_secs(20)).unwrap();
        let locks = FileStore::at(dir).locks(settings).await.unwrap();
        let mut held = Vec::new();
        for number in 0..count {
            held.push(locks.lock(format!("lock {number}")).acquire().await.unwrap());
        }
        let open = fs::read_dir("/proc/self/fd").unwrap().count();
        report(format_args!("held {open}"));
        for (number, guard) in held.into_iter().enumerate() {
            let other = locks.lock(format!("lock {number}"));
            assert!(other.try_acquire().await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        locks.close().await.unwrap();
        report("done");
    });
}

#[test]
fn a_user_with_small_pipes_holds_hundreds_of_locks_with_two_descriptors_each() {
    const COUNT: usize = 700;
    let dir = directory();
    let command = format!("hold-small-pipes {COUNT}");
    let mut process = if is_root() {
        rustix::fs::chown(dir.path(), Some(rustix::fs::Uid::from_raw(65_534)), None).unwrap();
        TestProcess::start_as(dir.path(), &command, 65_534, &[])
    } else {
        TestProcess::start(dir.path(), &command)
    };
    let open: usize = process.expect("held").parse().unwrap();
    // The files of 128 locks stay open, and the store has a few of its own.
    assert!(open < 2 * COUNT + 2 * 128 + 40, "{open}");
    process.expect("done");
    process.end();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}
