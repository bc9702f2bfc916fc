//! Several users of one machine, in a directory that all of them may use. The tests need real users, so
//! only root can run them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Job, Scratch};
use crate::{Said, until};

/// Users who need not be in /etc/passwd.
const ALICE: u32 = 54_322;
const BOB: u32 = 54_323;

/// This program where other users can execute it: the build directory may be root's own.
fn program(here: &Scratch) -> PathBuf {
    let copy = here.path("fencelock");
    fs::copy(env!("CARGO_BIN_EXE_fencelock"), &copy).expect("copied");
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("executable");
    copy
}

#[test]
fn another_user_s_lock_is_shown_and_broken() {
    if !rustix::process::getuid().is_root() {
        eprintln!("NOT TESTED: only root can be several users");
        return;
    }
    let here = Scratch::new();
    let shared = here.path("locks");
    fs::create_dir(&shared).expect("a directory");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("everybody's");
    let top = shared.parent().expect("a directory");
    fs::set_permissions(top, Permissions::from_mode(0o755)).expect("open");
    let program = program(&here);
    let as_user = |user: u32, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("FENCELOCK_URL", here.url()).current_dir("/").uid(user).gid(user);
        command
    };
    let said = |user: u32, arguments: &[&str]| {
        Said::of(as_user(user, arguments).output().expect("it runs"))
    };
    let mut job =
        Job::start(&mut as_user(ALICE, &["run", "job", "--", "sh", "-c", "echo held; exec cat"]));
    assert_eq!(job.line(), "held");
    until(&here, &here.url(), "job", 1, 0);
    let shown = said(BOB, &["show", "job"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.printed.contains(&format!("pid {} sh", job.pid().as_raw_pid())), "{shown:?}");
    let broken = said(0, &["break", "job", "--reason", "why", "--yes"]);
    assert_eq!(broken.code, 0, "{broken:?}");
    assert!(broken.error.contains(" by=\"root on "), "{broken:?}");
    assert_eq!(job.code(), 79);
    assert_eq!(said(BOB, &["show", "job"]).code, 1);
}
