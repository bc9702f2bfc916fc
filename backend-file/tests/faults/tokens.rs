//! Fencing tokens: across restarts, reboots and crashes in the middle of a reservation.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fencelock_core::{FencingToken, Settings};
use fencelock_file::FileStore;

use crate::support::*;

async fn token_in_boot(dir: &Path, boot: u8) -> FencingToken {
    let store = FileStore::at(dir).booted_as([boot; 16]);
    let locks = store.locks(Settings::default()).await.unwrap();
    let guard = locks.lock("x").acquire().await.unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    token
}

fn state(dir: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(dir.join("lock%3Ax/L")).unwrap()
}

fn number_at(dir: &Path, at: u64) -> u64 {
    let mut bytes = [0; 8];
    state(dir).read_exact_at(&mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

/// The offsets in the state file of the reservation, the flag for a note, and the noted token.
const RESERVED: u64 = 8;
const NOTED: u64 = 16;
const NOTE: u64 = 40;

fn is_noted(dir: &Path) -> bool {
    number_at(dir, NOTED) == 1
}

#[tokio::test]
async fn tokens_rise_across_processes_and_kills() {
    let dir = directory();
    // This process uses the lock, and so keeps its queue open.
    let locks = connect(dir.path()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let mut last = held.fencing_token().get();
    held.release().await.unwrap();
    for _ in 0..4 {
        let token = killed_holder(dir.path());
        assert_eq!(token, last + 1, "no token is wasted by a kill");
        last = token;
    }
    locks.close().await.unwrap();
    // Without another process, the queue is lost with the last one, as by a reboot.
    let mut reserved = number_at(dir.path(), RESERVED);
    for _ in 0..3 {
        let token = killed_holder(dir.path());
        assert!(token > last && token <= number_at(dir.path(), RESERVED));
        last = token;
        assert!(number_at(dir.path(), RESERVED) >= reserved);
        reserved = number_at(dir.path(), RESERVED);
    }
    assert!(token_in_boot(dir.path(), 1).await.get() > reserved, "as after a reboot");
}

/// Starts a process that holds `x`, and kills it: its entry stays until another claim finds it.
fn killed_holder(dir: &Path) -> u64 {
    let mut process = TestProcess::start(dir, "hold x exclusive");
    let token = process.holds().parse().unwrap();
    process.kill();
    token
}

/// Fault 17: file
#[tokio::test]
async fn a_reboot_voids_the_queue_and_tokens_continue_above_the_reservation() {
    let dir = directory();
    let before = killed_holder(dir.path());
    let reserved = number_at(dir.path(), RESERVED);
    let token = token_in_boot(dir.path(), 2).await;
    assert!(token.get() > before && token.get() > reserved);
    // A note of another boot may be older than the tokens granted since.
    let reserved = number_at(dir.path(), RESERVED);
    let again = token_in_boot(dir.path(), 3).await;
    assert!(again > token && again.get() > reserved);
}

#[tokio::test]
async fn the_last_process_notes_the_last_token_and_the_next_one_clears_the_note() {
    let dir = directory();
    for expected in 1..6 {
        assert_eq!(token_in_boot(dir.path(), 1).await.get(), expected);
        assert!(is_noted(dir.path()));
        assert_eq!(number_at(dir.path(), NOTE), expected);
    }
    let reserved = number_at(dir.path(), RESERVED);
    // A second store grants tokens after the first one has closed the lock and noted its last.
    let boot = async || {
        let store = FileStore::at(dir.path()).booted_as([1; 16]);
        store.locks(Settings::default()).await.unwrap()
    };
    let (leaves, stays) = (boot().await, boot().await);
    stays.lock("x").acquire().await.unwrap().release().await.unwrap();
    leaves.lock("x").acquire().await.unwrap().release().await.unwrap();
    leaves.close().await.unwrap();
    assert!(is_noted(dir.path()));
    let held = stays.lock("x").acquire().await.unwrap();
    assert_eq!(held.fencing_token().get(), 8);
    assert!(!is_noted(dir.path()), "a kill from here on must not restore it");
    drop(held);
    drop(stays);
    until("it is noted", async || is_noted(dir.path()).then_some(())).await;
    assert_eq!(number_at(dir.path(), RESERVED), reserved, "no new reservation was needed");
    assert_eq!(token_in_boot(dir.path(), 1).await.get(), 9);
}

#[tokio::test]
async fn tokens_continue_for_more_locks_than_stay_open() {
    let (_dir, locks) = store().await;
    for expected in 1..4 {
        for number in 0..300 {
            let guard = locks.lock(number.to_string()).acquire().await.unwrap();
            assert_eq!(guard.fencing_token().get(), expected, "{number}");
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn containers_with_different_boot_ids_share_locks() {
    let dir = directory();
    let boot = async |boot| {
        let store = FileStore::at(dir.path()).booted_as([boot; 16]);
        store.locks(Settings::default()).await.unwrap()
    };
    let (one, two) = (boot(1).await, boot(2).await);
    let mut last = None;
    for _ in 0..3 {
        let held = one.lock("x").acquire().await.unwrap();
        assert!(last.is_none_or(|last| held.fencing_token() > last));
        assert!(two.lock("x").try_acquire().await.unwrap().is_none());
        let waits = two.lock("x");
        let waits = tokio::spawn(async move { waits.acquire().await.unwrap() });
        until_queue_is(&one, "x", 1, 1).await;
        let token = held.fencing_token();
        held.release().await.unwrap();
        let next = waits.await.unwrap();
        assert!(next.fencing_token() > token);
        assert!(one.lock("x").try_acquire().await.unwrap().is_none());
        last = Some(next.fencing_token());
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_reservation_that_may_not_be_on_the_disk_is_not_used() {
    let dir = directory();
    token_in_boot(dir.path(), 1).await;
    // A process was killed after it wrote a reservation, before it knew that it is on the disk.
    let written = number_at(dir.path(), RESERVED) + 1000;
    state(dir.path()).write_all_at(&written.to_le_bytes(), RESERVED).unwrap();
    state(dir.path()).write_all_at(&[0], NOTED).unwrap();
    let token = token_in_boot(dir.path(), 1).await;
    assert_eq!(token.get(), written + 1);
    assert!(number_at(dir.path(), RESERVED) > written, "reserved again before it was used");
}

#[tokio::test]
async fn tokens_continue_across_the_end_of_a_block() {
    let dir = directory();
    token_in_boot(dir.path(), 1).await;
    let reserved = number_at(dir.path(), RESERVED);
    state(dir.path()).write_all_at(&(reserved - 2).to_le_bytes(), NOTE).unwrap();
    for expected in reserved - 1..reserved + 3 {
        assert_eq!(token_in_boot(dir.path(), 1).await.get(), expected);
    }
    assert!(number_at(dir.path(), RESERVED) > reserved + 3);
}
