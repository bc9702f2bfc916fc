//! Faults of the disk: a full one, and one that hangs. Each test has mounts of its own.

// The lint looks for the test attribute, which these tests do not have.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use fencelock_core::{Claimed, Error, ErrorKind, Locks, LostReason, Settings, Tick};
use fencelock_file::FileStore;
use fencelock_testkit::apart;
use fencelock_testkit::helpers::*;
use fencelock_testkit::netns::{FREEZING, Frozen, MOUNTS, disk, fill, main as main_of, small_disk};

fn main() {
    main_of(&[
        apart!(MOUNTS, a_full_disk_is_an_error_and_what_is_held_stays),
        apart!(MOUNTS, a_full_disk_leaves_a_cell_as_it_was),
        apart!(FREEZING, a_frozen_disk_ends_a_swap_in_time_and_leaves_the_lock_of_its_name_alone),
        apart!(FREEZING, a_frozen_disk_delays_no_deadline_and_leaves_nothing_of_abandoned_requests),
        apart!(FREEZING, a_runtime_that_ends_does_not_wait_for_a_frozen_disk),
    ]);
}

/// Row 38.
/// Fault 38: file
async fn a_full_disk_is_an_error_and_what_is_held_stays() {
    let directory = tempfile::tempdir().unwrap();
    small_disk(directory.path(), 1 << 20);
    let settings = Settings::default().unreachable_after(ms(500)).unwrap();
    let locks = FileStore::at(directory.path()).locks(settings).await.unwrap();
    let held = acquire(&locks, "held").await;
    let filler = directory.path().join("filler");
    fill(&filler);
    let error = soon("it says so", locks.lock("fresh").acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(format!("{error:?}").contains("No space"), "{error:?}");
    assert!(held.is_held() && is_busy(&locks, "held").await);
    // Waiting and releasing need no more space on the disk.
    let waiter = spawn_waiter(&locks, "held");
    until("it waits", async || {
        locks.inspect("held").await.is_ok_and(|seen| seen.waiters.len() == 1)
    })
    .await;
    let token = held.fencing_token();
    release(held).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > token);
    release(next).await;
    std::fs::remove_file(&filler).unwrap();
    release(acquire(&locks, "fresh").await).await;
    assert!(fencelock_file::leftovers(directory.path()).unwrap().is_empty());
}

/// Fault 38: file
async fn a_full_disk_leaves_a_cell_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    small_disk(directory.path(), 1 << 20);
    let settings = Settings::default().unreachable_after(ms(500)).unwrap();
    let locks = FileStore::at(directory.path()).locks(settings).await.unwrap();
    let (cell, other) = (locks.cell("kept"), locks.cell("other"));
    // Larger than what fits into one page that is there anyway.
    assert!(cell.compare_and_set(None, vec![1; 9_000]).await.unwrap());
    assert!(other.compare_and_set(None, *b"small").await.unwrap());
    other.remove().await.unwrap();
    release(acquire(&locks, "job").await).await;
    let seen = cell.read().await.unwrap().unwrap();
    let filler = directory.path().join("filler");
    fill(&filler);
    let writing = cell.compare_and_set(Some(seen.version()), vec![2; 9_000]);
    let error = soon("it says so", writing).await.unwrap_err();
    let first = soon("it says so", other.compare_and_set(None, vec![2; 9_000])).await.unwrap_err();
    for error in [error, first] {
        assert_kind(&error, ErrorKind::Unreachable);
        assert!(error.is_retryable() && format!("{error:?}").contains("No space"), "{error:?}");
    }
    // It is there, for watchers too.
    assert_eq!(cell.read().await.unwrap().as_ref(), Some(&seen));
    assert_eq!(other.read().await.unwrap(), None);
    let mut watch = cell.watch().await.unwrap();
    assert_eq!(soon("it is seen", watch.next()).await.unwrap().as_ref(), Some(&seen));
    // A job whose end could not be recorded does not begin.
    let job = locks.once("job").tick(Tick::number(1));
    let error = soon("it says so", job.claim()).await.unwrap_err();
    assert!(format!("{error:?}").contains("No space"), "{error:?}");
    std::fs::remove_file(&filler).unwrap();
    let Claimed::Run(run) = job.claim().await.unwrap() else { panic!("it is to be run") };
    fill(&filler);
    run.done().await.unwrap();
    assert!(matches!(job.claim().await.unwrap(), Claimed::Done { .. }));
    std::fs::remove_file(&filler).unwrap();
    assert!(cell.compare_and_set(Some(seen.version()), vec![2; 9_000]).await.unwrap());
    let changed = soon("the change is seen", watch.next()).await.unwrap().unwrap();
    assert_eq!(changed.bytes(), vec![2; 9_000]);
    cell.remove().await.unwrap();
}

/// What takes longer hangs. Less than the time after which a frozen disk thaws by itself.
const HANGS: Duration = Duration::from_secs(15);

