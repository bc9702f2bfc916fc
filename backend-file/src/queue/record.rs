//! The queue of one lock as bytes.
//!
//! A queue is written as one record: a header and the entries in arrival order, holders first. The
//! page of a lock (`storage/page.rs`) has one or more records, the last of which counts. Entries
//! that do not fit into a record are written to the unused one of two areas of the lock's state
//! file, before the header that refers to it, so that a reader sees the queue before a commit or
//! after it, never a mixture.

use std::ops::Range;

use crate::queue::entry::{Corrupt, ENTRY, Entry, MAX_ENTRIES, array, number};
use crate::queue::rules::Queue;

/// A valid queue or state of another version of this library.
pub(crate) const OTHER_VERSION: Corrupt = Corrupt("another version of this library wrote it");

/// The longest record: a pipe accepts a write of this size as a whole or not at all.
pub(crate) const MAX_RECORD: usize = 4096;
/// The total length above which outdated records are removed from a page: to consume many at once
/// costs as little as to consume one.
#[cfg(any(target_os = "linux", test))]
pub(crate) const COMPACT_ABOVE: usize = 1024;
/// Format version 2. The last byte is the version.
pub(crate) const MAGIC: [u8; 8] = *b"fencelk\x02";
const HEADER: usize = 48;
/// The most entries that fit into a record itself.
pub(crate) const MAX_INLINE: usize = (MAX_RECORD - HEADER) / ENTRY;

impl Queue {
    /// Whether a record has room for all entries.
    pub(crate) fn is_inline(&self) -> bool {
        self.entries.len() <= MAX_INLINE
    }

    /// Encodes the queue into `record`. Entries that do not fit are encoded into `area`, which has
    /// to be written first, to the area with the returned number.
    pub(crate) fn encode(&mut self, record: &mut Vec<u8>, area: &mut Vec<u8>) -> Option<u32> {
        self.which = match (self.is_inline(), self.which) {
            (true, _) => 0,
            (false, 1) => 2,
            (false, _) => 1,
        };
        record.clear();
        record.extend_from_slice(&MAGIC);
        for number in [self.token, self.durable, self.next_ticket] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        // At most MAX_ENTRIES.
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        for number in [count, self.which, u32::from(self.noted), u32::from(self.spare)] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        area.clear();
        let room = if self.which == 0 { record } else { area };
        for entry in &self.entries {
            room.extend_from_slice(&entry.encode());
        }
        (self.which > 0).then_some(self.which)
    }

    /// Decodes one record. Its entries are in `area` if [`area_of`] says so.
    pub(crate) fn decode(&mut self, record: &[u8], area: &[u8]) -> Result<(), Corrupt> {
        let Header { count, which } = Header::of(record)?;
        self.token = number(&record[8..16]);
        self.durable = number(&record[16..24]);
        self.next_ticket = number(&record[24..32]);
        self.noted = record[40] != 0;
        self.spare = u16::from_le_bytes(array(&record[44..46]));
        self.which = which;
        match which {
            0 => self.decode_entries(count, record.get(HEADER..).unwrap_or_default()),
            _ => self.decode_entries(count, area),
        }
    }

    fn decode_entries(&mut self, count: usize, bytes: &[u8]) -> Result<(), Corrupt> {
        self.entries.clear();
        if bytes.len() != count * ENTRY {
            return Err(Corrupt("entries are missing"));
        }
        let mut before = 0;
        let mut waits = false;
        for bytes in bytes.as_chunks().0 {
            let entry = Entry::decode(bytes)?;
            if entry.ticket <= before || entry.ticket >= self.next_ticket {
                return Err(Corrupt("its tickets are out of order"));
            }
            if waits && entry.held {
                return Err(Corrupt("a holder comes after a waiter"));
            }
            (before, waits) = (entry.ticket, !entry.held);
            self.entries.push(entry);
        }
        Ok(())
    }
}

/// The fields of a record from which its length follows.
struct Header {
    count: usize,
    which: u32,
}

impl Header {
    fn of(bytes: &[u8]) -> Result<Header, Corrupt> {
        check_magic(bytes)?;
        if bytes.len() < HEADER {
            return Err(Corrupt("it is too short"));
        }
        let count = u32::from_le_bytes(array(&bytes[32..36])) as usize;
        let which = u32::from_le_bytes(array(&bytes[36..40]));
        let most = if which == 0 { MAX_INLINE } else { MAX_ENTRIES };
        match count > most || which > 2 {
            true => Err(Corrupt("its header contradicts itself")),
            false => Ok(Header { count, which }),
        }
    }

    fn record_len(&self) -> usize {
        HEADER + if self.which == 0 { self.count * ENTRY } else { 0 }
    }
}

/// Refuses bytes that do not begin with the magic number and this version.
pub(crate) fn check_magic(bytes: &[u8]) -> Result<(), Corrupt> {
    match bytes.get(..8) {
        Some(magic) if magic == MAGIC => Ok(()),
        Some(magic) if magic[..7] == MAGIC[..7] => Err(OTHER_VERSION),
        _ => Err(Corrupt("it does not begin with this library's magic number")),
    }
}

/// The range of the last record of a page. A process that is killed while it commits leaves several
/// records.
pub(crate) fn last_record(page: &[u8]) -> Result<Option<Range<usize>>, Corrupt> {
    let (mut last, mut at) = (None, 0);
    while at < page.len() {
        let end = at + Header::of(&page[at..])?.record_len();
        if end > page.len() {
            return Err(Corrupt("entries are missing"));
        }
        last = Some(at..end);
        at = end;
    }
    Ok(last)
}

/// The first record of a page, without the padding after it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn first_record(page: &[u8]) -> &[u8] {
    let len = Header::of(page).map_or(page.len(), |header| header.record_len());
    &page[..len.min(page.len())]
}

