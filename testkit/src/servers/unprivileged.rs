//! Servers that refuse to run as root, and the files that they have to themselves.
//!
//! Where the tests run as root, which is usual in containers, such a server runs as the user `postgres`, or
//! as a user who owns nothing. The server's own files are in a directory below that of its [`Instance`],
//! which stays ours.
//!
//! [`Instance`]: super::Instance

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::process::Invocation;

/// The command that starts a server that may not be root.
pub(super) fn invocation(program: OsString, args: Vec<OsString>) -> Invocation {
    let Some(user) = user() else { return Invocation::new(program, args) };
    // It becomes the server: the process id stays.
    let mut all: Vec<OsString> = vec![
        format!("--reuid={}", user.id).into(),
        format!("--regid={}", user.group).into(),
        "--clear-groups".into(),
        program,
    ];
    all.extend(args);
    Invocation::new("setpriv".into(), all)
}

/// Runs a program to its end as the server's user. Blocks.
pub(super) fn run(
    program: impl Into<OsString>,
    args: impl IntoIterator<Item = OsString>,
    with: impl FnOnce(&mut Command),
) -> io::Result<()> {
    let Invocation { program, args, .. } = invocation(program.into(), args.into_iter().collect());
    let mut command = Command::new(&program);
    command.args(&args).current_dir("/");
    // Variables of whoever runs the tests, such as PGOPTIONS, are not meant for these servers.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    with(&mut command);
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("{} ({})", error.trim(), output.status)))
        }
    }
}

/// The server's own directory below `directory`, which others may then pass through.
pub(super) fn make_home(directory: &Path) -> io::Result<PathBuf> {
    let home = home(directory);
    std::fs::DirBuilder::new().mode(0o700).create(&home)?;
    if user().is_some() {
        std::fs::set_permissions(directory, Permissions::from_mode(0o711))?;
        give(&home)?;
    }
    Ok(home)
}

/// Where [`make_home`] makes it.
pub(super) fn home(directory: &Path) -> PathBuf {
    directory.join("home")
}

/// Writes a file that only the server can read.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    give(path)
}

fn give(path: &Path) -> io::Result<()> {
    match user() {
        Some(user) => chown(path, Some(user.id), Some(user.group)),
        None => Ok(()),
    }
}

#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

/// The user who runs the servers; None where it is the one who runs the tests.
fn user() -> Option<User> {
    const NOBODY: User = User { id: 65534, group: 65534 };
    static POSTGRES: OnceLock<User> = OnceLock::new();
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let found = || {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        users.lines().find_map(of_postgres).unwrap_or(NOBODY)
    };
    Some(*POSTGRES.get_or_init(found))
}

/// From a line of passwd(5).
fn of_postgres(line: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    match fields[..] {
        ["postgres", _, id, group, ..] => {
            Some(User { id: id.parse().ok()?, group: group.parse().ok()? })
        }
        _ => None,
    }
}
