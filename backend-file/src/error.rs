//! The errors of this store, and the table that classifies those of the operating system.
//!
//! A transient error is `Unreachable`, which is retried; an error that an operator has to fix is
//! `Refused`; a file that this library did not write is `Foreign`.

use std::path::Path;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind};
use rustix::io::Errno;

/// The opened file is not one of this store: its type is another, or it has a second name. No system call used here returns this code.
pub(crate) const NOT_OURS: Errno = Errno::NOSTR;

/// `doing` something with `path` failed.
pub(crate) fn failed(doing: &str, path: &Path, errno: Errno) -> Error {
    let path = path.display();
    // An advice begins with the system's own words where it replaces them: an error that is shown
    // with its cause says them once.
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
            ": the kernel gives this user no larger pipes; hold fewer locks, or raise \
             fs.pipe-user-pages-soft",
        ),
        Errno::NOMEM | Errno::AGAIN | Errno::INTR | Errno::NOLCK | Errno::BUSY => {
            (ErrorKind::Unreachable, "")
        }
        Errno::IO => (ErrorKind::Unreachable, ": the disk does not answer"),
        Errno::ACCESS | Errno::PERM => (
            ErrorKind::Refused,
            ": permission denied; if another user created files in this user's own directory, run \
             chown -R USER DIR; users who share locks need a new directory of a common group (chgrp \
             GROUP DIR && chmod 2770 DIR), given as file:///DIR",
        ),
        Errno::ROFS => (ErrorKind::Refused, ": read-only file system; use another file:///DIR"),
        Errno::NOENT => (
            ErrorKind::Refused,
            ": no such file or directory; create the directory, or use another file:///DIR",
        ),
        Errno::NOTDIR | Errno::LOOP => {
            (ErrorKind::Refused, ": expected a directory that is not a symbolic link")
        }
        NOT_OURS => (ErrorKind::Refused, ": expected a named pipe without a second hard link"),
        Errno::NAMETOOLONG => {
            (ErrorKind::Refused, ": file name too long; use a shorter file:///DIR")
        }
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => (
            ErrorKind::Refused,
            ": its file system lacks what locks need; use a file:///DIR on a local file system",
        ),
        _ => (ErrorKind::Unreachable, ""),
    }
}

/// The file at `path` is not as this library wrote it; nothing was changed.
pub(crate) fn foreign(path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Foreign,
        format!("{path} is not as this library wrote it: {why}; it was left unchanged"),
    )
}

/// The store was connected by the parent of this process.
pub(crate) fn forked() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this process was forked from the one that connected the store; connect again here",
    )
}

/// The runtime that the store was connected in has ended.
pub(crate) fn runtime_ended() -> Error {
    Error::new(ErrorKind::Closed, "the runtime that connected the store has ended")
}

/// A request to the file system has not returned.
pub(crate) fn disk_hangs(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the disk has not answered for {elapsed:.1?} for {path}; is its file system frozen \
             (fsfreeze, a snapshot), or the device dead?"
        ),
    )
}

/// No thread waits for the disk, but there is no answer: other processes have the processors.
pub(crate) fn machine_is_busy(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Busy,
        format!("the machine is too busy: no request for {path} has run for {elapsed:.1?}"),
    )
}

/// Like [`machine_is_busy`], for a store that is being connected.
pub(crate) fn machine_is_busy_to_connect() -> Error {
    Error::new(ErrorKind::Busy, "the machine is too busy: the directory has not been opened yet")
}

/// How long a process that waits for a processor may hold a latch: with 3,000 processes started at
/// once on two processors, up to 2 s were seen.
const PREEMPTED: Duration = Duration::from_secs(5);

/// Another process has not released the latch. As long as a busy machine may be the cause, the lock
/// counts as busy.
/// `stopped`: the process that keeps it, if that is stopped.
pub(crate) fn latch_is_held(path: &Path, elapsed: Duration, stopped: Option<u32>) -> Error {
    let path = path.display();
    let (kind, why) = match stopped {
        Some(pid) => (
            ErrorKind::Unreachable,
            format!("it is stopped; end it, or continue it (kill -CONT {pid})"),
        ),
        None if elapsed < PREEMPTED => (ErrorKind::Busy, "the machine may be too busy".to_owned()),
        None => (
            ErrorKind::Unreachable,
            format!("is a process that uses it stopped (fuser {path}), or does its disk hang?"),
        ),
    };
    let who = stopped.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let message = format!(
        "{who} has kept {path} locked for {elapsed:.1?}, which normally takes microseconds; {why}"
    );
    Error::new(kind, message)
}

/// Other processes acquire and release the latch all the time, and this one could not acquire it.
pub(crate) fn latch_is_contended(path: &Path, elapsed: Duration) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Busy,
        format!("too many processes use {path}: this one had no turn for {elapsed:.1?}"),
    )
}

/// An I/O thread could not be started.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    let message = "cannot start a thread for disk I/O (ulimit -u)";
    Error::new(ErrorKind::Unreachable, message).caused_by(error)
}

/// The thread that ran the request ended without an answer.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "the disk I/O thread ended without an answer")
}

pub(crate) fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_said_once() {
        for (errno, says) in [
            (Errno::NOENT, "no such file or directory"),
            (Errno::ACCESS, "permission denied"),
            (Errno::ROFS, "read-only file system"),
            (Errno::NAMETOOLONG, "file name too long"),
        ] {
            let error = failed("open", Path::new("/d"), errno);
            let shown = format!("{error:?}").to_lowercase();
            assert_eq!(shown.matches(says).count(), 1, "{shown}");
            assert!(!shown.contains("os error"), "{shown}");
        }
        // Where the advice has other words, the system's follow.
        let shown = format!("{:?}", failed("open", Path::new("/d"), Errno::MFILE));
        assert!(shown.ends_with("(ulimit -n): Too many open files (os error 24)"), "{shown}");
    }

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
