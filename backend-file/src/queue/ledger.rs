//! The fencing tokens of one lock, as its state file records them.
//!
//! Tokens are reserved on the disk by the million before the first of them is granted; the last
//! granted token is in the lock's page only. When that page is lost, with a reboot or with the
//! last process that had it open, tokens continue above the reservation. The last process that
//! closes a lock notes the last token, so that the next one skips none and need not reserve. A note
//! is not synced, so it is valid within the same boot only.

use crate::platform::BootId;
use crate::queue::entry::{Corrupt, array, number};
use crate::queue::record::{MAGIC, check_magic};
use crate::queue::rules::Queue;

/// How many fencing tokens are reserved at once.
const BLOCK: u64 = 1 << 20;

/// The token record in a lock's state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// No token above it was granted.
    reserved: u64,
    note: Option<Note>,
}

/// The tokens of a queue when it was left without an entry. No token was granted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    boot: BootId,
    token: u64,
    /// The reservation that is certainly on the disk.
    durable: u64,
}

impl Ledger {
    /// The length of its bytes.
    pub(crate) const LEN: usize = 64;

    /// The record of an unused lock.
    pub(crate) fn new(boot: BootId) -> Ledger {
        Ledger { reserved: 0, note: Some(Note { boot, token: 0, durable: 0 }) }
    }

    /// The record of a lock whose state file has format 1, if `bytes` are the beginning of one. That
    /// format had the queue too, after the last token and the reservation.
    pub(crate) fn of_version_1(bytes: &[u8]) -> Option<Ledger> {
        let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
        let is_version_1 = magic[..7] == MAGIC[..7] && magic[7] == 1 && rest.len() >= 32;
        let reserved = || number(&rest[16..24]).max(number(&rest[24..32]));
        is_version_1.then(|| Ledger { reserved: reserved(), note: None })
    }

    /// Whether no token was ever reserved: the lock's directory may not be on the disk either.
    pub(crate) fn is_fresh(&self) -> bool {
        self.reserved == 0
    }

    /// Whether the queue was left without an entry during boot `boot`.
    pub(crate) fn was_left_empty(&self, boot: BootId) -> bool {
        self.note.is_some_and(|note| note.boot == boot)
    }

    /// A new queue for a lock whose page is lost. Its tickets are above `ticket`.
    pub(crate) fn begin(&self, boot: BootId, ticket: u64) -> Queue {
        let (token, durable) = match self.note {
            Some(note) if note.boot == boot => (note.token, note.durable),
            _ => (self.reserved, self.reserved),
        };
        // A note of another boot is cleared too: a container with that boot id would trust it later.
        Queue::starting_after(token, durable, self.note.is_some(), ticket)
    }

    /// Reserves a block of tokens above `token`, the last one. They may be granted once this record
    /// is on the disk.
    pub(crate) fn reserve(&mut self, token: u64) -> u64 {
        self.note = None;
        self.reserved = self.reserved.max(token).saturating_add(BLOCK);
        self.reserved
    }

    /// Clears the note, which has to happen before the next change.
    pub(crate) fn clear_note(&mut self) {
        self.note = None;
    }

    /// Notes the tokens of `queue`, which has no entry.
    pub(crate) fn note(&mut self, queue: &Queue, boot: BootId) {
        self.note = Some(Note { boot, token: queue.token, durable: queue.durable });
    }

    pub(crate) fn encode(&self) -> [u8; Ledger::LEN] {
        let mut bytes = [0; Ledger::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.reserved.to_le_bytes());
        if let Some(note) = &self.note {
            bytes[16] = 1;
            bytes[24..40].copy_from_slice(&note.boot);
            bytes[40..48].copy_from_slice(&note.token.to_le_bytes());
            bytes[48..56].copy_from_slice(&note.durable.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Ledger, Corrupt> {
        check_magic(bytes)?;
        let Some(bytes) = bytes.first_chunk::<{ Ledger::LEN }>() else {
            return Err(Corrupt("it is too short"));
        };
        let reserved = number(&bytes[8..16]);
        let note = Note {
            boot: array(&bytes[24..40]),
            token: number(&bytes[40..48]),
            durable: number(&bytes[48..56]),
        };
        match bytes[16] {
            0 => Ok(Ledger { reserved, note: None }),
            1 if note.token <= note.durable && note.durable <= reserved => {
                Ok(Ledger { reserved, note: Some(note) })
            }
            _ => Err(Corrupt("its header contradicts itself")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = [7; 16];

    #[test]
    fn contradictions_are_corrupt() {
        let mut bytes = Ledger::new(BOOT).encode();
        assert!(Ledger::decode(&bytes[..40]).is_err());
        bytes[40] = 9;
        assert!(Ledger::decode(&bytes).is_err(), "above the reservation");
        bytes[7] = 1;
        let error = Ledger::decode(&bytes).unwrap_err();
        assert!(error.0.contains("another version"), "{error:?}");
    }
}