/// Runs `program`, which has a runtime of one thread, on a disk that it can freeze.
async fn frozen(program: fn(&Path)) {
    let (image, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    disk(&image.path().join("image"), at.path());
    let (ended, end) = tokio::sync::oneshot::channel();
    let here = at.path().to_owned();
    std::thread::spawn(move || {
        program(&here);
        ended.send(()).unwrap();
    });
    end.await.expect("it ends without a panic");
    until("nothing is left", async || fencelock_file::leftovers(at.path()).unwrap().is_empty())
        .await;
    let locks = FileStore::at(at.path()).locks(Settings::default()).await.unwrap();
    for name in ["used", "new", "held", "short"] {
        release(acquire(&locks, name).await).await;
    }
}

async fn a_frozen_disk_ends_a_swap_in_time_and_leaves_the_lock_of_its_name_alone() {
    frozen(cells).await;
}

async fn a_frozen_disk_delays_no_deadline_and_leaves_nothing_of_abandoned_requests() {
    frozen(deadlines).await;
}

async fn a_runtime_that_ends_does_not_wait_for_a_frozen_disk() {
    frozen(ending).await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn impatient(at: &Path) -> Locks {
    let settings = Settings::default().unreachable_after(ms(700)).unwrap();
    let locks = FileStore::at(at).locks(settings).await.unwrap();
    // This creates two pipes, for a holder and a waiter.
    let readers = [0, 1].map(|_| locks.rw_lock("used").read());
    let [one, two] = readers.map(|reader| async move { reader.acquire().await.unwrap() });
    let (one, two) = (one.await, two.await);
    release(one).await;
    release(two).await;
    locks
}

fn assert_names_the_disk(error: &Error) {
    assert_kind(error, ErrorKind::Unreachable);
    assert!(format!("{error:?}").contains("the disk has not answered"), "{error:?}");
}

fn cells(at: &Path) {
    runtime().block_on(async {
        let locks = impatient(at).await;
        let cell = locks.cell("used");
        assert!(cell.compare_and_set(None, *b"one").await.unwrap());
        let one = cell.read().await.unwrap().unwrap();
        let frozen = Frozen::disk(at);
        let start = Instant::now();
        let error = cell.compare_and_set(Some(one.version()), *b"two").await.unwrap_err();
        assert_kind(&error, ErrorKind::Unreachable);
        assert!(start.elapsed() < HANGS, "{:?}", start.elapsed());
        assert_eq!(cell.read().await.unwrap().as_ref(), Some(&one), "it is read as usual");
        for _ in 0..3 {
            release(acquire(&locks, "used").await).await;
        }
        drop(frozen);
        // What was given up may have been made, once; from then on it is as usual.
        let seen = cell.read().await.unwrap().unwrap();
        assert!([&b"one"[..], b"two"].contains(&seen.bytes()));
        until("it can be written again", async || {
            let seen = cell.read().await.unwrap().map(|seen| seen.version());
            cell.compare_and_set(seen, *b"three").await.unwrap()
        })
        .await;
        assert_eq!(cell.read().await.unwrap().unwrap().bytes(), b"three");
        cell.remove().await.unwrap();
    });
}

fn deadlines(at: &Path) {
    runtime().block_on(async {
        let locks = impatient(at).await;
        let held = acquire(&locks, "held").await;
        let short = locks.lock("short").hold_at_most(ms(1_500)).acquire().await.unwrap();
        let start = Instant::now();
        let frozen = Frozen::disk(at);
        // Locks that this process has used need no disk: they are acquired, awaited and released
        // as usual.
        for _ in 0..3 {
            let used = acquire(&locks, "used").await;
            assert!(is_busy(&locks, "used").await);
            let waiter = spawn_waiter(&locks, "used");
            until_queued(&locks, "used", 1).await;
            release(used).await;
            release(until_granted(waiter).await).await;
        }
        for name in ["new", "labelled"] {
            let lock = || match name {
                "new" => locks.lock(name),
                // Its label is not that of its process, and so is in a file.
                _ => locks.lock("used").label("a name of its own"),
            };
            let limited = lock().wait_at_most(ms(200));
            assert_names_the_disk(&limited.acquire().await.unwrap_err());
            assert_names_the_disk(&lock().try_acquire().await.unwrap_err());
        }
        assert_eq!(short.lost().await, LostReason::HoldLimit);
        assert!(held.is_held() && !short.is_held());
        release(held).await;
        assert!(start.elapsed() < HANGS, "{:?}", start.elapsed());
        drop(frozen);
        // Abandoned requests leave nothing held.
        release(soon("it is free", locks.lock("used").acquire()).await.unwrap()).await;
        release(soon("it is free", locks.lock("new").acquire()).await.unwrap()).await;
        locks.close().await.unwrap();
    });
}

fn ending(at: &Path) {
    let runtime = runtime();
    let (frozen, start) = runtime.block_on(async {
        let locks = impatient(at).await;
        let frozen = Frozen::disk(at);
        let start = Instant::now();
        for name in ["new", "another"] {
            let limited = locks.lock(name).wait_at_most(ms(200));
            assert_names_the_disk(&limited.acquire().await.unwrap_err());
        }
        let connecting = FileStore::at(at.join("another")).locks(Settings::default());
        assert!(tokio::time::timeout(ms(200), connecting).await.is_err(), "no directory is made");
        (frozen, start)
    });
    drop(runtime);
    assert!(start.elapsed() < HANGS, "{:?}", start.elapsed());
    drop(frozen);
}