/// The number of the area that has the entries of a record, and their length, unless they are in
/// the record itself.
pub(crate) fn area_of(record: &[u8]) -> Option<(u32, usize)> {
    let Header { count, which } = Header::of(record).ok()?;
    (which > 0).then_some((which, count * ENTRY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::rules::tests::{fresh, mode};
    use fencelock_core::Mode;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A page and two areas, which a killed process may have written in part.
    #[derive(Clone, Default)]
    struct Written {
        page: Vec<u8>,
        areas: BTreeMap<u32, Vec<u8>>,
    }

    /// The point at which a committing process dies.
    #[derive(Clone, Copy, Debug)]
    enum Dies {
        /// After this many of the bytes of an area.
        InArea(usize),
        // A kill does not split the system calls that these follow.
        AfterArea,
        AfterLeft,
        AfterNew,
        Never,
    }

    impl Written {
        fn commit(&mut self, queue: &mut Queue, dies: Dies) {
            let last = last_record(&self.page).unwrap().unwrap_or(0..0);
            let (mut record, mut area) = (Vec::new(), Vec::new());
            if let Some(which) = queue.encode(&mut record, &mut area) {
                let reaches = match dies {
                    Dies::InArea(reaches) => reaches.min(area.len()),
                    _ => area.len(),
                };
                let part = self.areas.entry(which).or_default();
                let rest = part.split_off(reaches.min(part.len()));
                *part = [&area[..reaches], &rest].concat();
            }
            assert!(record.len() <= MAX_RECORD);
            if matches!(dies, Dies::InArea(_) | Dies::AfterArea) {
                return;
            }
            let stays = self.page.len() + record.len() <= COMPACT_ABOVE;
            if !stays {
                self.page.drain(..last.start);
            }
            if matches!(dies, Dies::AfterLeft) {
                return;
            }
            self.page.extend_from_slice(&record);
            assert!(self.page.len() <= 2 * MAX_RECORD, "a page has room for two records");
            if !stays && !matches!(dies, Dies::AfterNew) {
                self.page.drain(..last.len());
            }
        }

        fn read(&self) -> Result<Queue, Corrupt> {
            let mut queue = Queue::default();
            let last = last_record(&self.page)?.unwrap_or(0..0);
            let record = &self.page[last];
            let area = area_of(record)
                .and_then(|(which, len)| self.areas.get(&which)?.get(..len))
                .unwrap_or_default();
            queue.decode(record, area)?;
            Ok(queue)
        }
    }

    /// Compares all but the number of the area, which each commit changes.
    fn assert_same(one: &Queue, two: &Queue) {
        assert_eq!(
            (&one.entries, one.token, one.next_ticket),
            (&two.entries, two.token, two.next_ticket)
        );
        assert_eq!((one.durable, one.noted), (two.durable, two.noted));
    }

    proptest! {
        #[test]
        fn a_commit_is_atomic_wherever_the_process_is_killed(
            steps in prop::collection::vec((0u16..300, 0u8..2, 0usize..12_000, 0u8..8), 1..24),
        ) {
            let mut written = Written::default();
            let mut queue = fresh();
            written.commit(&mut queue, Dies::Never);
            for (size, few, reaches, dies) in steps {
                let size = if few == 1 { size % 8 } else { size };
                let before = written.read().unwrap();
                assert_same(&before, &queue);
                let mut after = before.clone();
                after.entries.truncate(usize::from(size));
                while after.entries.len() < usize::from(size) {
                    let at = after.push(mode(size as u8), size, u32::from(size));
                    after.entries[at].slot = u16::try_from(at).unwrap();
                    if after.fits(at) {
                        after.grant(at, 5, 1);
                    }
                }
                let dies = match dies {
                    0 => Dies::InArea(reaches),
                    1 => Dies::AfterArea,
                    2 => Dies::AfterLeft,
                    3 | 4 => Dies::AfterNew,
                    _ => Dies::Never,
                };
                written.commit(&mut after.clone(), dies);
                let found = written.read().unwrap();
                let committed = matches!(dies, Dies::AfterNew | Dies::Never);
                assert_same(&found, if committed { &after } else { &before });
                queue = found;
            }
        }

        #[test]
        fn reading_arbitrary_bytes_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..600), count in 0u32..20, which in 0u32..4,
        ) {
            let mut page = MAGIC.to_vec();
            page.extend_from_slice(&bytes);
            for (at, number) in [(32, count), (36, which)] {
                if page.len() >= at + 4 {
                    page[at..at + 4].copy_from_slice(&number.to_le_bytes());
                }
            }
            for page in [page, bytes] {
                let written = Written { page, ..Written::default() };
                let _ = written.read();
            }
        }
    }

    #[test]
    fn contradictions_are_corrupt() {
        let mut queue = fresh();
        for _ in 0..2 {
            let at = queue.push(Mode::Exclusive, 0, 0);
            queue.entries[at].slot = u16::try_from(at).unwrap();
        }
        let spoil: [fn(&mut Queue); 4] = [
            |queue| queue.entries[1].held = true,
            |queue| queue.entries.swap(0, 1),
            |queue| queue.next_ticket = 1,
            |queue| queue.entries[1].ticket = 0,
        ];
        for spoil in spoil {
            let mut written = Written::default();
            let mut spoilt = queue.clone();
            spoil(&mut spoilt);
            written.commit(&mut spoilt, Dies::Never);
            assert!(written.read().is_err());
        }
        let mut written = Written::default();
        written.commit(&mut queue, Dies::Never);
        assert!(written.read().is_ok());
        written.page.push(b'x');
        assert!(written.read().is_err(), "another program wrote there");
    }
}
