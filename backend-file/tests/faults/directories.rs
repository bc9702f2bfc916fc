//! Directories: their owners and permissions, invalid files in them, and their removal.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::time::Duration;

use fencelock_core::url::connect as connect_url;
use fencelock_core::{CellDurability, Error, ErrorKind, Settings, TokenOrder};
use fencelock_file::{FileStore, SCHEME};

use crate::support::*;

async fn refusal(url: &str) -> Error {
    connect_url(&[SCHEME], url).await.unwrap_err()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn invalid_urls_are_refused_with_a_reason() {
    for (url, says) in [
        ("file://host/dir", "three slashes"),
        ("file://locks", "three slashes"),
        ("file://me:secret@/dir", "three slashes"),
        ("file:///", "root directory"),
        ("file:///a%00b", "NUL"),
        ("file:///tmp?tll=3s", "did you mean ttl"),
        ("file:///tmp?ttl=3", "expected a duration"),
    ] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("secret"));
    }
}

#[tokio::test]
async fn a_url_connects_a_store_whose_locks_work() {
    let dir = directory();
    let made = dir.path().join("with space");
    let url = format!("file://{}?prefix=app:", made.to_str().unwrap().replace(' ', "%20"));
    let locks = connect_url(&[SCHEME], &url).await.unwrap();
    let guard = locks.lock("orders/42").acquire().await.unwrap();
    assert!(made.join("app%3Aorders%2F42/L").is_file());
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700, "made for this user alone");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn unusable_directories_are_refused_with_advice() {
    let dir = directory();
    fs::write(dir.path().join("file"), "").unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    chmod(&open, 0o777);
    for (place, says) in [
        ("file", "expected a directory"),
        ("missing/dir", "no such file or directory; create"),
        ("open/dir", "chmod +t"),
    ] {
        let error = refusal(&format!("file://{}/{place}", dir.path().display())).await;
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("file:///"), "{error}");
        assert!(!error.is_retryable());
    }
    chmod(&open, 0o1777);
    connect_url(&[SCHEME], &format!("file://{}", open.display())).await.unwrap();
    // Made first by another user, where everybody may: the directory, a link to it, also one that leads nowhere for a
    // moment, the middle of the way of a link of one's own, and what everybody may write to.
    let [theirs, link, nowhere, way, ours] =
        ["open/theirs", "open/link", "open/nowhere", "open/way", "ours"]
            .map(|it| dir.path().join(it));
    fs::create_dir(&theirs).unwrap();
    fs::create_dir(&way).unwrap();
    for (to, link) in
        [(dir.path(), &link), (Path::new("/nowhere"), &nowhere), (dir.path(), &way.join("locks"))]
    {
        symlink(to, link).unwrap();
    }
    symlink("open/way/locks", &ours).unwrap();
    for place in [&theirs, &link, &nowhere, &way] {
        lchown(place, Some(65_534), None).unwrap();
    }
    for place in [&theirs, &link, &nowhere, &ours, &link.join("made")] {
        let error = refusal(&format!("file://{}", place.display())).await.to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }
    lchown(&open, Some(65_534), None).unwrap();
    let error = refusal(&format!("file://{}/mine", open.display())).await.to_string();
    assert!(error.contains("who may remove their files"), "{error}");
    // A link of /proc leads to what its text does not name.
    let here = fs::File::open(dir.path()).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&here);
    connect_url(&[SCHEME], &format!("file:///proc/self/fd/{fd}/by")).await.unwrap();
    assert!(dir.path().join("by/.doors").exists());
    let relative = FileStore::at("some/dir").locks(Settings::default()).await.unwrap_err();
    assert!(relative.to_string().contains("absolute"), "{relative}");
}

