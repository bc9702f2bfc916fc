//! What the core writes into a cell: a header by which writes are recognised, and a body.
//!
//! The stamps of the last writes settle a write without an answer: it was made if its stamp is among
//! them, and was not if fewer writes followed than the record remembers. That a cell of another kind,
//! or of another program, is never taken for one of ours is decided here, too.

use std::time::{Duration, SystemTime};

use crate::store::cell_store::{Content, Keep, Stamp};
use crate::types::error::{Error, ErrorKind, Result};

/// What a cell is for. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A value of the program's own.
    Cell = 1,
    Latch = 2,
    Barrier = 3,
    Counter = 4,
    Once = 5,
    Election = 6,
}

/// Each kind in a word, and in a sentence.
const KINDS: [(Kind, &str, &str); 6] = [
    (Kind::Cell, "cell", "a cell"),
    (Kind::Latch, "latch", "a latch"),
    (Kind::Barrier, "barrier", "a barrier"),
    (Kind::Counter, "counter", "a counter"),
    (Kind::Once, "once", "the record of a once()"),
    (Kind::Election, "election", "the record of an election"),
];

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, word, _)| word)
    }

    /// Whether its own kind ignores it after its time. What is done, and which term was the last one, no wall
    /// clock may decide: these records count until they are removed.
    fn is_ignored_after_its_time(self) -> bool {
        !matches!(self, Kind::Once | Kind::Election)
    }

    fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(.., name)| name)
    }
}

/// How many writes a record remembers.
pub(crate) const REMEMBERED: usize = 8;

const MAGIC: [u8; 3] = *b"fc1";
/// Magic, kind, version, fence, end of life, first stamp, number of stamps.
const FIXED: usize = MAGIC.len() + 1 + 8 + 8 + 8 + Stamp::BYTES + 1;

/// The largest body, in bytes.
pub(crate) const MAX_BODY: usize = Content::MAX_BYTES - FIXED - REMEMBERED * Stamp::BYTES;

/// A cell that was written by this library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// Counts the writes since the cell was created.
    pub(crate) version: u64,
    /// The largest fencing token that was written with; 0 for none.
    pub(crate) fence: u64,
    /// When it ends, in ms of Unix time; `None` for never, and in a store that ends data by itself. A wall
    /// clock judges only data that was not changed for that long.
    pub(crate) until: Option<u64>,
    /// The stamp of its first write: a cell that was removed and created again is another.
    pub(crate) born: Stamp,
    /// The stamps of its last writes, the newest first.
    pub(crate) recent: Vec<Stamp>,
    pub(crate) body: Vec<u8>,
}

impl Record {
    /// The record after `before`, of a write with `stamp`.
    pub(crate) fn next(
        before: Option<&Record>,
        stamp: Stamp,
        kind: Kind,
        fence: u64,
        keep: Keep,
        body: Vec<u8>,
    ) -> Record {
        let older = before.map_or(&[][..], |record| &record.recent);
        let recent = std::iter::once(&stamp).chain(older).take(REMEMBERED).copied().collect();
        // A clock that is behind ends nothing that another client has kept for longer.
        let until = match keep {
            Keep::For(time) => {
                let until = unix_ms().saturating_add(millis(time));
                Some(until.max(before.and_then(|record| record.until).unwrap_or(0)))
            }
            Keep::Forever => None,
        };
        Record {
            kind,
            version: before.map_or(0, |record| record.version) + 1,
            fence,
            until,
            born: before.map_or(stamp, |record| record.born),
            recent,
            body,
        }
    }

    pub(crate) fn into_content(self, stamp: Stamp) -> Content {
        let mut bytes = Vec::with_capacity(FIXED + REMEMBERED * Stamp::BYTES + self.body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.push(self.kind as u8);
        for number in [self.version, self.fence, self.until.unwrap_or(0)] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(self.born.as_bytes());
        // At most REMEMBERED.
        bytes.push(self.recent.len() as u8);
        for stamp in &self.recent {
            bytes.extend_from_slice(stamp.as_bytes());
        }
        bytes.extend_from_slice(&self.body);
        Content { stamp, bytes }
    }

    /// The record in a cell that is to be of `kind`; `None` when its time is over.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`]: it is of another kind, or was written by another program.
    pub(crate) fn read(content: &Content, kind: Kind) -> Result<Option<Record>> {
        let record = Record::of_any_kind(content)?;
        let is_usable = record.kind == kind && !kind.is_ignored_after_its_time();
        if !is_usable && record.time_over().is_some() {
            return Ok(None);
        }
        if record.kind != kind {
            let (there, wanted) = (record.kind.name(), kind.name());
            return Err(foreign(&format!(
                "this name is {there}, not {wanted}; choose another name"
            )));
        }
        Ok(Some(record))
    }

    /// The kind of an expired cell, and for how long it has been expired; `None` when it is not.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`]: it was written by another program.
    pub(crate) fn expired_for(content: &Content) -> Result<Option<(Kind, Duration)>> {
        let record = Record::of_any_kind(content)?;
        Ok(record.time_over().map(|time| (record.kind, time)))
    }

    fn of_any_kind(content: &Content) -> Result<Record> {
        parse(&content.bytes).ok_or_else(|| {
            foreign("the content of the cell was not written by this version of the library")
        })
    }

    fn time_over(&self) -> Option<Duration> {
        let (until, now) = (self.until?, unix_ms());
        (until < now).then(|| Duration::from_millis(now - until))
    }
}

fn foreign(message: &str) -> Error {
    Error::new(ErrorKind::Foreign, message)
}

fn parse(bytes: &[u8]) -> Option<Record> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let number = *take::<1>(&mut rest)?.first()?;
    let kind = KINDS.iter().map(|(kind, ..)| *kind).find(|kind| *kind as u8 == number)?;
    let [version, fence, until] = [(); 3].map(|()| take(&mut rest).map(u64::from_be_bytes));
    let born = Stamp::from_bytes(take(&mut rest)?);
    let count = usize::from(*take::<1>(&mut rest)?.first()?);
    let recent: Option<Vec<Stamp>> =
        (0..count).map(|_| take(&mut rest).map(Stamp::from_bytes)).collect();
    Some(Record {
        kind,
        version: version?,
        fence: fence?,
        until: until.map(|until| (until != 0).then_some(until))?,
        born,
        recent: recent?,
        body: rest.to_vec(),
    })
}

