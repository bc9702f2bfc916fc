//! The file store of [fencelock](https://docs.rs/fencelock): locks between the processes of one
//! machine, on any local directory.
//!
//! A lock is a small directory with a file and named pipes. Its queue is in the buffer of one of
//! these pipes, which is kernel memory: a process that has used a lock acquires, awaits and
//! releases it without the disk, on the task's own thread, even while the file system is frozen.
//! Waiters are served in the order of their arrival, with one wake-up for each release, without
//! polling and without a thread for each waiter. A killed holder frees its lock at once, because
//! the kernel closes its pipe; a child that inherited that pipe
//! ([`Guard::keep_alive`](fencelock_core::Guard::keep_alive)) keeps the lock. Readers, writers and
//! permits share one queue in which no claim overtakes another, so a waiting writer blocks new
//! readers. Fencing tokens rise across crashes, reboots and power failures for as long as the
//! directory is kept.
//!
//! `file:///DIR` uses that directory, `file://` the user's own, `.local/state/fencelock` below the
//! home directory in `/etc/passwd`. Users share locks where they can write to one directory: the
//! files inside get its permissions, and its owner if root creates them. Another user of a shared
//! directory can break its locks, but nothing else: no file is changed through a name that another
//! user can redirect. Network file systems, and file systems that may be remote, are refused.
//!
//! The cell of a name, of which counters, latches and barriers are made, is in the same directory, and
//! its requests do not delay the lock. A confirmed write of what is kept for ever is on the disk; what
//! is kept for a time is not synced, and a power failure may take it.
//!
//! Limits: nothing in use is ever unlinked, and a lock's directory, about 12 KiB, stays for its
//! fencing token. A forked child cannot use its parent's store and has to connect its own. A
//! process stopped in the few microseconds in which it changes a queue blocks that lock. A held
//! lock takes two file descriptors, a waiting one three.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod config;
mod directory;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod platform;
mod queue;
mod storage;
mod wake;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};
use fencelock_core::{Error, Result, Settings};

pub use config::FileStore;
pub use storage::leftovers::leftovers;

/// `file:///DIR`, or `file://` for the user's own directory.
pub const SCHEME: Scheme = Scheme {
    names: &["file"],
    example: "file:///var/lib/jobs/locks",
    connect,
    unanswered: Some(unanswered),
};

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        let settings = settings_of(&url)?;
        FileStore::from_url(&url)?.locks(settings).await
    })
}

/// The error of a connect that has no answer yet: a hanging disk makes the store unreachable, a
/// busy machine does not.
fn unanswered() -> Option<Error> {
    (!platform::waits_for_disk(lock::io_threads::THREAD_NAME))
        .then(error::machine_is_busy_to_connect)
}

fn settings_of(url: &StoreUrl) -> Result<Settings> {
    url.params(&[])?.settings()
}
