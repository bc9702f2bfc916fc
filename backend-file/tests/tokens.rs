//! Fencing tokens: across restarts, reboots and crashes in the middle of a promise.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::*;
use fencelock_core::{FencingToken, Settings};
use fencelock_file::FileStore;

#[test]
fn part() {
    let Some((dir, words)) = common::part() else { return };
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", name, mode] => hold(&dir, name, mode),
        ref other => panic!("no part {other:?}"),
    }
}

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

/// Where the header has them.
const TOKEN: u64 = 24;
const PROMISED: u64 = 32;
const DURABLE: u64 = 40;

#[tokio::test]
async fn tokens_rise_across_processes_and_kills() {
    let dir = directory();
    let mut last = 0;
    for _ in 0..4 {
        let mut actor = Actor::start(dir.path(), "hold x exclusive");
        actor.expect("asks");
        let token: u64 = actor.expect("held").parse().unwrap();
        assert!(token > last);
        last = token;
        actor.kill();
    }
    assert_eq!(last, 4, "no token is wasted by a kill");
}

/// A process that holds `x` and is killed: its entry stays until somebody meets it.
fn killed_holder(dir: &Path) -> u64 {
    let mut actor = Actor::start(dir, "hold x exclusive");
    actor.expect("asks");
    let token = actor.expect("held").parse().unwrap();
    actor.kill();
    token
}

#[tokio::test]
async fn a_reboot_voids_the_queue_and_tokens_go_on_above_what_was_promised() {
    let dir = directory();
    let before = killed_holder(dir.path());
    let promised = number_at(dir.path(), PROMISED);
    // What was not synced may be gone after a power failure: as if it had never been given out.
    state(dir.path()).write_all_at(&0u64.to_le_bytes(), TOKEN).unwrap();
    let token = token_in_boot(dir.path(), 2).await;
    assert!(token.get() > before && token.get() > promised);
    let again = token_in_boot(dir.path(), 3).await;
    assert!(again > token);
}

#[tokio::test]
async fn what_a_power_failure_left_behind_the_header_does_no_harm() {
    let dir = directory();
    let before = killed_holder(dir.path());
    state(dir.path()).write_all_at(&[0xEE; 400], 64).unwrap();
    fs::remove_file(dir.path().join("lock%3Ax/s0")).unwrap();
    assert!(token_in_boot(dir.path(), 2).await.get() > before);
}

#[tokio::test]
async fn boot_ids_of_their_own_do_not_part_containers() {
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
        until_queue(&one, "x", 1, 1).await;
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
async fn a_promise_that_may_not_be_on_the_disk_is_not_used() {
    let dir = directory();
    token_in_boot(dir.path(), 1).await;
    // A process was killed between writing a promise and knowing that it is on the disk.
    let kept = number_at(dir.path(), DURABLE);
    state(dir.path()).write_all_at(&kept.to_le_bytes(), TOKEN).unwrap();
    state(dir.path()).write_all_at(&(kept + 1000).to_le_bytes(), PROMISED).unwrap();
    let token = token_in_boot(dir.path(), 1).await;
    assert_eq!(token.get(), kept + 1);
    assert!(number_at(dir.path(), DURABLE) > kept + 1000, "promised anew before it was used");
    assert_eq!(number_at(dir.path(), DURABLE), number_at(dir.path(), PROMISED));
}

#[tokio::test]
async fn tokens_go_on_over_the_end_of_a_block() {
    let dir = directory();
    token_in_boot(dir.path(), 1).await;
    let kept = number_at(dir.path(), DURABLE);
    state(dir.path()).write_all_at(&(kept - 2).to_le_bytes(), TOKEN).unwrap();
    for expected in kept - 1..kept + 3 {
        assert_eq!(token_in_boot(dir.path(), 1).await.get(), expected);
    }
}

#[tokio::test]
async fn shared_and_permit_grants_have_tokens_of_their_own() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut tokens = Vec::new();
    for mode in ["exclusive", "shared", "permits:1:2", "exclusive"] {
        let guard = lock(&locks, "x", mode).acquire().await.unwrap();
        tokens.push(guard.fencing_token().get());
        guard.release().await.unwrap();
    }
    assert_eq!(tokens, [1, 2, 3, 4]);
}
