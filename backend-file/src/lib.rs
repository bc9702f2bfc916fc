//! The file store of [fencelock](https://docs.rs/fencelock): locks between the processes of one
//! machine, on any local directory.
//!
//! A lock is a small directory with a file and named pipes. Its queue is in the buffer of one of
//! these, which is the kernel's memory: a lock that its process uses is acquired, waited for and
//! released without the disk, on the task's own thread, also while the file system is frozen.
//! Waiters are served in the order of their arrival, one wake-up for each release, without polling
//! and without a thread for each; a killed holder frees its lock at once, because the kernel closes
//! its pipe; a child that inherited that pipe
//! ([`Guard::keep_alive`](fencelock_core::Guard::keep_alive)) keeps the lock. Readers, writers and
//! permits share one queue: nobody overtakes, so a waiting writer stops new readers. Fencing tokens
//! rise across crashes, reboots and power failures for as long as the directory is kept.
//!
//! `file:///DIR` uses that directory, `file://` the user's own, `.local/state/fencelock` below the
//! home directory of `/etc/passwd`. Users share locks where they can write to one directory: the
//! files inside get its rights, and its owner where root makes them. Another user of it can spoil
//! its locks, and nothing else: no file is changed through a name that another user can redirect.
//! Network file systems are refused, and so is what looks like one.
//!
//! What is deliberately absent: nothing in use is ever unlinked, and a lock's directory, about
//! 12 KiB, stays for its fencing token. A forked child cannot use its parent's store; it connects
//! its own. A process stopped in the few microseconds in which it changes a queue stops that lock.
//! A held lock takes two file descriptors, a waiting one three.

mod backend;
mod config;
mod contender;
mod default_dir;
mod directory;
mod door;
mod draft;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod home;
mod inheritance;
mod io;
mod labels;
mod latch;
mod ledger;
mod leftovers;
mod mailbox;
mod page;
mod path;
mod pipe;
mod place;
mod platform;
mod queue;
mod request;
mod state;
mod turn;
mod wake;

use fencelock_core::url::{Connecting, Scheme, StoreUrl};
use fencelock_core::{Error, Result, Settings};

pub use config::FileStore;
pub use leftovers::leftovers;

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

/// A disk that hangs is the store's fault; that no processor is free is not.
fn unanswered() -> Option<Error> {
    (!platform::waits_for_disk(io::THREAD_NAME)).then(error::machine_is_busy_to_connect)
}

fn settings_of(url: &StoreUrl) -> Result<Settings> {
    url.params(&[])?.settings()
}
