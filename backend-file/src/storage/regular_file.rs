//! Regular files in a directory that other users may share: opened safely, read and written at an
//! offset. Labels are records of a fixed size in them, each with its length in the first byte.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use fencelock_core::Label;
use rustix::fs::FileType;
use rustix::io::{self, Errno};

use crate::platform::open_quietly;
use crate::storage::named_pipe::{OPEN, checked};

/// The size of a record with a label.
pub(crate) const LABEL_LEN: usize = 128;

/// Opens file `name` in `dir` for reading and writing, if it is a regular file with one name.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    checked(open_quietly(dir, name, OPEN)?, FileType::RegularFile).map(File::from)
}

/// Reads until `bytes` is full or the file ends. Returns the number of bytes.
pub(crate) fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match io::pread(file, &mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(read)
}

pub(crate) fn write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    // Only a call that wrote nothing has no error number.
    let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::NOSPC);
    file.write_all_at(bytes, at).map_err(errno)
}

/// Writes `label` into the record at `at`.
pub(crate) fn write_label(file: &File, at: u64, label: &Label) -> io::Result<()> {
    let text = label.as_str().as_bytes();
    let text = &text[..text.len().min(LABEL_LEN - 1)];
    // A label has 120 bytes at most.
    write(file, &[&[text.len() as u8], text].concat(), at)
}

/// The label in the record at `at`, if there is one.
pub(crate) fn read_label(file: &File, at: u64) -> Option<Label> {
    let mut record = [0; LABEL_LEN];
    let len = read(file, &mut record, at).ok()?;
    let text = record[..len].get(1..=usize::from(record[0]))?;
    let label = Label::new(std::str::from_utf8(text).ok()?);
    (!label.as_str().is_empty()).then_some(label)
}
