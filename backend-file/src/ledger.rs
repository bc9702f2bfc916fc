//! The fencing tokens of one lock, as its file has them.
//!
//! Everything here is pure. Tokens are promised to the disk by the million before the first of
//! them is given out; the last one given out is in the queue's page only. When that page is lost,
//! with a reboot or with the last process that had it open, tokens go on above the promise. The
//! last process that leaves a lock notes where it was, so that nothing is skipped and nothing has
//! to be promised: a note is not synced, so it is believed within the same boot only.

use crate::queue::{Corrupt, MAGIC, Queue, array, check_magic, number};

/// How many fencing tokens are promised to the disk at once.
const BLOCK: u64 = 1 << 20;

/// Tells one boot of the machine from another.
pub(crate) type BootId = [u8; 16];

/// What a lock's file says of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// No token above it was given out.
    reserved: u64,
    note: Option<Note>,
}

/// Where the queue was when it was left without an entry. No token was given out since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    boot: BootId,
    token: u64,
    /// The promise that is on the disk for certain.
    durable: u64,
}

impl Ledger {
    /// The length of its bytes.
    pub(crate) const LEN: usize = 64;

    /// Of a lock that nobody has used.
    pub(crate) fn new(boot: BootId) -> Ledger {
        Ledger { reserved: 0, note: Some(Note { boot, token: 0, durable: 0 }) }
    }

    /// Of a lock whose file is of format 1, if these are the first bytes of one. That had the queue
    /// too, behind the token that was given out last and the promise.
    pub(crate) fn of_version_1(bytes: &[u8]) -> Option<Ledger> {
        let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
        let is_version_1 = magic[..7] == MAGIC[..7] && magic[7] == 1 && rest.len() >= 32;
        let reserved = || number(&rest[16..24]).max(number(&rest[24..32]));
        is_version_1.then(|| Ledger { reserved: reserved(), note: None })
    }

    /// Whether no promise was ever made: the lock's directory may not be on the disk either.
    pub(crate) fn is_fresh(&self) -> bool {
        self.reserved == 0
    }

    /// Whether, as seen in boot `boot`, the queue was left without an entry.
    pub(crate) fn was_left_empty(&self, boot: BootId) -> bool {
        self.note.is_some_and(|note| note.boot == boot)
    }

    /// The queue of a lock whose page is lost. Its tickets are above `ticket`.
    pub(crate) fn begin(&self, boot: BootId, ticket: u64) -> Queue {
        let (token, durable) = match self.note {
            Some(note) if note.boot == boot => (note.token, note.durable),
            _ => (self.reserved, self.reserved),
        };
        // Another boot's note too: a container with a boot id of its own would believe it later.
        Queue::starting_after(token, durable, self.note.is_some(), ticket)
    }

    /// Promises tokens above those that were given out. They may be given out once this is on the
    /// disk.
    pub(crate) fn reserve(&mut self, token: u64) -> u64 {
        self.note = None;
        self.reserved = self.reserved.max(token).saturating_add(BLOCK);
        self.reserved
    }

    /// Strikes out the note, before anything follows it.
    pub(crate) fn clear_note(&mut self) {
        self.note = None;
    }

    /// Notes where `queue`, which has no entry, is left.
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

    fn given(ledger: &Ledger, boot: BootId) -> (u64, bool) {
        let queue = ledger.begin(boot, 0);
        (queue.token, queue.needs_tokens())
    }

    #[test]
    fn tokens_of_a_lost_page_continue_after_the_note_or_above_the_reservation() {
        let mut ledger = Ledger::new(BOOT);
        assert!(ledger.is_fresh() && ledger.was_left_empty(BOOT));
        assert_eq!(given(&ledger, BOOT), (0, true));
        let mut queue = ledger.begin(BOOT, 0);
        queue.durable = ledger.reserve(queue.token);
        assert!(!ledger.is_fresh() && !queue.needs_tokens());
        queue.token = 5;
        assert_eq!(given(&ledger, BOOT), (BLOCK, true), "killed");
        ledger.note(&queue, BOOT);
        assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
        assert_eq!(given(&ledger, BOOT), (5, false), "left");
        assert_eq!(given(&ledger, [8; 16]), (BLOCK, true), "rebooted");
        assert!(ledger.begin([8; 16], 0).noted, "it must not be believed later");
        ledger.clear_note();
        assert_eq!(given(&ledger, BOOT), (BLOCK, true), "killed again");
        assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
    }

    #[test]
    fn a_reservation_that_may_not_be_on_the_disk_is_not_used() {
        let mut ledger = Ledger::new(BOOT);
        let first = ledger.reserve(0);
        // A process was killed between writing it and knowing that it is on the disk.
        assert!(ledger.begin(BOOT, 0).needs_tokens());
        assert!(ledger.reserve(first - 1) > first);
    }

    #[test]
    fn contradictions_are_corrupt() {
        let mut bytes = Ledger::new(BOOT).encode();
        assert!(Ledger::decode(&bytes[..40]).is_err());
        bytes[40] = 9;
        assert!(Ledger::decode(&bytes).is_err(), "above what was promised");
        bytes[7] = 1;
        let error = Ledger::decode(&bytes).unwrap_err();
        assert!(error.0.contains("another version"), "{error:?}");
    }
}
