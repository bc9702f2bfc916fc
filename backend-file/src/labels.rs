//! Labels in files: records of fixed size, each with its length in the first byte.

use std::os::fd::BorrowedFd;

use fencelock_core::Label;
use rustix::io::{self, Errno};

use crate::state::LABEL_LEN;

/// Writes `label` into the record at `at`.
pub(crate) fn write_label(file: BorrowedFd<'_>, at: u64, label: &Label) -> io::Result<()> {
    let mut record = [0; LABEL_LEN];
    let text = label.as_str().as_bytes();
    let text = &text[..text.len().min(LABEL_LEN - 1)];
    // A label has 120 bytes at most.
    record[0] = text.len() as u8;
    record[1..=text.len()].copy_from_slice(text);
    match io::pwrite(file, &record[..=text.len()], at)? {
        written if written == text.len() + 1 => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

/// The label in the record at `at`, if there is one.
pub(crate) fn read_label(file: BorrowedFd<'_>, at: u64) -> Option<Label> {
    let mut record = [0; LABEL_LEN];
    let read = io::pread(file, &mut record, at).ok()?;
    let text = record[..read].get(1..=usize::from(record[0]))?;
    let label = Label::new(std::str::from_utf8(text).ok()?);
    (!label.as_str().is_empty()).then_some(label)
}