/// The next `N` bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

fn unix_ms() -> u64 {
    // Before 1970 nothing is over.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_comes_back_and_remembers_its_last_writes() {
        let mut before = None;
        let mut stamps = Vec::new();
        for write in 1..=20u64 {
            let stamp = Stamp::fresh();
            stamps.insert(0, stamp);
            let keep = Keep::For(Duration::from_secs(60));
            let body = write.to_be_bytes().to_vec();
            let record = Record::next(before.as_ref(), stamp, Kind::Counter, write, keep, body);
            assert_eq!((record.version, record.born), (write, *stamps.last().unwrap()));
            assert_eq!(record.recent, stamps[..stamps.len().min(REMEMBERED)]);
            let content = record.clone().into_content(stamp);
            assert_eq!(Record::read(&content, Kind::Counter).unwrap().as_ref(), Some(&record));
            before = Some(record);
        }
    }

    #[test]
    fn another_kind_and_other_data_are_foreign() {
        let stamp = Stamp::fresh();
        let latch = Record::next(None, stamp, Kind::Latch, 0, Keep::Forever, vec![]);
        let error = Record::read(&latch.into_content(stamp), Kind::Counter).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign);
        assert!(error.message().contains("is a latch, not a counter"), "{error}");
        for bytes in [&b""[..], b"42", b"fc1", b"fc1\x04 too short", &[0; 300]] {
            let content = Content { stamp, bytes: bytes.to_vec() };
            let error = Record::read(&content, Kind::Counter).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Foreign);
        }
    }

    #[test]
    fn what_is_too_old_is_not_there() {
        let stamp = Stamp::fresh();
        let mut old = Record::next(None, stamp, Kind::Latch, 0, Keep::Forever, vec![]);
        old.until = Some(unix_ms() - 1);
        // Also for another kind.
        assert_eq!(Record::read(&old.into_content(stamp), Kind::Counter).unwrap(), None);
    }

    #[test]
    fn what_is_done_is_not_too_old_for_any_clock() {
        for kind in [Kind::Once, Kind::Election] {
            let stamp = Stamp::fresh();
            let mut old = Record::next(None, stamp, kind, 7, Keep::Forever, vec![1]);
            old.until = Some(unix_ms() - 1);
            let content = old.clone().into_content(stamp);
            assert_eq!(Record::read(&content, kind).unwrap(), Some(old));
            // Its name is free for others, and it can be removed.
            assert_eq!(Record::read(&content, Kind::Latch).unwrap(), None);
            assert_eq!(Record::expired_for(&content).unwrap().unwrap().0, kind);
        }
    }

    #[test]
    fn a_clock_that_is_behind_shortens_no_time() {
        let keep = |time| Keep::For(Duration::from_secs(time));
        let next =
            |before, keep| Record::next(before, Stamp::fresh(), Kind::Latch, 0, keep, vec![]);
        let first = next(None, keep(1_000));
        assert_eq!(next(Some(&first), keep(10)).until, first.until);
        assert!(next(Some(&first), keep(2_000)).until > first.until);
        assert_eq!(next(Some(&first), Keep::Forever).until, None);
    }

    #[test]
    fn the_largest_body_fits() {
        let mut before = None;
        for _ in 0..REMEMBERED + 1 {
            let body = vec![7; MAX_BODY];
            before = Some(Record::next(
                before.as_ref(),
                Stamp::fresh(),
                Kind::Cell,
                u64::MAX,
                Keep::Forever,
                body,
            ));
        }
        let content = before.unwrap().into_content(Stamp::fresh());
        assert_eq!(content.bytes.len(), Content::MAX_BYTES);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut ours = b"fc1\x01".to_vec();
            ours.extend(&bytes);
            for bytes in [bytes, ours] {
                let _ = Record::read(&Content { stamp: Stamp::fresh(), bytes }, Kind::Cell);
            }
        }
    }
}
