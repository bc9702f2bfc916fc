//! The locks in use in a directory, for tests that expect none.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::queue::entry::Corrupt;
use crate::queue::record::{area_of, last_record};
use crate::queue::rules::Queue;
use crate::storage::inheritance;
use crate::storage::page::{Page, PipeReader};
use crate::storage::slot_pipe;
use crate::storage::state::State;

/// The locks in `directory` that have a holder or a waiter, with the number of each, in no order.
/// Dead entries that are not yet removed do not count.
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

/// The queue of the lock in directory `path`, without entries of dead owners.
fn living(path: &Path, pipe_reader: &PipeReader) -> io::Result<Queue> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECTORY;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let invalid = |Corrupt(why)| io::Error::new(io::ErrorKind::InvalidData, why);
    let (mut queue, mut content) = (Queue::default(), Vec::new());
    Page::open(dir.as_fd())?.read(pipe_reader, &mut content)?;
    match last_record(&content).map_err(invalid)? {
        None => queue.adopt(inheritance::survivors(dir.as_fd(), pipe_reader, 0)?),
        Some(last) => {
            let (record, mut area) = (&content[last], Vec::new());
            if let Some((which, len)) = area_of(record) {
                let state = State::open(dir.as_fd(), path).map_err(io::Error::other)?;
                state.read_area(which, len, &mut area).map_err(io::Error::other)?;
            }
            queue.decode(record, &area).map_err(invalid)?;
            let lives = |slot| !matches!(slot_pipe::watch(dir.as_fd(), slot), Ok(None));
            queue.entries.retain(|entry| lives(entry.slot));
        }
    }
    Ok(queue)
}
