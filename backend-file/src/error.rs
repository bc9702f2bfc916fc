//! What the operating system's answers mean to whoever wanted a lock.
//!
//! One table. What may pass by itself is `Unreachable`, which is asked again; what a person has
//! to change is `Refused`; what is in the way but not ours is `Foreign`.

use std::path::Path;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind};
use rustix::io::Errno;

use crate::pipe::NOT_OURS;
use crate::queue::Corrupt;

/// `doing` something with `path` failed.
pub(crate) fn failed(doing: &str, path: &Path, errno: Errno) -> Error {
    let path = path.display();
    let (kind, advice) = classify(errno);
    let error = Error::new(kind, format!("cannot {doing} {path}{advice}"));
    error.caused_by(std::io::Error::from(errno))
}

fn classify(errno: Errno) -> (ErrorKind, &'static str) {
    match errno {
        Errno::MFILE | Errno::NFILE => (
            ErrorKind::Unreachable,
            ": no file descriptor is free; a held lock takes two, a waiting one three (ulimit -n)",
        ),
        Errno::NOSPC | Errno::DQUOT => (ErrorKind::Unreachable, ": the disk or the quota is full"),
        Errno::NOBUFS => (
            ErrorKind::Unreachable,
            ": the kernel gives this user no larger pipes; have fewer open, or raise \
             fs.pipe-user-pages-soft",
        ),
        Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::NOLCK | Errno::BUSY => {
            (ErrorKind::Unreachable, "")
        }
        Errno::IO => (ErrorKind::Unreachable, ": the disk does not answer"),
        Errno::ACCESS | Errno::PERM => (
            ErrorKind::Refused,
            ": permission denied; what another user made in this user's own directory is given \
             back by chown -R USER DIR; users who share locks need a directory of a common group, \
             as after chgrp GROUP DIR && chmod 2770 DIR, given as file:///DIR",
        ),
        Errno::ROFS => {
            (ErrorKind::Refused, ": the file system is read-only; use another file:///DIR")
        }
        Errno::NOENT => (
            ErrorKind::Refused,
            ": it is not there; make the directory, or give another as file:///DIR",
        ),
        Errno::NOTDIR | Errno::LOOP => {
            (ErrorKind::Refused, ": a directory was expected, and no symbolic link")
        }
        NOT_OURS => (ErrorKind::Refused, ": a named pipe with one name was expected"),
        Errno::NAMETOOLONG => {
            (ErrorKind::Refused, ": the path is too long; use a shorter file:///DIR")
        }
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => (
            ErrorKind::Refused,
            ": its file system lacks what locks need; use file:///DIR on a local one",
        ),
        _ => (ErrorKind::Unreachable, ""),
    }
}

/// `path` is not what this library wrote there; nothing was changed.
pub(crate) fn foreign(path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Foreign,
        format!("{path} is not as this library left it: {why}; it was left alone"),
    )
}

/// As [`foreign`], of a lock's queue or state.
pub(crate) fn corrupt(path: &Path, Corrupt(why): Corrupt) -> Error {
    foreign(path, why)
}

/// The process that connected is not this one.
pub(crate) fn forked() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this process was forked from the one that connected the store; connect it anew here",
    )
}

/// The runtime that connected is no longer there.
pub(crate) fn runtime_ended() -> Error {
    Error::new(ErrorKind::Closed, "the runtime that connected the store has ended")
}

/// A request to the file system has not returned.
pub(crate) fn disk_hangs(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the disk has not answered for {elapsed:.1?}, asked for {path}; is its file system \
             frozen (fsfreeze, a snapshot), or the device dead?"
        ),
    )
}

/// No thread waits for the disk, and yet there is no answer: other processes have the processors.
pub(crate) fn machine_is_busy(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Busy,
        format!("the machine is so busy that nothing was done at {path} for {elapsed:.1?}"),
    )
}

/// The same of a store that is being connected.
pub(crate) fn machine_is_busy_to_connect() -> Error {
    Error::new(ErrorKind::Busy, "the machine is so busy that the directory was not yet opened")
}

/// For how long a process may be in a latch that waits for a processor: where 3,000 were started at
/// once on two, up to 2 s were seen.
const PREEMPTED: Duration = Duration::from_secs(5);

/// Another process has not left the latch. Until that must have another cause than a busy machine,
/// the lock is only in use.
pub(crate) fn latch_is_held(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    let kind = match elapsed < PREEMPTED {
        true => ErrorKind::Busy,
        false => ErrorKind::Unreachable,
    };
    Error::new(
        kind,
        format!(
            "another process has kept {path} locked for {elapsed:.1?}, which takes microseconds; \
             is one stopped that uses it (fuser {path}), or is its disk hanging?"
        ),
    )
}

/// Other processes pass through the latch all the time, and this one has not had its turn.
pub(crate) fn latch_is_contended(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Busy,
        format!("so many processes use {path} that this one had no turn for {elapsed:.1?}"),
    )
}

/// A thread for the disk's sake could not be started.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    let message = "no thread can be started for the disk's I/O (ulimit -u)";
    Error::new(ErrorKind::Unreachable, message).caused_by(error)
}

/// The thread that had the request gave no answer.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "the thread for the disk's I/O gave up the request")
}

pub(crate) fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_errors_are_retryable() {
        let of = |errno| failed("open", Path::new("/d"), errno);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::NOMEM, Errno::XDEV] {
            assert!(of(errno).is_retryable(), "{errno:?}");
        }
        for errno in [Errno::ACCESS, Errno::ROFS, Errno::NOENT, Errno::LOOP, Errno::OPNOTSUPP] {
            let error = of(errno);
            assert!(!error.is_retryable() && error.kind() == ErrorKind::Refused, "{errno:?}");
        }
        assert!(of(Errno::ACCESS).to_string().contains("file:///DIR"));
    }
}
