//! What is left in a directory: for tests that nothing is.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::pipe;
use crate::queue::{BootId, Corrupt, Queue};

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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(entry.path(), flags, Mode::empty())?;
        let state = match std::fs::read(entry.path().join("L")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            state => state?,
        };
        let mut queue = Queue::new(BootId::default());
        queue
            .decode(&state, |range, bytes| {
                let range = range.start as usize..range.end as usize;
                bytes.extend_from_slice(state.get(range).unwrap_or_default());
                Ok::<(), Corrupt>(())
            })
            .map_err(|Corrupt(why)| io::Error::new(io::ErrorKind::InvalidData, why))?;
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
