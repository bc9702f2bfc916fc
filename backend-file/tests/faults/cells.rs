//! Cells between processes, and what becomes of them when processes, files and neighbours fail.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fencelock_core::{Content, ErrorKind, Keep, Locks, Settings, Stamp};
use fencelock_file::FileStore;
use fencelock_testkit::helpers::answer;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::*;

/// Two users who need not be in /etc/passwd.
const ALICE: u32 = 54_322;
const BOB: u32 = 54_323;

/// Where the record and the first slot of a cell are in a lock's state file.
const RECORD_AT: u64 = 24 << 20;
const SLOTS_AT: u64 = RECORD_AT + 4096;

/// Waits for a latch while no file descriptor is free, for longer than a watch goes without a look.
pub(crate) fn starve(dir: &Path) {
    in_runtime(async {
        let latch = connect(dir).await.latch("x", 2);
        assert_eq!(latch.count_down().await.unwrap(), 1);
        let waiter = latch.clone();
        let waiting = tokio::spawn(async move { waiter.wait().await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
        tokio::time::sleep(Duration::from_secs(7)).await;
        setrlimit(Resource::Nofile, before).unwrap();
        latch.count_down().await.unwrap();
        report(format_args!("waited: {:?}", waiting.await.unwrap()));
    });
}

pub(crate) fn add(dir: &Path, count: u32) {
    in_runtime(async {
        let counter = connect(dir).await.counter("x");
        report("ready");
        read_command();
        for _ in 0..count {
            counter.add(1).await.unwrap();
        }
        report("added");
    });
}

pub(crate) fn report_changes(dir: &Path) {
    in_runtime(async {
        let locks = connect(dir).await;
        let mut watch = locks.cell("x").watch().await.unwrap();
        loop {
            let seen = watch.next().await.unwrap();
            let seen = seen.map_or("nothing".into(), |seen| seen.bytes().to_vec());
            report(format_args!("sees {}", String::from_utf8(seen).unwrap()));
        }
    });
}

pub(crate) fn read_in_boot(dir: &Path, boot: u8) {
    in_runtime(async {
        let booted = FileStore::at(dir).booted_as([boot; 16]);
        let locks = booted.locks(Settings::default()).await.unwrap();
        report("reads");
        let read = answer(|| locks.read_cell("x")).await;
        report(format_args!("read {}", read.map_or(0, |content| content.bytes[0])));
    });
}

/// Content `n`; 0 for none. Longer than a page, and of different lengths.
fn content(n: u8) -> Option<Content> {
    let bytes = vec![n; 5_000 + usize::from(n) * 100];
    (n > 0).then(|| Content { stamp: Stamp::from_bytes([n; 16]), bytes })
}

fn keep(word: &str) -> Keep {
    match word {
        "forever" => Keep::Forever,
        _ => Keep::For(Duration::from_secs(600)),
    }
}

async fn swap(locks: &Locks, from: u8, to: u8, keep: Keep) -> bool {
    let (from, to) = (content(from).map(|content| content.stamp), content(to));
    answer(|| locks.swap_cell("x", from, to.as_ref(), keep)).await
}

pub(crate) fn swap_once(dir: &Path, from: &str, to: &str, word: &str) {
    in_runtime(async {
        let locks = connect(dir).await;
        report("ready");
        assert!(swap(&locks, from.parse().unwrap(), to.parse().unwrap(), keep(word)).await);
        report("swapped");
        std::process::exit(0);
    });
}

fn lock_dir(dir: &Path) -> PathBuf {
    dir.join("lock%3Ax")
}

fn state(dir: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(lock_dir(dir).join("L")).unwrap()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(lock_dir(dir)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The files of a lock without waiters: nothing is added for a cell.
fn assert_only_the_lock_s_files(dir: &Path) {
    assert_eq!(names(dir), ["L", "q", "s0"].map(str::to_owned).into());
}

/// The calls of a swap after it has opened the file.
const CALLS: [&str; 6] = ["flock", "pread64", "pwrite64", "fdatasync", "fsync", "fallocate"];

/// Kills a process that swaps `from` for `to` when it makes its `nth` call of this name. Whether it was
/// killed within the swap; `None` if it makes fewer such calls.
fn killed_at(dir: &Path, call: &str, nth: u32, swap: &str) -> Option<bool> {
    let inject = format!("--inject={call}:signal=KILL:when={nth}");
    let mut tracer = Command::new("strace");
    // Each thread counts for itself, and one thread makes the swap.
    tracer.args(["-f", "-qq", "-o", "/dev/null", &inject, "--"]);
    let mut child = TestProcess::start_under(tracer, dir, swap);
    let reports: Vec<_> = std::iter::from_fn(|| child.read_line()).collect();
    let reported = |line: &str| reports.iter().any(|it| it == line);
    (!reported("swapped")).then(|| reported("ready"))
}

#[test]
fn a_cell_survives_a_kill_at_each_system_call_of_a_swap() {
    Command::new("strace").arg("-V").output().expect("strace, which ./test installs, can be run");
    let mut seen_after = BTreeSet::new();
    for (from, to, before, word, syncs) in [
        (0, 2, "forever", "forever", 4),
        (1, 2, "forever", "forever", 2),
        // The disk must not have the record of a synced content and another content.
        (1, 2, "forever", "days", 2),
        (1, 2, "days", "days", 0),
        (1, 0, "forever", "forever", 1),
        (1, 0, "days", "forever", 0),
    ] {
        let mut kills = Vec::new();
        let (mut calls, mut nth) = (CALLS.iter().peekable(), 0);
        while let Some(call) = calls.peek() {
            nth += 1;
            let dir = directory();
            in_runtime(async {
                let locks = connect(dir.path()).await;
                let kept = keep(before);
                // The lock's directory is there already, without a cell.
                assert!(swap(&locks, 0, 9, kept).await && swap(&locks, 9, 0, kept).await);
                assert!(swap(&locks, 0, from, kept).await);
            });
            let line = format!("swap {from} {to} {word}");
            match killed_at(dir.path(), call, nth, &line) {
                // It makes no more of these.
                None => {
                    (_, nth) = (calls.next(), 0);
                    continue;
                }
                Some(false) => continue,
                Some(true) => kills.push(format!("{call} {nth}")),
            }
            let at = format!("{line}, killed at {call} {nth}");
            in_runtime(async {
                let locks = connect(dir.path()).await;
                let seen = answer(|| locks.read_cell("x")).await;
                let now = [from, to].into_iter().find(|n| content(*n) == seen);
                let now = now.unwrap_or_else(|| panic!("{at}: {seen:?}"));
                seen_after.insert((from, to, before, word, now == to));
                assert_only_the_lock_s_files(dir.path());
                // The interrupted swap, sent again.
                let again = swap(&locks, from, to, keep(word)).await;
                assert!(again || to == 0 && now == to, "{at}");
                assert_eq!(answer(|| locks.read_cell("x")).await, content(to), "{at}");
                assert!(swap(&locks, to, 3, Keep::Forever).await);
                assert_eq!(answer(|| locks.read_cell("x")).await, content(3), "{at}");
                locks.lock("x").acquire().await.unwrap().release().await.unwrap();
            });
        }
        println!("{from} to {to}, {before}, {word}: {kills:?}");
        assert!(kills.len() >= 8, "{from} to {to}, {word}: only {kills:?}");
        let synced = kills.iter().filter(|call| call.contains("sync")).count();
        assert_eq!(synced, syncs, "{from} to {to}, {before}, {word}: {kills:?}");
    }
    assert_eq!(seen_after.len(), 12, "each is killed before and after it is made: {seen_after:?}");
}

#[test]
fn a_watcher_in_another_process_is_woken_by_each_change() {
    let dir = directory();
    let mut watcher = TestProcess::start(dir.path(), "watch");
    watcher.expect("sees nothing");
    in_runtime(async {
        let cell = connect(dir.path()).await.cell("x");
        let mut took = Vec::new();
        for round in 0..9 {
            let seen = cell.read().await.unwrap().map(|seen| seen.version());
            assert!(cell.compare_and_set(seen, round.to_string()).await.unwrap());
            let written = Instant::now();
            watcher.expect(&format!("sees {round}"));
            took.push(written.elapsed());
        }
        cell.remove().await.unwrap();
        watcher.expect("sees nothing");
        // A watcher that is not woken looks after five seconds.
        took.sort();
        assert!(took[took.len() / 2] < Duration::from_secs(3), "{took:?}");
        // A watcher that died is no burden, and does not keep others from being woken.
        let mut second = TestProcess::start(dir.path(), "watch");
        second.expect("sees nothing");
        watcher.kill();
        assert!(cell.compare_and_set(None, *b"after").await.unwrap());
        second.expect("sees after");
    });
    assert_only_the_lock_s_files(dir.path());
}

/// What cannot be opened is not gone.
#[test]
fn a_watcher_without_a_free_descriptor_sees_no_removal() {
    let dir = directory();
    let mut process = TestProcess::start(dir.path(), "starve");
    assert_eq!(process.expect("waited: "), "Ok(())");
    process.end();
}

#[test]
fn additions_of_processes_add_up_although_some_are_killed() {
    const EACH: u64 = 40;
    let dir = directory();
    let start = || {
        let mut child = TestProcess::start(dir.path(), &format!("add {EACH}"));
        child.expect("ready");
        child.send("go");
        child
    };
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    for _ in 0..3 {
        start().kill();
    }
    for mut child in children {
        child.expect("added");
        child.end();
    }
    let sum = in_runtime(async { connect(dir.path()).await.counter("x").get().await.unwrap() });
    assert!((4 * EACH..=7 * EACH).contains(&u64::try_from(sum).unwrap()), "{sum}");
    assert_only_the_lock_s_files(dir.path());
}

/// Fault 43: file
#[tokio::test]
async fn a_damaged_cell_is_foreign_and_left_alone() {
    let (dir, locks) = store().await;
    for (what, at, byte) in [
        ("is damaged", RECORD_AT + 20, 0),
        ("another version", RECORD_AT + 7, 9),
        ("content of its cell is damaged", SLOTS_AT + 4_999, 0),
    ] {
        assert!(swap(&locks, 0, 1, Keep::Forever).await);
        let (file, mut was) = (state(dir.path()), [0]);
        file.read_exact_at(&mut was, at).unwrap();
        file.write_all_at(&[byte], at).unwrap();
        let in_file = || {
            let mut bytes = vec![0; (SLOTS_AT - RECORD_AT) as usize + 2 * Content::MAX_BYTES];
            let read = file.read_at(&mut bytes, RECORD_AT).unwrap();
            bytes.truncate(read);
            bytes.truncate((SLOTS_AT - RECORD_AT) as usize + 5_100);
            bytes
        };
        let spoilt = in_file();
        let other = connect(dir.path()).await;
        let stamp = content(1).map(|content| content.stamp);
        for error in [
            locks.read_cell("x").await.unwrap_err(),
            other.swap_cell("x", stamp, content(2).as_ref(), Keep::Forever).await.unwrap_err(),
            other.swap_cell("x", None, content(2).as_ref(), Keep::Forever).await.unwrap_err(),
            other.swap_cell("x", stamp, None, Keep::Forever).await.unwrap_err(),
            other.cell("x").watch().await.unwrap().next().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        assert!(in_file() == spoilt);
        // The lock of that name is not affected.
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
        file.write_all_at(&was, at).unwrap();
        assert_eq!(answer(|| locks.read_cell("x")).await, content(1));
        assert!(swap(&locks, 1, 0, Keep::Forever).await);
    }
}

#[tokio::test]
async fn what_was_not_synced_may_be_lost_in_a_power_failure_and_nothing_else() {
    let booted = async |dir: &Path, boot: u8| {
        FileStore::at(dir).booted_as([boot; 16]).locks(Settings::default()).await.unwrap()
    };
    let days = keep("days");
    for (writes, is_lost) in [
        (&[days][..], true),
        (&[Keep::Forever], false),
        (&[days, days, Keep::Forever], false),
        // What replaces a synced content is synced, too: the disk may still have the other's record.
        (&[Keep::Forever, days, days], true),
    ] {
        let dir = directory();
        let before = booted(dir.path(), 1).await;
        let mut last = 0;
        for kept in writes {
            assert!(swap(&before, last, last + 1, *kept).await);
            last += 1;
        }
        // Its content did not reach the disk.
        let slot = SLOTS_AT + (u64::from(last) - 1) % 2 * Content::MAX_BYTES as u64;
        state(dir.path()).write_all_at(&[0; 100], slot + 200).unwrap();
        let kind = before.read_cell("x").await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Foreign, "it has not been lost in this boot");
        let after = booted(dir.path(), 2).await;
        match is_lost {
            true => {
                assert_eq!(after.read_cell("x").await.unwrap(), None);
                assert!(swap(&after, 0, 9, days).await);
                assert_eq!(after.read_cell("x").await.unwrap(), content(9));
            }
            false => {
                let kind = after.read_cell("x").await.unwrap_err().kind();
                assert_eq!(kind, ErrorKind::Foreign);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_while_it_is_replaced_is_whole() {
    let (dir, locks) = store().await;
    assert!(swap(&locks, 0, 100, keep("days")).await);
    let writer = connect(dir.path()).await;
    let writing = tokio::spawn(async move {
        for last in (100..=113).cycle() {
            let next = if last == 113 { 100 } else { last + 1 };
            assert!(swap(&writer, last, next, keep("days")).await);
        }
    });
    let (mut last, mut changes) = (100, 0);
    while changes < 300 {
        let read = answer(|| locks.read_cell("x")).await.expect("it is always there");
        let n = read.bytes[0];
        assert!(content(n) == Some(read));
        changes += u32::from(n != last);
        last = n;
    }
    assert!(!writing.is_finished());
    writing.abort();
    // Longer than a cell may be.
    let long = content(120).unwrap();
    let error = locks.swap_cell("y", None, Some(&long), Keep::Forever).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// A content that does not fit its record may be that of a later one: then nothing was lost.
#[test]
fn what_an_earlier_boot_has_written_is_not_lost_by_being_replaced() {
    let mut is_between = false;
    for nth in 1..=8 {
        let dir = directory();
        in_runtime(async {
            let locks = connect(dir.path()).await;
            assert!(swap(&locks, 0, 1, keep("days")).await);
            // The reader stays for a while at its nth reading.
            let delay = format!("--inject=pread64:delay_exit=300000:when={nth}");
            let mut tracer = Command::new("strace");
            tracer.args(["-f", "-qq", "-o", "/dev/null", &delay, "--"]);
            let mut reader = TestProcess::start_under(tracer, dir.path(), "read 7");
            reader.expect("reads");
            tokio::time::sleep(Duration::from_millis(150)).await;
            assert!(
                swap(&locks, 1, 2, keep("days")).await && swap(&locks, 2, 3, keep("days")).await
            );
            let read = reader.expect("read ");
            assert!(["1", "2", "3"].contains(&&*read), "it was always there: {read}, {nth}");
            // It was at its content by then, or before that.
            is_between |= read == "3";
            reader.end();
        });
    }
    assert!(is_between);
}

/// The blocks of the lock's state file, in units of 512 bytes.
fn blocks(dir: &Path) -> u64 {
    fs::metadata(lock_dir(dir).join("L")).unwrap().blocks()
}

#[tokio::test]
async fn a_removed_cell_gives_its_space_back_and_reading_none_takes_none() {
    let (dir, locks) = store().await;
    assert_eq!(answer(|| locks.read_cell("x")).await, None);
    assert!(swap(&locks, 0, 0, Keep::Forever).await && !swap(&locks, 1, 2, Keep::Forever).await);
    assert!(!lock_dir(dir.path()).exists(), "nothing was written");
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    let before = blocks(dir.path());
    assert!(swap(&locks, 0, 1, Keep::Forever).await && swap(&locks, 1, 2, Keep::Forever).await);
    assert!(blocks(dir.path()) > before);
    assert!(swap(&locks, 2, 0, Keep::Forever).await);
    assert_eq!(blocks(dir.path()), before);
    assert_eq!(answer(|| locks.read_cell("x")).await, None);
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
    assert_only_the_lock_s_files(dir.path());
}

#[tokio::test]
async fn a_process_that_is_stopped_while_it_swaps_blocks_neither_readers_nor_the_lock() {
    let (dir, locks) = store().await;
    let cell = locks.cell("x");
    assert!(cell.compare_and_set(None, *b"one").await.unwrap());
    let version = cell.read().await.unwrap().map(|seen| seen.version());
    let file = state(dir.path());
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let settings = Settings::default().unreachable_after(Duration::from_millis(300)).unwrap();
    let impatient = FileStore::at(dir.path()).locks(settings).await.unwrap().cell("x");
    let error = impatient.compare_and_set(version, *b"two").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(cell.read().await.unwrap().unwrap().bytes(), b"one");
    let mut watch = cell.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().bytes(), b"one");
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    flock(&file, FlockOperation::Unlock).unwrap();
    assert!(cell.compare_and_set(version, *b"three").await.unwrap());
    assert_eq!(watch.next().await.unwrap().unwrap().bytes(), b"three");
}

#[tokio::test]
async fn nothing_in_the_place_of_a_cell_s_file_is_followed_or_changed() {
    let dir = directory();
    let victim = dir.path().join("victim");
    let locks = connect(dir.path()).await;
    let file = lock_dir(dir.path()).join("L");
    for neighbour in ["symlink", "hard link", "fifo", "directory"] {
        assert!(swap(&locks, 0, 1, Keep::Forever).await);
        fs::rename(&file, dir.path().join("aside")).unwrap();
        // A valid state file, so that only its place is wrong.
        fs::copy(dir.path().join("aside"), &victim).unwrap();
        let text = fs::read(&victim).unwrap();
        match neighbour {
            "symlink" => symlink(&victim, &file).unwrap(),
            "hard link" => fs::hard_link(&victim, &file).unwrap(),
            "fifo" => assert!(Command::new("mkfifo").arg(&file).status().unwrap().success()),
            _ => fs::create_dir(&file).unwrap(),
        }
        let kind = fs::symlink_metadata(&file).unwrap().file_type();
        let stamp = content(1).map(|content| content.stamp);
        for error in [
            locks.read_cell("x").await.unwrap_err(),
            locks.swap_cell("x", stamp, content(2).as_ref(), Keep::Forever).await.unwrap_err(),
            locks.swap_cell("x", stamp, None, Keep::Forever).await.unwrap_err(),
            locks.cell("x").watch().await.unwrap().next().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Foreign, "{neighbour}: {error}");
        }
        assert_eq!(fs::symlink_metadata(&file).unwrap().file_type(), kind);
        assert!(fs::read(&victim).unwrap() == text, "{neighbour}");
        match neighbour {
            "directory" => fs::remove_dir(&file).unwrap(),
            _ => fs::remove_file(&file).unwrap(),
        }
        let _ = fs::remove_file(&victim);
        fs::rename(dir.path().join("aside"), &file).unwrap();
        assert!(swap(&locks, 1, 0, Keep::Forever).await);
    }
}

#[test]
fn users_share_the_cells_of_a_directory_that_is_open_to_all() {
    if !is_root() {
        return;
    }
    let store = directory();
    chown(store.path(), Some(0), Some(0)).unwrap();
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    for (uid, from, to) in [(ALICE, 0, 1), (BOB, 1, 2), (ALICE, 2, 3), (BOB, 3, 0), (BOB, 0, 1)] {
        let line = format!("swap {from} {to} forever");
        let mut process = TestProcess::start_as(store.path(), &line, uid, &[]);
        process.expect("ready");
        process.expect("swapped");
        process.end();
    }
    assert_eq!(fs::metadata(lock_dir(store.path())).unwrap().uid(), ALICE);
    assert_only_the_lock_s_files(store.path());
}