#[tokio::test]
async fn an_unsuitable_file_system_is_refused() {
    // A kernel file system that is mounted everywhere, in which no file can be created.
    let error = refusal("file:///proc/self").await;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn files_get_the_directory_s_permissions_whatever_the_umask() {
    for (mode, dirs, files) in [
        (0o700, 0o700, 0o600),
        (0o755, 0o700, 0o600),
        (0o2770, 0o2770, 0o660),
        (0o1777, 0o1777, 0o666),
    ] {
        let dir = directory();
        chmod(dir.path(), mode);
        let locks = connect(dir.path()).await;
        let held = locks.rw_lock("x").read().acquire().await.unwrap();
        let second = locks.rw_lock("x").read().acquire().await.unwrap();
        let mode_of = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
        for path in ["lock%3Ax", ".doors"] {
            assert_eq!(mode_of(path), dirs, "{path} in {mode:o}");
        }
        let made = ["L", "q", "s0", "s1"].map(|name| format!("lock%3Ax/{name}"));
        let made = made.iter().map(String::as_str).chain([".doors/labels2", ".doors/p0"]);
        for path in made {
            assert_eq!(mode_of(path), files, "{path} in {mode:o}");
        }
        let pipe = fs::metadata(dir.path().join("lock%3Ax/s1")).unwrap();
        assert!(pipe.file_type().is_fifo());
        held.release().await.unwrap();
        second.release().await.unwrap();
    }
}

/// Fault 15: file
#[tokio::test]
async fn a_queue_of_another_version_is_left_alone() {
    let (dir, locks) = store().await;
    let held = locks.lock("x").acquire().await.unwrap();
    // A record of another version, after the queue.
    let other = b"fencelk\x03, which this one does not know, and which is as long as its own";
    page(dir.path()).write_all(other).unwrap();
    for error in [
        locks.lock("x").acquire().await.unwrap_err(),
        locks.lock("x").try_acquire().await.unwrap_err(),
        locks.inspect("x").await.unwrap_err(),
        held.release().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("another version"), "{error}");
    }
    let mut left = vec![0; 4096];
    let read = page(dir.path()).read(&mut left).unwrap();
    assert!(left[..read].ends_with(other), "the page is unchanged");
    // The read consumed the page, which is lost now.
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
}

