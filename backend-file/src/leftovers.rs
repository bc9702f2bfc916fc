//! What is left in a directory: for tests that nothing is.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::files::STATE;
use crate::pipe;
use crate::queue::{BootId, Corrupt, PAGE, Queue};

/// The locks in `directory` that have a holder or a waiter, with how many of each, in no order.
/// Dead ones, which nobody has met yet, do not count.
///
/// # Errors
/// When the directory or a queue in it cannot be read.
pub fn leftovers(directory: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The store's own files begin with a dot.
        if name.starts_with('.') || !entry.file_type()?.is_dir() {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let dir = rustix::fs::open(entry.path(), flags | OFlags::DIRECTORY, Mode::empty())?;
        let state = match rustix::fs::openat(&dir, STATE, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            state => std::fs::File::from(state?),
        };
        let mut page = Vec::new();
        (&state).take(PAGE as u64).read_to_end(&mut page)?;
        let mut queue = Queue::new(BootId::default(), Duration::ZERO);
        let decoded = queue.decode(&page, BootId::default(), |range, bytes| {
            bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            state.read_exact_at(bytes, range.start).map_err(|_| Corrupt("entries are missing"))
        });
        decoded.map_err(|Corrupt(why)| io::Error::new(io::ErrorKind::InvalidData, why))?;
        let lives = |slot| !matches!(pipe::watch(dir.as_fd(), slot), Ok(None));
        queue.entries.retain(|entry| lives(entry.slot));
        let holders = queue.holders();
        match (holders, queue.entries.len() - holders) {
            (0, 0) => {}
            (held, wait) => left.push(format!("{name}: {held} held, {wait} waiting")),
        }
    }
    Ok(left)
}
