//! Several users of one machine: attacks in a shared directory, and root in the directory of
//! another user. The tests need real users, so only root can run them.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencelock_core::{ErrorKind, Settings};
use fencelock_file::FileStore;
use fencelock_testkit::helpers::until_queued;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::*;

/// Two users who need not be in /etc/passwd, and a group of the first one.
const MALLORY: u32 = 54_321;
const ALICE: u32 = 54_322;
const GROUP: u32 = 54_399;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn directory_of(owner: u32, group: u32, mode: u32) -> tempfile::TempDir {
    let dir = directory();
    chown(dir.path(), Some(owner), Some(group)).unwrap();
    chmod(dir.path(), mode);
    dir
}

/// A file and a directory of root that no other user may change.
struct Victims {
    base: tempfile::TempDir,
    file: PathBuf,
}

impl Victims {
    fn new() -> Victims {
        let base = directory();
        chmod(base.path(), 0o755);
        let file = base.path().join("file");
        fs::write(&file, "secret").unwrap();
        chmod(&file, 0o600);
        Victims { base, file }
    }

    fn check(&self, round: u32) {
        let stat = fs::metadata(&self.file).unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.uid()), (0o600, 0), "changed in round {round}");
        assert_eq!(stat.gid(), fs::metadata("/root").unwrap().gid());
        assert_eq!(fs::read(&self.file).unwrap(), b"secret", "written in round {round}");
        assert_eq!(mode_of(self.base.path()), 0o755);
    }
}

/// Until the command to end, puts a symbolic link to `victim` in the place of whatever appears in `store`
/// and in its directories, as often as it can.
pub(crate) fn attack(store: &Path, victim: &Path) {
    static END: AtomicBool = AtomicBool::new(false);
    static SWAPS: AtomicU64 = AtomicU64::new(0);
    let swap = |dir: &Path, evil: &str, name: &str| {
        let (evil, name) = (dir.join(evil), dir.join(name));
        if renameat_with(CWD, &evil, CWD, &name, RenameFlags::EXCHANGE).is_ok() {
            SWAPS.fetch_add(1, Ordering::Relaxed);
            // What it was exchanged for may be an empty directory, or one that is closed to him.
            let _ = fs::remove_file(&evil);
            let _ = fs::rename(&evil, evil.with_extension("aside"));
        }
        let _ = symlink(victim, &evil);
    };
    report("ready");
    std::thread::scope(|scope| {
        // A draft whose name can be foreseen need not be looked for.
        scope.spawn(|| {
            while !END.load(Ordering::Relaxed) {
                let evil = store.join("lock%3Ax/evil-0");
                let draft = store.join("lock%3Ax/.draft-0");
                for _ in 0..1000 {
                    if renameat_with(CWD, &evil, CWD, &draft, RenameFlags::EXCHANGE).is_ok() {
                        SWAPS.fetch_add(1, Ordering::Relaxed);
                        let _ = fs::remove_file(&evil);
                        break;
                    }
                }
                let _ = symlink(victim, &evil);
            }
        });
        scope.spawn(|| {
            while !END.load(Ordering::Relaxed) {
                for dir in [store.join("lock%3Ax"), store.join(".doors"), store.to_owned()] {
                    let names = fs::read_dir(&dir).into_iter().flatten().flatten();
                    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
                        // Without the lock itself there is nothing to attack.
                        let kept = ["L", ".doors", "lock%3Ax", "labels2"].contains(&&*name);
                        if !kept && !name.starts_with("evil") {
                            swap(&dir, "evil-1", &name);
                        }
                    }
                }
            }
        });
        read_command();
        END.store(true, Ordering::Relaxed);
    });
    report(format_args!("swapped {}", SWAPS.load(Ordering::Relaxed)));
}

/// Root acquires and releases in a directory in which another user renames what he can.
fn under_attack(store: &Path, attacker: &[u32], victims: &Victims, bound: Duration) {
    let mut mallory = TestProcess::start_as(
        store,
        &format!("attack {}", victims.file.display()),
        MALLORY,
        attacker,
    );
    mallory.expect("ready");
    let start = Instant::now();
    let mut round = 0;
    while start.elapsed() < bound {
        in_runtime(async {
            let settings = Settings::default().unreachable_after(Duration::from_millis(50));
            let Ok(locks) = FileStore::at(store).locks(settings.unwrap()).await else { return };
            for _ in 0..20 {
                round += 1;
                // The result under attack does not matter, as long as no other file is changed.
                if let Ok(Some(guard)) = locks.lock("x").try_acquire().await {
                    let _ = guard.release().await;
                }
                victims.check(round);
                // The next round creates its pipe again.
                remove_all_but(&store.join("lock%3Ax"), "L");
            }
        });
        remove_all_but(&store.join(".doors"), "labels2");
    }
    mallory.send("end");
    let swaps: u64 = mallory.expect("swapped").parse().unwrap();
    println!("{round} rounds, {swaps} swaps in {}", store.display());
    assert!(swaps > 0 && round > 0, "the attack ran");
}

