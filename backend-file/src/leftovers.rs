//! What is left in a directory: for tests that nothing is.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::inheritance;
use crate::page::{Page, PipeReader};
use crate::pipe;
use crate::queue::{Corrupt, Queue, last_record};
use crate::state::State;

/// The locks in `directory` that have a holder or a waiter, with how many of each, in no order.
/// Dead ones, which nobody has met yet, do not count.
///
/// # Errors
/// When the directory or a queue in it cannot be read.
pub fn leftovers(directory: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let pipe_reader = PipeReader::new()?;
    let mut left = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The store's own files begin with a dot.
        if name.starts_with('.') || !entry.file_type()?.is_dir() {
            continue;
        }
        let queue = match living(&entry.path(), &pipe_reader) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            queue => queue?,
        };
        let holders = queue.holders();
        match (holders, queue.entries.len() - holders) {
            (0, 0) => {}
            (held, wait) => left.push(format!("{name}: {held} held, {wait} waiting")),
        }
    }
    Ok(left)
}

/// The queue of the lock in directory `path`, as far as its owners live.
fn living(path: &Path, pipe_reader: &PipeReader) -> io::Result<Queue> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let invalid = |Corrupt(why)| io::Error::new(io::ErrorKind::InvalidData, why);
    let (mut queue, mut content) = (Queue::default(), Vec::new());
    Page::open(dir.as_fd())?.read(pipe_reader, &mut content)?;
    match last_record(&content).map_err(invalid)? {
        None => queue.adopt(inheritance::survivors(dir.as_fd(), pipe_reader, 0)?),
        Some(last) => {
            let area = |which, len, bytes: &mut Vec<u8>| {
                let read = State::open(dir.as_fd(), path)
                    .and_then(|state| state.read_area(which, len, bytes));
                read.map_err(|_| Corrupt("entries are missing"))
            };
            queue.decode(&content[last], area).map_err(invalid)?;
            let lives = |slot| !matches!(pipe::watch(dir.as_fd(), slot), Ok(None));
            queue.entries.retain(|entry| lives(entry.slot));
        }
    }
    Ok(queue)
}
