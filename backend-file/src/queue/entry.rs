//! One claim in the queue, and its bytes.

use fencelock_core::{Mode, Permits};

/// The length of an encoded entry.
pub(crate) const ENTRY: usize = 36;
/// The most entries of a queue: slot numbers have 16 bits, and the last two have other meanings.
pub(crate) const MAX_ENTRIES: usize = 65_534;

/// The number of a pipe in the lock's directory.
pub(crate) type Slot = u16;
/// In [`Entry::watch`]: the entry watches no slot.
pub(crate) const NO_SLOT: Slot = Slot::MAX;
/// In [`Entry::watch`]: the entry, the first waiter for permits, watches every holder.
pub(crate) const EVERY_HOLDER: Slot = Slot::MAX - 1;

/// In [`Entry::wake_pipe`]: the process is unknown and cannot be notified.
pub(crate) const NO_WAKE_PIPE: u16 = u16::MAX;

/// One claim in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Identifies the claim; never reused.
    pub(crate) ticket: u64,
    /// The fencing token; zero while the claim waits.
    pub(crate) token: u64,
    pub(crate) mode: Mode,
    pub(crate) held: bool,
    /// Its label is in the lock's state file; otherwise it has the label of its wake pipe.
    pub(crate) labelled: bool,
    /// When it was granted or began to wait, in hundredths of a second since the boot, truncated.
    pub(crate) since: u32,
    /// The pipe that its owner has open for reading.
    pub(crate) slot: Slot,
    /// The slot that its owner has open for writing since its last attempt.
    pub(crate) watch: Slot,
    /// The number of its process's wake pipe.
    pub(crate) wake_pipe: u16,
}

/// The reason why bytes are not a valid queue or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

const HELD: u8 = 1;
const LABELLED: u8 = 2;

impl Entry {
    /// A claim that begins to wait, without a slot yet.
    pub(crate) fn waiting(ticket: u64, mode: Mode, wake_pipe: u16, since: u32) -> Entry {
        Entry {
            ticket,
            token: 0,
            mode,
            held: false,
            labelled: false,
            since,
            slot: NO_SLOT,
            watch: NO_SLOT,
            wake_pipe,
        }
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY] {
        let (mode, n, limit) = match self.mode {
            Mode::Exclusive => (1, 0, 0),
            Mode::Shared => (2, 0, 0),
            Mode::Permits(permits) => (3, permits.n(), permits.limit()),
        };
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..20].copy_from_slice(&u32::to_le_bytes(n));
        bytes[20..24].copy_from_slice(&u32::to_le_bytes(limit));
        bytes[24..28].copy_from_slice(&self.since.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.slot.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.wake_pipe.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.watch.to_le_bytes());
        bytes[34] = mode;
        bytes[35] = u8::from(self.held) * HELD + u8::from(self.labelled) * LABELLED;
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ENTRY]) -> Result<Entry, Corrupt> {
        let half = |at: usize| u16::from_le_bytes(array(&bytes[at..at + 2]));
        let word = |at: usize| u32::from_le_bytes(array(&bytes[at..at + 4]));
        let mode = match bytes[34] {
            1 => Mode::Exclusive,
            2 => Mode::Shared,
            3 => match Permits::new(word(16), word(20)) {
                Ok(permits) => Mode::Permits(permits),
                Err(_) => return Err(Corrupt("an entry has invalid permits")),
            },
            _ => return Err(Corrupt("an entry has an unknown mode")),
        };
        if bytes[35] & !(HELD | LABELLED) != 0 {
            return Err(Corrupt("an entry has unknown flags"));
        }
        Ok(Entry {
            ticket: number(&bytes[..8]),
            token: number(&bytes[8..16]),
            mode,
            held: bytes[35] & HELD != 0,
            labelled: bytes[35] & LABELLED != 0,
            since: word(24),
            slot: half(28),
            wake_pipe: half(30),
            watch: half(32),
        })
    }
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(array(bytes))
}

/// The first `N` bytes, padded with zeros.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}
