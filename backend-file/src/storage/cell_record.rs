//! The record of a cell: which content is the cell's, and by which checksum it is known.
//!
//! A content is written into the slot that the record does not name, and the record after it, by one
//! call that lies within a sector: a process that is killed at any moment leaves the old cell or the
//! new one. What is kept for ever is synced before the record names it. What is kept for a time is
//! not synced at all, so after a power failure its record may name a content that never reached the
//! disk; such a cell counts as not there.

use fencelock_core::{Content, Stamp};
use sha2::{Digest, Sha256};

use crate::platform::BootId;
use crate::queue::entry::{Corrupt, array};
use crate::queue::record::OTHER_VERSION;

/// The last byte is the version.
const MAGIC: [u8; 8] = *b"fencecl\x01";
const SUM: usize = 16;
/// What the record's own checksum covers.
const SUMMED: usize = 64;

const PRESENT: u8 = 1;
const KEPT_FOR_EVER: u8 = 2;

/// The first bytes of a SHA-256.
type Sum = [u8; SUM];

/// The record of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellRecord {
    /// `None` of a cell that was removed.
    pub(crate) stamp: Option<Stamp>,
    /// The boot in which it was written.
    boot: BootId,
    pub(crate) is_kept_for_ever: bool,
    /// The slot that has the content, 0 or 1.
    pub(crate) slot: u8,
    pub(crate) length: usize,
    content: Sum,
    /// Whether no sync of it is under way, or was interrupted.
    pub(crate) is_settled: bool,
}

impl CellRecord {
    /// The length of its bytes, which end with the one that says that it is settled. No checksum
    /// covers that byte, which is written alone.
    pub(crate) const LEN: usize = SUMMED + SUM + 1;

    /// The record of `content` in `slot`.
    pub(crate) fn of(content: &Content, slot: u8, is_kept_for_ever: bool, boot: BootId) -> Self {
        CellRecord {
            stamp: Some(content.stamp),
            boot,
            is_kept_for_ever,
            slot,
            length: content.bytes.len(),
            content: sum(&content.bytes),
            is_settled: false,
        }
    }

    /// The record that removes the cell of this one.
    pub(crate) fn removal(&self, boot: BootId) -> CellRecord {
        CellRecord { stamp: None, boot, is_settled: false, ..self.clone() }
    }

    /// Whether `bytes` are the content that it names.
    pub(crate) fn names(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length && sum(bytes) == self.content
    }

    /// Whether it may not be on the disk yet although it should be. What a boot finds is.
    pub(crate) fn needs_sync(&self, boot: BootId) -> bool {
        !self.is_settled && self.boot == boot
    }

    /// Whether a power failure since it was written may have taken its content.
    pub(crate) fn may_be_lost(&self, boot: BootId) -> bool {
        !self.is_kept_for_ever && self.boot != boot
    }

    pub(crate) fn encode(&self) -> [u8; CellRecord::LEN] {
        let mut bytes = [0; CellRecord::LEN];
        let present = if self.stamp.is_some() { PRESENT } else { 0 };
        let kept = if self.is_kept_for_ever { KEPT_FOR_EVER } else { 0 };
        bytes[..8].copy_from_slice(&MAGIC);
        if let Some(stamp) = &self.stamp {
            bytes[8..24].copy_from_slice(stamp.as_bytes());
        }
        bytes[24..40].copy_from_slice(&self.boot);
        bytes[40..56].copy_from_slice(&self.content);
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        bytes[56..60].copy_from_slice(&length.to_le_bytes());
        (bytes[60], bytes[61]) = (self.slot, present | kept);
        let own = sum(&bytes[..SUMMED]);
        bytes[SUMMED..SUMMED + SUM].copy_from_slice(&own);
        bytes[CellRecord::LEN - 1] = u8::from(self.is_settled);
        bytes
    }

    /// The record in `bytes`, which may end early; `None` where none was written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<CellRecord>, Corrupt> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if bytes.starts_with(&MAGIC[..7]) && bytes.get(7).is_some_and(|byte| *byte != MAGIC[7]) {
            return Err(OTHER_VERSION);
        }
        let damaged = Corrupt("its cell is damaged");
        let bytes: &[u8; CellRecord::LEN] = bytes.try_into().map_err(|_| damaged)?;
        let (slot, flags, settled) = (bytes[60], bytes[61], bytes[CellRecord::LEN - 1]);
        let is_valid = bytes[..8] == MAGIC
            && sum(&bytes[..SUMMED]) == bytes[SUMMED..SUMMED + SUM]
            && slot <= 1
            && flags <= (PRESENT | KEPT_FOR_EVER)
            && settled <= 1;
        let length = u32::from_le_bytes(array(&bytes[56..60])) as usize;
        if !is_valid || length > Content::MAX_BYTES {
            return Err(damaged);
        }
        Ok(Some(CellRecord {
            stamp: (flags & PRESENT != 0).then(|| Stamp::from_bytes(array(&bytes[8..24]))),
            boot: array(&bytes[24..40]),
            is_kept_for_ever: flags & KEPT_FOR_EVER != 0,
            slot,
            length,
            content: array(&bytes[40..56]),
            is_settled: settled == 1,
        }))
    }
}

fn sum(bytes: &[u8]) -> Sum {
    array(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: BootId = [7; 16];

    fn content(bytes: &[u8]) -> Content {
        Content { stamp: Stamp::from_bytes([9; 16]), bytes: bytes.to_vec() }
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            bytes in prop::collection::vec(any::<u8>(), 0..99), slot in 0..2u8, ever: bool,
        ) {
            let record = CellRecord::of(&content(&bytes), slot, ever, BOOT);
            prop_assert_eq!(CellRecord::decode(&record.encode()), Ok(Some(record.clone())));
            prop_assert!(record.names(&bytes) && !record.names(&[&bytes[..], &[0]].concat()));
            let settled = CellRecord { is_settled: true, ..record.removal([8; 16]) };
            prop_assert_eq!(CellRecord::decode(&settled.encode()), Ok(Some(settled)));
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0..CellRecord::LEN, by in 2..=255u8, cut: bool) {
            let mut bytes = CellRecord::of(&content(b"x"), 1, true, BOOT).encode();
            bytes[at] ^= by;
            let bytes = if cut { &bytes[..at] } else { &bytes[..] };
            let read = CellRecord::decode(bytes);
            prop_assert!(read.is_err() || bytes.is_empty() && read == Ok(None));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            let _ = CellRecord::decode(&bytes);
        }
    }
}