/// That version had no page; the queue and its latch were in the state file.
#[tokio::test]
async fn a_lock_of_format_1_is_migrated_when_it_is_unused() {
    let (dir, locks) = store().await;
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    locks.close().await.unwrap();
    let lock = dir.path().join("lock%3Ax");
    fs::remove_file(lock.join("q")).unwrap();
    let (token, promised): (u64, u64) = (7, 1 << 20);
    let numbers = [token, promised, promised, 99].map(u64::to_le_bytes).concat();
    let version_1 = [b"fencelk\x01", &[9; 16][..], &numbers, &[0; 8]].concat();
    let state = fs::File::options().read(true).write(true).open(lock.join("L")).unwrap();
    state.write_all_at(&version_1, 0).unwrap();

    let locks = connect(dir.path()).await;
    // It has no cell, and a search for some changes nothing.
    let found = locks.expired_cells(&[], Duration::ZERO).await.unwrap().unwrap();
    assert!(found.expired.is_empty() && found.unread.is_empty(), "{found:?}");
    assert_eq!(fs::read(lock.join("L")).unwrap()[..8], *b"fencelk\x01");
    let owner = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let owner = rustix::fs::open(lock.join("s0"), owner, rustix::fs::Mode::empty()).unwrap();
    let in_use = async || {
        let error = locks.lock("x").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("an earlier version"), "{error}");
    };
    in_use().await;
    drop(owner);
    rustix::fs::flock(&state, rustix::fs::FlockOperation::LockExclusive).unwrap();
    in_use().await;
    drop(state);
    let guard = locks.lock("x").acquire().await.unwrap();
    assert_eq!(guard.fencing_token().get(), promised + 1);
    assert_eq!(fs::read(lock.join("L")).unwrap()[..8], *b"fencelk\x02");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_damaged_queue_is_rebuilt_and_its_holder_still_excludes_others() {
    let (dir, locks) = store().await;
    for what in
        ["no queue at all", "x", "fencelk\u{2}", "fencelk\u{2} but then nothing that is one"]
    {
        let held = locks.lock("x").acquire().await.unwrap();
        page(dir.path()).write_all(what.as_bytes()).unwrap();
        for _ in 0..2 {
            assert!(locks.lock("x").try_acquire().await.unwrap().is_none(), "{what}");
        }
        assert!(held.is_held());
        assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::NotHeld, "{what}");
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn an_invalid_state_file_is_left_alone() {
    for (spoilt, says) in [
        ("no state at all", "does not begin with"),
        ("fencelk\u{3}", "another version"),
        ("", "contradicts itself"),
    ] {
        let (dir, locks) = store().await;
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
        locks.close().await.unwrap();
        let state = dir.path().join("lock%3Ax/L");
        let good = fs::read(&state).unwrap();
        let mut bad = good.clone();
        bad[..spoilt.len()].copy_from_slice(spoilt.as_bytes());
        if spoilt.is_empty() {
            // The flag for a note.
            bad[16] = 7;
        }
        fs::write(&state, &bad).unwrap();
        let locks = connect(dir.path()).await;
        for error in [
            locks.lock("x").acquire().await.unwrap_err(),
            locks.lock("x").try_acquire().await.unwrap_err(),
            locks.inspect("x").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert_eq!(fs::read(&state).unwrap(), bad, "the file is unchanged");
        fs::write(&state, &good).unwrap();
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    }
}

/// Fault 43: file
#[tokio::test]
async fn foreign_files_in_the_way_are_typed_errors() {
    let (dir, locks) = store().await;
    let is = |error: Error, kind: ErrorKind| assert_eq!(error.kind(), kind, "{error}");
    fs::write(dir.path().join("lock%3Afile"), "").unwrap();
    is(locks.lock("file").acquire().await.unwrap_err(), ErrorKind::Refused);
    symlink("/tmp", dir.path().join("lock%3Alink")).unwrap();
    is(locks.lock("link").acquire().await.unwrap_err(), ErrorKind::Refused);
    fs::create_dir_all(dir.path().join("lock%3Adir/L")).unwrap();
    is(locks.lock("dir").acquire().await.unwrap_err(), ErrorKind::Foreign);
    // Another lock's state file in this lock's directory, as on a case-insensitive file system.
    locks.lock("one").acquire().await.unwrap().release().await.unwrap();
    fs::create_dir(dir.path().join("lock%3ATWO")).unwrap();
    fs::copy(dir.path().join("lock%3Aone/L"), dir.path().join("lock%3ATWO/L")).unwrap();
    is(locks.lock("TWO").acquire().await.unwrap_err(), ErrorKind::Foreign);
    // A pipe that was removed by hand, whose owner may live.
    let held = locks.lock("one").acquire().await.unwrap();
    fs::remove_file(dir.path().join("lock%3Aone/s0")).unwrap();
    let other = connect(dir.path()).await;
    is(other.lock("one").acquire().await.unwrap_err(), ErrorKind::Foreign);
    held.release().await.unwrap();
    other.lock("one").acquire().await.unwrap().release().await.unwrap();
}

/// Fault 25: file
#[tokio::test]
async fn a_removed_lock_directory_is_recreated_and_the_old_grant_is_lost() {
    let (dir, locks) = store().await;
    let held = locks.lock("x").acquire().await.unwrap();
    let waiting = locks.lock("x");
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    until_queue_is(&locks, "x", 1, 1).await;
    // Longer than the path is assumed to be unchanged.
    tokio::time::sleep(Duration::from_millis(150)).await;
    fs::remove_dir_all(dir.path().join("lock%3Ax")).unwrap();
    let error = held.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    // The waiter in the old directory moves to the new one.
    let next = waiting.await.unwrap();
    assert!(connect(dir.path()).await.lock("x").try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

#[tokio::test]
async fn a_removed_or_replaced_store_directory_is_reported() {
    let base = directory();
    let dir = base.path().join("locks");
    let locks = connect(&dir).await;
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    fs::rename(&dir, base.path().join("old")).unwrap();
    let error = until("the removal is noticed", async || match locks.lock("x").acquire().await {
        Ok(guard) => {
            guard.release().await.unwrap();
            None
        }
        Err(error) => Some(error),
    });
    let error = error.await;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let others = connect(&dir).await;
    let held = others.lock("x").acquire().await.unwrap();
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("replaced"), "{error}");
    held.release().await.unwrap();
}

#[tokio::test]
async fn local_file_systems_can_carry_locks_and_tell_what_a_reboot_leaves() {
    const IN_MEMORY: i64 = 0x0102_1994;
    for base in ["/dev/shm", "/var/tmp"] {
        let Ok(dir) = tempfile::tempdir_in(base) else { continue };
        let locks = connect(dir.path()).await;
        let is_memory = rustix::fs::statfs(dir.path()).unwrap().f_type == IN_MEMORY;
        let (tokens, cells) = match is_memory {
            true => (TokenOrder::Boot, CellDurability::Boot),
            false => (TokenOrder::Data, CellDurability::Synced),
        };
        assert_eq!(
            (locks.profile().tokens, locks.profile().cells),
            (tokens, Some(cells)),
            "{base}"
        );
        let cell = locks.cell("x");
        assert!(cell.compare_and_set(None, *b"one").await.unwrap());
        cell.remove().await.unwrap();
        let held = locks.lock("x").acquire().await.unwrap();
        let mut waiter = TestProcess::queued(dir.path(), &locks, 1).await;
        held.release().await.unwrap();
        waiter.holds();
        waiter.release();
    }
}

#[test]
fn a_store_connects_while_another_process_creates_and_removes_its_directory() {
    let base = directory();
    let dir = base.path().join("locks");
    let mut other = TestProcess::start(&dir, "make-and-remove");
    other.expect("begins");
    for _ in 0..40 {
        in_runtime(async {
            let locks = connect(&dir).await;
            locks.lock("x").acquire().await.unwrap().release().await.unwrap();
            locks.close().await.unwrap();
        });
        fs::remove_dir_all(&dir).unwrap();
    }
    other.kill();
}

/// Makes and removes the directory for as long as this process lives.
pub(crate) fn make_and_remove(dir: &Path) {
    report("begins");
    loop {
        let _ = fs::create_dir(dir);
        // Succeeds as long as the directory is empty.
        let _ = fs::remove_dir(dir);
    }
}

#[tokio::test]
async fn inspecting_a_lock_does_not_create_it() {
    let (dir, locks) = store().await;
    assert!(locks.inspect("x").await.unwrap().holders.is_empty());
    assert!(!dir.path().join("lock%3Ax").exists());
}

/// Fault 41: file
#[tokio::test]
async fn without_permissions_the_error_says_what_to_do() {
    if !is_root() {
        return;
    }
    let dir = directory();
    chmod(dir.path(), 0o755);
    let locks = connect(dir.path()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    // A user without a home directory.
    let nobody = |line| TestProcess::start_as(dir.path(), line, 65_534, &[]).expect("refused");
    let said = nobody("connect");
    assert!(said.contains("permission denied") && said.contains("chmod 2770"), "{said}");
    let said = nobody("connect-by-default");
    assert!(said.contains("install -d -m 0700 -o 65534"), "{said}");
    held.release().await.unwrap();
}

/// Reports why this user cannot use the store.
pub(crate) fn report_refusal(store: FileStore) {
    in_runtime(async {
        let error = store.locks(Settings::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        report(format_args!("refused {error}"));
    });
}
