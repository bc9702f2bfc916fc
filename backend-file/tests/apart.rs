//! Faults of a whole machine: a full disk. The test has mounts of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use fencelock_conformance::acts::*;
use fencelock_conformance::apart::{MOUNTS, Test, fill, main as main_of, small_disk};
use fencelock_core::{ErrorKind, Settings};
use fencelock_file::FileStore;

fn main() {
    main_of(&[Test {
        name: "a_full_disk_is_an_error_and_what_is_held_stays",
        needs: MOUNTS,
        run: || Box::pin(disk()),
    }]);
}

/// Row 38.
async fn disk() {
    let directory = tempfile::tempdir().unwrap();
    small_disk(directory.path(), 1 << 20);
    let settings = Settings::default().unreachable_after(ms(500)).unwrap();
    let locks = FileStore::at(directory.path()).locks(settings).await.unwrap();
    let held = hold(&locks, "held").await;
    let filler = directory.path().join("filler");
    fill(&filler);
    let error = soon("it says so", locks.lock("fresh").acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(format!("{error:?}").contains("No space"), "{error:?}");
    assert!(held.is_held() && is_busy(&locks, "held").await);
    // Who waits and who releases needs no more room than there was.
    let waiter = wait_for(&locks, "held");
    until("it waits", async || {
        locks.inspect("held").await.is_ok_and(|seen| seen.waiters.len() == 1)
    })
    .await;
    let token = held.fencing_token();
    give_back(held).await;
    let next = granted(waiter).await;
    assert!(next.fencing_token() > token);
    give_back(next).await;
    std::fs::remove_file(&filler).unwrap();
    give_back(hold(&locks, "fresh").await).await;
    assert!(fencelock_file::leftovers(directory.path()).unwrap().is_empty());
}