fn remove_all_but(dir: &Path, kept: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name() != kept {
            let _ = fs::remove_file(entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// All that a shell can try with each file of a store. Prints what was possible.
const TRIES: &str = r#"
    find "$1" -mindepth 1 | while read -r file; do
        for try in 'cat "$1"' 'echo x >>"$1"' 'rm -rf "$1"' 'mv "$1" "$1.moved"' 'chmod 777 "$1"' \
            'ln "$1" "$1.linked"' 'flock -n "$1" true' 'touch "$1/new" && test -d "$1"'; do
            timeout 5 sh -c "$try" try "$file" >/dev/null && echo "$try: $file"
        done
    done
    touch "$1/new" && echo "a new file"
    mv "$1" "$1.moved" && echo "moved""#;

/// Who may look into the directory, and not write to it.
/// Fault 41: file
#[test]
fn a_user_without_rights_does_nothing_to_a_lock() {
    if !is_root() {
        return;
    }
    let base = directory_of(0, 0, 0o755);
    let store = base.path().join("store");
    fs::create_dir(&store).unwrap();
    chmod(&store, 0o755);
    in_runtime(async {
        let (one, two) = (connect(&store).await, connect(&store).await);
        let held = one.lock("x").acquire().await.unwrap();
        assert!(one.cell("value").compare_and_set(None, *b"mine").await.unwrap());
        let waiter = tokio::spawn(async move { two.lock("x").acquire().await });
        until_queued(&one, "x", 1).await;
        let mut tries = Command::new("sh");
        tries.args(["-c", TRIES, "tries"]).arg(&store).uid(MALLORY).gid(MALLORY);
        let tried = tokio::task::spawn_blocking(move || tries.output()).await.unwrap().unwrap();
        let (was_possible, said) =
            (tried.stdout, String::from_utf8_lossy(&tried.stderr).into_owned());
        assert_eq!(String::from_utf8_lossy(&was_possible), "");
        assert!(said.contains("Permission denied"), "{said}");
        assert!(held.is_held() && !waiter.is_finished());
        assert_eq!(one.cell("value").read().await.unwrap().unwrap().bytes(), b"mine");
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// Long enough to win many times against a change of mode by name.
fn attack_time() -> Duration {
    let seconds = std::env::var("FENCELOCK_ATTACK_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(4))
}

#[test]
fn the_owner_of_a_lock_directory_cannot_make_root_change_a_file() {
    if !is_root() {
        return;
    }
    let victims = Victims::new();
    let store = directory_of(0, 0, 0o1777);
    // The attacker was the first to use the lock.
    let mut first = TestProcess::start_as(store.path(), "hold x exclusive", MALLORY, &[]);
    first.holds();
    first.release();
    assert_eq!(fs::metadata(store.path().join("lock%3Ax")).unwrap().uid(), MALLORY);
    under_attack(store.path(), &[], &victims, attack_time());
}

#[test]
fn a_group_member_cannot_make_root_change_a_file() {
    if !is_root() {
        return;
    }
    let victims = Victims::new();
    let store = directory_of(0, GROUP, 0o2770);
    in_runtime(async {
        let locks = connect(store.path()).await;
        locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    });
    under_attack(store.path(), &[GROUP], &victims, attack_time());
}

/// A user of a shared directory may rename a file there that only another one may write, over one of this library.
#[tokio::test]
async fn files_that_were_renamed_over_ours_are_not_written() {
    let (dir, locks) = store().await;
    let held = locks.rw_lock("x").read().acquire().await.unwrap();
    let renamed = |name: &str, contents: &[u8]| {
        let (victim, name) = (dir.path().join("victim"), dir.path().join(name));
        fs::write(&victim, contents).unwrap();
        fs::rename(&victim, &name).unwrap();
        name
    };
    let text = [7; 4096];
    let labels = renamed(".doors/labels2", &text);
    let other = connect(dir.path()).await;
    let second = other.rw_lock("x").read().acquire().await.unwrap();
    assert!(fs::read(&labels).unwrap() == text);
    // With its label in the lock's own file, and the first one's lost.
    let seen = locks.inspect("x").await.unwrap().holders;
    let labels: Vec<_> = seen.iter().map(|holder| holder.label.is_some()).collect();
    assert_eq!(labels, [false, true]);
    // As in a directory of an earlier release.
    fs::remove_file(dir.path().join(".doors/labels2")).unwrap();
    drop(connect(dir.path()).await);
    assert!(dir.path().join(".doors/labels2").exists());
    // A claim with another label than its process writes that, while the lock's files are open.
    let state = renamed("lock%3Ax/L", &text);
    let labelled = locks.rw_lock("x").read().label("other").acquire().await;
    assert_eq!(labelled.unwrap_err().kind(), ErrorKind::Foreign);
    let error = connect(dir.path()).await.rw_lock("x").read().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(fs::read(&state).unwrap() == text);
    drop((held, second));
}

#[tokio::test]
async fn hard_links_to_other_files_are_not_written() {
    // Hard links, which the kernel may or may not allow other users to create.
    let (dir, locks) = store().await;
    let held = locks.rw_lock("x").read().acquire().await.unwrap();
    let victim = dir.path().join("victim");
    let linked = |name: &str, contents: &[u8]| {
        fs::write(&victim, contents).unwrap();
        let name = dir.path().join(name);
        let _ = fs::remove_file(&name);
        fs::hard_link(&victim, &name).unwrap();
        name
    };
    let unchanged = |contents: &[u8]| assert!(fs::read(&victim).unwrap() == contents);
    // The labels of all wake pipes.
    let text = [7; 4096];
    linked(".doors/labels2", &text);
    let other = connect(dir.path()).await;
    let second = other.rw_lock("x").read().acquire().await.unwrap();
    unchanged(&text);
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 2, "labels are only shown");
    // The first store's wake pipe.
    linked(".doors/p0", &text);
    let seen = other.inspect("x").await.unwrap();
    assert!(other.evict("x", &seen.holders[0].id).await.unwrap());
    unchanged(&text);
    second.release().await.unwrap();
    drop(held);
    connect(dir.path()).await.lock("y").acquire().await.unwrap().release().await.unwrap();
    unchanged(&text);
    // A slot pipe: its owner would seem to live for ever.
    let held = locks.lock("z").acquire().await.unwrap();
    linked("lock%3Az/s0", &text);
    let error = other.lock("z").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    unchanged(&text);
    held.release().await.unwrap();
    // A lock's state file, even a valid one.
    let state = dir.path().join("lock%3Ay/L");
    let queue = fs::read(&state).unwrap();
    linked("lock%3Ay/L", &queue);
    let error = connect(dir.path()).await.lock("y").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("hard link"), "{error}");
    unchanged(&queue);
}

#[test]
fn a_shared_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    // In a directory that only root may write to.
    let above = directory();
    let store = above.path().join("store");
    fs::create_dir(&store).unwrap();
    chmod(above.path(), 0o755);
    chmod(&store, 0o1777);
    chown(&store, Some(MALLORY), None).unwrap();
    let says = |uid: u32| {
        let mut process = TestProcess::start_as(&store, "connect", uid, &[]);
        process.expect("refused")
    };
    let said = says(ALICE);
    assert!(said.contains("chown root") && said.contains("file:///DIR"), "{said}");
    assert!(says(0).contains("chown root"));
    chown(&store, Some(0), None).unwrap();
    let mut process = TestProcess::start_as(&store, "hold x exclusive", ALICE, &[]);
    process.holds();
}

fn is_owned(path: &Path, owner: u32) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let stat = fs::symlink_metadata(&path).unwrap();
        assert_eq!(stat.uid(), owner, "{}", path.display());
        if stat.is_dir() {
            is_owned(&path, owner);
        }
    }
}

#[test]
fn root_in_a_user_s_private_directory_does_not_lock_the_user_out() {
    if !is_root() {
        return;
    }
    // Below one where others could make it first it would be refused.
    let home = directory_of(0, 0, 0o755);
    let store = home.path().join("store");
    fs::create_dir(&store).unwrap();
    chmod(&store, 0o700);
    chown(&store, Some(ALICE), Some(GROUP)).unwrap();
    let alice = |line: &str| TestProcess::start_as(&store, line, ALICE, &[]);
    let held = |mut process: TestProcess| {
        process.holds();
        process
    };
    let released = |mut process: TestProcess| {
        process.release();
        process.end();
    };
    // Root is the first to use the directory and the lock.
    released(held(TestProcess::start(&store, "hold first exclusive")));
    is_owned(&store, ALICE);
    let first = held(alice("hold first exclusive"));
    // Root waits, in a slot whose pipe it creates.
    let waiting = TestProcess::start(&store, "hold first exclusive");
    in_runtime(async {
        let locks = connect(&store).await;
        until_queue_is(&locks, "first", 1, 1).await;
        let third = alice("hold first exclusive");
        until_queue_is(&locks, "first", 1, 2).await;
        is_owned(&store, ALICE);
        released(first);
        released(held(waiting));
        released(held(third));
    });
    // The other way round: the user is the first.
    released(held(alice("hold second exclusive")));
    released(held(TestProcess::start(&store, "hold second exclusive")));
    released(held(alice("hold second exclusive")));
    is_owned(&store, ALICE);
    assert!(fencelock_file::leftovers(&store).unwrap().is_empty());
}

#[test]
fn no_draft_is_left_behind() {
    let dir = directory();
    in_runtime(async {
        let locks = connect(dir.path()).await;
        let other = connect(dir.path()).await;
        let one = locks.rw_lock("x").read().acquire().await.unwrap();
        let two = other.rw_lock("x").read().acquire().await.unwrap();
        one.release().await.unwrap();
        two.release().await.unwrap();
    });
    let mut found = Vec::new();
    for sub in ["", "lock%3Ax", ".doors"] {
        for entry in fs::read_dir(dir.path().join(sub)).unwrap() {
            found.push(entry.unwrap().file_name().into_string().unwrap());
        }
    }
    assert!(!found.iter().any(|name| name.starts_with(".draft")), "{found:?}");
    let state = fs::File::open(dir.path().join("lock%3Ax/L")).unwrap();
    state.read_exact_at(&mut [0; 8], 0).unwrap();
}
