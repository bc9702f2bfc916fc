//! Several users of one machine, in a directory that all of them may use. The tests need real users, so
//! only root can run them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::Said;
use crate::support::{Job, Scratch};

/// Users who need not be in /etc/passwd.
const ALICE: u32 = 54_322;
const BOB: u32 = 54_323;

/// This program where other users can execute it: the build directory may be root's own. Another process copies it:
/// what this one has open for writing, children of other tests have open for a moment too, and it is "busy".
fn program(here: &Scratch) -> PathBuf {
    let copy = here.path("fencelock");
    let copied = Command::new("install").arg(env!("CARGO_BIN_EXE_fencelock")).arg(&copy).status();
    assert!(copied.expect("it runs").success(), "copied");
    copy
}

/// A store whose directory other users can enter, and the program for them; `None` if this is not root.
fn shared() -> Option<(Scratch, PathBuf)> {
    if !rustix::process::getuid().is_root() {
        eprintln!("NOT TESTED: only root can be several users");
        return None;
    }
    let here = Scratch::new();
    fs::set_permissions(here.path(""), Permissions::from_mode(0o755)).expect("open");
    let program = program(&here);
    Some((here, program))
}

#[test]
fn another_user_s_lock_is_shown_and_broken() {
    let Some((here, program)) = shared() else { return };
    let shared = here.path("locks");
    fs::create_dir(&shared).expect("a directory");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("everybody's");
    let as_user = |user: u32, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("FENCELOCK_URL", here.url()).current_dir("/").uid(user).gid(user);
        command
    };
    let said = |user: u32, arguments: &[&str]| {
        Said::of(&as_user(user, arguments).output().expect("it runs"))
    };
    let alices_job = || {
        Job::start(&mut as_user(ALICE, &["run", "job", "--", "sh", "-c", "echo held; exec cat"]))
    };
    // Bob is in no list of users.
    for (operator, name) in [(0, "root".to_owned()), (BOB, BOB.to_string())] {
        let mut job = alices_job();
        assert_eq!(job.line(), "held");
        let shown = said(BOB, &["show", "job"]);
        assert_eq!(shown.code, 0, "{shown:?}");
        assert!(shown.printed.contains(&format!("pid {} sh", job.pid().as_raw_pid())), "{shown:?}");
        let broken = said(operator, &["break", "job", "--reason", "why", "--yes"]);
        assert_eq!(broken.code, 0, "{broken:?}");
        assert!(broken.error.contains(&format!(" by=\"{name} on ")), "{broken:?}");
        assert_eq!(job.code(), 79);
        assert_eq!(said(BOB, &["show", "job"]).code, 1);
    }
}

#[test]
fn a_user_without_access_is_told_what_is_missing() {
    let Some((here, program)) = shared() else { return };
    let _job = here.hold(&[], "job");
    let mut command = Command::new(&program);
    command.args(["show", "job", "--url", &here.url()]).current_dir("/").uid(ALICE).gid(ALICE);
    let said = Said::of(&command.output().expect("it runs"));
    assert_eq!((said.code, &*said.printed), (78, ""), "not as if it were free: {said:?}");
    assert!(said.error.contains("permission denied") || said.error.contains("Permission denied"));
}
