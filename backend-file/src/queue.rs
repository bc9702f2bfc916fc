//! The queue of one lock: who holds it, who waits, in which order, and its bytes on disk.
//!
//! Everything here is pure. The state is a page: a header and the entries in arrival order,
//! holders first. A page is written by one call, which a kill cannot split; entries that do not
//! fit go to the one of two areas that is not in use, and the header that follows switches over,
//! so that whoever reads sees the state before a commit or after it, never between.

use std::ops::Range;
use std::time::Duration;

use fencelock_core::{Mode, Permits};

/// The part of the file that is read and written as one.
pub(crate) const PAGE: usize = 4096;
/// Format version 1. The last byte is the version.
const MAGIC: [u8; 8] = *b"fencelk\x01";
const HEADER: usize = 64;
const ENTRY: usize = 36;
/// How many entries the page itself has room for.
pub(crate) const INLINE: usize = (PAGE - HEADER) / ENTRY;
/// How many entries there may be: slot numbers are 16 bits, the last two of which mean others.
pub(crate) const MOST: usize = 65_534;

/// Where the lock's full name is, after its length in four bytes.
pub(crate) const NAME_AT: u64 = 4096;
/// The longest name with its prefix.
pub(crate) const NAME_MOST: usize = 60 * 1024;
/// Where labels are that differ from their process's own, [`LABEL`] bytes for each slot.
pub(crate) const LABELS_AT: u64 = 16 << 20;
/// Room for one label, and its length in the first byte.
pub(crate) const LABEL: usize = 128;

/// How many fencing tokens are promised to the disk at once.
const BLOCK: u64 = 1 << 20;

/// Where an entry area begins. The page itself is area 0.
pub(crate) fn area_at(which: u32) -> u64 {
    u64::from(which) * (4 << 20)
}

/// The number of a pipe in the lock's directory.
pub(crate) type Slot = u16;
/// An entry that watches nobody.
pub(crate) const NOBODY: Slot = Slot::MAX;
/// The first waiter, for permits: it watches every holder.
pub(crate) const EVERY_HOLDER: Slot = Slot::MAX - 1;

/// Tells one boot of the machine from another.
pub(crate) type BootId = [u8; 16];

/// One claim in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Never used twice in one file.
    pub(crate) ticket: u64,
    /// Zero while it waits.
    pub(crate) token: u64,
    pub(crate) mode: Mode,
    pub(crate) held: bool,
    /// Its label stands in the file, beside the queue; else it is that of its door.
    pub(crate) labelled: bool,
    /// In hundredths of a second since the boot, as far as they fit.
    pub(crate) since: u32,
    /// Its owner has this pipe open for reading.
    pub(crate) slot: Slot,
    /// Whom it has open for writing, as of its last attempt.
    pub(crate) watch: Slot,
    /// Where its process can be rung.
    pub(crate) door: u16,
}

/// The queue and the tokens of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) boot: BootId,
    /// The last token given out.
    pub(crate) token: u64,
    /// Written, perhaps not yet on the disk: after a power failure tokens go on above it.
    promised: u64,
    /// On the disk for certain: no token is given out above it.
    durable: u64,
    next_ticket: u64,
    which: u32,
    pub(crate) entries: Vec<Entry>,
}

/// What is wrong with bytes that are no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

impl Queue {
    /// Of a lock that nobody has used, made so long after the boot. Tickets begin there: above
    /// those of every earlier file of the same lock, so that nobody takes an entry of the new one
    /// for its own.
    pub(crate) fn new(boot: BootId, since_boot: Duration) -> Queue {
        Queue {
            boot,
            token: 0,
            promised: 0,
            durable: 0,
            next_ticket: u64::try_from(since_boot.as_nanos()).unwrap_or(u64::MAX / 2).max(1),
            which: 0,
            entries: Vec::new(),
        }
    }

    /// Goes on in boot `boot`: after another one, what was not on the disk may be gone, so tokens
    /// go on above what was promised, and of the entries only those whose owners live are true.
    /// There may be such: containers can have boot ids of their own.
    pub(crate) fn begin(&mut self, boot: BootId, lives: impl Fn(Slot) -> bool) {
        if self.boot != boot {
            self.boot = boot;
            self.entries.retain(|entry| lives(entry.slot));
            self.token = self.token.max(self.promised);
            self.durable = self.token;
        }
    }

    /// Whether tokens must be promised to the disk before the next grant.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.token >= self.durable
    }

    /// Whether no promise was ever kept: its directory may not be on the disk either.
    pub(crate) fn is_fresh(&self) -> bool {
        self.durable == 0
    }

    /// To be followed by a commit, a sync, [`promise_kept`](Queue::promise_kept) and a commit.
    pub(crate) fn promise(&mut self) {
        self.promised = self.promised.max(self.token).saturating_add(BLOCK);
    }

    /// The promise is on the disk.
    pub(crate) fn promise_kept(&mut self) {
        self.durable = self.promised;
    }

    pub(crate) fn position(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }

    /// Joins the end of the queue.
    pub(crate) fn push(&mut self, mode: Mode, door: u16, since: u32) -> usize {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.entries.push(Entry {
            ticket,
            token: 0,
            mode,
            held: false,
            labelled: false,
            since,
            slot: NOBODY,
            watch: NOBODY,
            door,
        });
        self.entries.len() - 1
    }

    /// How many hold. They are the first ones.
    pub(crate) fn holders(&self) -> usize {
        self.entries.iter().take_while(|entry| entry.held).count()
    }

    /// Whether entry `at`, which waits, may hold now: nobody waits ahead, and it fits beside those
    /// that hold.
    pub(crate) fn fits(&self, at: usize) -> bool {
        let ahead = &self.entries[..at];
        ahead.iter().all(|entry| entry.held)
            && self.entries[at].mode.fits_beside(ahead.iter().map(|entry| entry.mode))
    }

    pub(crate) fn grant(&mut self, at: usize, since: u32) -> u64 {
        self.token += 1;
        let entry = &mut self.entries[at];
        (entry.held, entry.token, entry.watch, entry.since) = (true, self.token, NOBODY, since);
        self.token
    }

    /// Whom entry `at`, which must wait, has to watch: everybody whose end could be what it waits
    /// for first. Behind a waiter that is the waiter, who rings it where that is not enough;
    /// behind holders who must all end, the youngest; where one permit more may be enough, all.
    pub(crate) fn blockers(&self, at: usize) -> Range<usize> {
        match self.watches_every_holder(at) {
            true => 0..at,
            false => at.saturating_sub(1)..at,
        }
    }

    pub(crate) fn watches_every_holder(&self, at: usize) -> bool {
        let permits = |entry: &Entry| matches!(entry.mode, Mode::Permits(_));
        permits(&self.entries[at])
            && self.entries[..at].iter().all(|entry| entry.held && permits(entry))
    }

    /// The first waiter, if it has to be rung because of a grant just given to the entry ahead of
    /// it: it fits as well, or must watch more than that entry from now on.
    pub(crate) fn rung_by_grant(&self, granted: usize) -> Option<usize> {
        let next = granted + 1;
        let entry = self.entries.get(next)?;
        let rung = !entry.held && (self.fits(next) || self.watches_every_holder(next));
        rung.then_some(next)
    }

    /// Who watched an entry that is gone from the queue.
    pub(crate) fn watchers(&self, gone: &Entry) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            !entry.held && (entry.watch == gone.slot || gone.held && entry.watch == EVERY_HOLDER)
        })
    }

    /// Whether somebody may have `slot` open to watch whoever had it.
    pub(crate) fn is_watched(&self, slot: Slot) -> bool {
        self.entries.iter().any(|entry| entry.watch == slot || entry.watch == EVERY_HOLDER)
    }

    /// The first waiter, if it may hold now.
    pub(crate) fn next_to_hold(&self) -> Option<usize> {
        let first = self.holders();
        (first < self.entries.len() && self.fits(first)).then_some(first)
    }

    /// The lowest slot from `from` on that nobody in the queue has.
    pub(crate) fn free_slot(&self, from: Slot) -> Slot {
        if self.entries.iter().all(|entry| entry.slot != from) {
            return from;
        }
        // One of as many as there are entries, and one more, is free.
        let mut taken = vec![false; self.entries.len()];
        for entry in &self.entries {
            let after = entry.slot.checked_sub(from).map(usize::from);
            if let Some(taken) = after.and_then(|after| taken.get_mut(after)) {
                *taken = true;
            }
        }
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        from.saturating_add(u16::try_from(free).unwrap_or(u16::MAX))
    }

    /// The page, and what must be written to an area before it.
    pub(crate) fn encode(&mut self, page: &mut [u8; PAGE], area: &mut Vec<u8>) -> Commit {
        let count = self.entries.len();
        let inline = count <= INLINE;
        self.which = match (inline, self.which) {
            (true, _) => 0,
            (false, 1) => 2,
            (false, _) => 1,
        };
        area.clear();
        if !inline {
            area.resize(count * ENTRY, 0);
        }
        page[..8].copy_from_slice(&MAGIC);
        page[8..24].copy_from_slice(&self.boot);
        let numbers = [self.token, self.promised, self.durable, self.next_ticket];
        for (field, number) in page[24..56].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        // At most MOST.
        let count_field = u32::try_from(count).unwrap_or(u32::MAX);
        page[56..60].copy_from_slice(&count_field.to_le_bytes());
        page[60..64].copy_from_slice(&self.which.to_le_bytes());
        let room: &mut [u8] = if inline { &mut page[HEADER..] } else { area };
        for (bytes, entry) in room.chunks_exact_mut(ENTRY).zip(&self.entries) {
            encode_entry(bytes, entry);
        }
        let page_len = if inline { HEADER + count * ENTRY } else { HEADER };
        Commit { page_len, area: (!inline).then_some(self.which) }
    }

    /// Reads a page in boot `boot`. Where entries are elsewhere, `area` is asked for them. A power
    /// failure may have left anything behind the header, which fits one sector: entries of
    /// another boot are void then, not corrupt.
    pub(crate) fn decode<E: From<Corrupt>>(
        &mut self,
        page: &[u8],
        boot: BootId,
        area: impl FnOnce(Range<u64>, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some((header, rest)) = page.split_at_checked(HEADER) else {
            return Err(Corrupt("it is too short").into());
        };
        if header[..7] != MAGIC[..7] {
            return Err(Corrupt("it does not begin as a queue of this library does").into());
        }
        if header[7] != MAGIC[7] {
            return Err(Corrupt("another version of this library wrote it").into());
        }
        self.boot = array(&header[8..24]);
        self.token = number(&header[24..32]);
        self.promised = number(&header[32..40]);
        self.durable = number(&header[40..48]);
        self.next_ticket = number(&header[48..56]);
        let count = u32::from_le_bytes(array(&header[56..60])) as usize;
        self.which = u32::from_le_bytes(array(&header[60..64]));
        if self.durable > self.promised.max(self.token) || count > MOST || self.which > 2 {
            return Err(Corrupt("its header contradicts itself").into());
        }
        let decoded = if self.which == 0 {
            self.decode_entries(count, rest.get(..count * ENTRY).unwrap_or_default())
        } else {
            let start = area_at(self.which);
            let mut bytes = Vec::new();
            area(start..start + (count * ENTRY) as u64, &mut bytes)?;
            self.decode_entries(count, &bytes)
        };
        match decoded {
            Err(_) if self.boot != boot => self.entries.clear(),
            decoded => decoded?,
        }
        Ok(())
    }

    fn decode_entries(&mut self, count: usize, bytes: &[u8]) -> Result<(), Corrupt> {
        self.entries.clear();
        if bytes.len() != count * ENTRY {
            return Err(Corrupt("entries are missing"));
        }
        let mut before = 0;
        let mut waits = false;
        for bytes in bytes.chunks_exact(ENTRY) {
            let entry = decode_entry(bytes)?;
            if entry.ticket <= before || entry.ticket >= self.next_ticket {
                return Err(Corrupt("its tickets are out of order"));
            }
            if waits && entry.held {
                return Err(Corrupt("a holder stands behind a waiter"));
            }
            (before, waits) = (entry.ticket, !entry.held);
            self.entries.push(entry);
        }
        Ok(())
    }
}

/// How much of what was encoded is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// How much of the page.
    pub(crate) page_len: usize,
    /// Where the entries go first, if not into the page.
    pub(crate) area: Option<u32>,
}

const HELD: u8 = 1;
const LABELLED: u8 = 2;

fn encode_entry(bytes: &mut [u8], entry: &Entry) {
    let (mode, n, limit) = match entry.mode {
        Mode::Exclusive => (1, 0, 0),
        Mode::Shared => (2, 0, 0),
        Mode::Permits(permits) => (3, permits.n(), permits.limit()),
    };
    bytes[..8].copy_from_slice(&entry.ticket.to_le_bytes());
    bytes[8..16].copy_from_slice(&entry.token.to_le_bytes());
    bytes[16..20].copy_from_slice(&u32::to_le_bytes(n));
    bytes[20..24].copy_from_slice(&u32::to_le_bytes(limit));
    bytes[24..28].copy_from_slice(&entry.since.to_le_bytes());
    bytes[28..30].copy_from_slice(&entry.slot.to_le_bytes());
    bytes[30..32].copy_from_slice(&entry.door.to_le_bytes());
    bytes[32..34].copy_from_slice(&entry.watch.to_le_bytes());
    bytes[34] = mode;
    bytes[35] = u8::from(entry.held) * HELD + u8::from(entry.labelled) * LABELLED;
}

fn decode_entry(bytes: &[u8]) -> Result<Entry, Corrupt> {
    let half = |at: usize| u16::from_le_bytes(array(&bytes[at..at + 2]));
    let word = |at: usize| u32::from_le_bytes(array(&bytes[at..at + 4]));
    let mode = match bytes[34] {
        1 => Mode::Exclusive,
        2 => Mode::Shared,
        3 => match Permits::new(word(16), word(20)) {
            Ok(permits) => Mode::Permits(permits),
            Err(_) => return Err(Corrupt("an entry has impossible permits")),
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
        door: half(30),
        watch: half(32),
    })
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(array(bytes))
}

/// The first `N` bytes, zero where they end early.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const BOOT: BootId = [7; 16];

    fn mode(kind: u8) -> Mode {
        match kind % 5 {
            0 | 1 => Mode::Exclusive,
            2 => Mode::Shared,
            3 => Mode::Permits(Permits::new(1, 3).unwrap()),
            _ => Mode::Permits(Permits::new(2, 3).unwrap()),
        }
    }

    /// A file that a killed process may have written only a part of: the page and two areas.
    #[derive(Clone, Default)]
    struct Disk(BTreeMap<u64, Vec<u8>>);

    impl Disk {
        fn write(&mut self, at: u64, bytes: &[u8]) {
            let part = self.0.entry(at).or_default();
            let rest = part.split_off(bytes.len().min(part.len()));
            *part = [bytes, &rest].concat();
        }

        /// Commits, but dies after `reaches` of the bytes that go beside the page. The page itself
        /// is one write within a page of memory, which a kill does not split.
        fn commit(&mut self, queue: &mut Queue, reaches: Option<usize>) {
            let (mut page, mut area) = ([0; PAGE], Vec::new());
            let commit = queue.encode(&mut page, &mut area);
            assert!(commit.page_len <= PAGE);
            if let Some(which) = commit.area {
                let len = reaches.map_or(area.len(), |reaches| reaches.min(area.len()));
                self.write(area_at(which), &area[..len]);
            }
            if reaches.is_none() {
                self.write(0, &page[..commit.page_len]);
            }
        }

        fn read(&self) -> Result<Queue, Corrupt> {
            let mut queue = Queue::new([0; 16], Duration::ZERO);
            let page = self.0.get(&0).map_or(&[][..], Vec::as_slice);
            queue.decode(page, BOOT, |range, bytes| {
                let part = self.0.get(&range.start).map_or(&[][..], Vec::as_slice);
                let len = usize::try_from(range.end - range.start).unwrap();
                bytes.extend_from_slice(part.get(..len).unwrap_or_default());
                Ok(())
            })?;
            Ok(queue)
        }
    }

    /// The same but for where it is written, which each commit decides.
    fn assert_same(one: &Queue, two: &Queue) {
        assert_eq!(
            (&one.entries, one.token, one.next_ticket),
            (&two.entries, two.token, two.next_ticket)
        );
        assert_eq!((one.boot, one.promised, one.durable), (two.boot, two.promised, two.durable));
    }

    proptest! {
        #[test]
        fn a_commit_is_there_or_not_wherever_it_was_killed(
            steps in prop::collection::vec((0u16..300, 0usize..12_000, any::<bool>()), 1..12),
        ) {
            let mut disk = Disk::default();
            let mut queue = Queue::new(BOOT, Duration::ZERO);
            disk.commit(&mut queue, None);
            for (size, reaches, dies) in steps {
                let before = disk.read().unwrap();
                assert_same(&before, &queue);
                let mut after = before.clone();
                after.entries.truncate(usize::from(size));
                while after.entries.len() < usize::from(size) {
                    let at = after.push(mode(size as u8), size, u32::from(size));
                    after.entries[at].slot = u16::try_from(at).unwrap();
                    if after.fits(at) {
                        after.grant(at, 5);
                    }
                }
                disk.commit(&mut after.clone(), dies.then_some(reaches));
                let found = disk.read().unwrap();
                assert_same(&found, if dies { &before } else { &after });
                queue = found;
            }
        }

        #[test]
        fn nothing_that_is_read_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..600), count in 0u32..20, which in 0u32..4,
        ) {
            let mut page = MAGIC.to_vec();
            page.extend_from_slice(&bytes);
            for (at, number) in [(56, count), (60, which)] {
                if page.len() >= at + 4 {
                    page[at..at + 4].copy_from_slice(&number.to_le_bytes());
                }
            }
            for page in [page, bytes] {
                let mut disk = Disk::default();
                disk.write(0, &page);
                let _ = disk.read();
            }
        }

        #[test]
        fn whoever_may_hold_is_woken_whatever_the_others_do(
            events in prop::collection::vec((0u8..10, any::<u8>(), any::<u8>()), 1..150),
        ) {
            let mut world = World::new();
            for (what, whom, order) in events {
                world.happen(what, whom);
                // Some wake-ups come late.
                if order % 3 > 0 {
                    world.settle(order);
                }
                world.check();
            }
            world.settle(0);
            world.check_nobody_sleeps_who_could_hold();
        }
    }

    /// Claims as they act on a queue, with wake-ups that take their time.
    struct World {
        queue: Queue,
        /// By ticket: whether it lives, and whose pipes it has open.
        claims: BTreeMap<u64, Watching>,
        woken: BTreeSet<u64>,
        last_exclusive_token: u64,
    }

    #[derive(Default)]
    struct Watching {
        dead: bool,
        watches: Vec<u64>,
    }

    impl World {
        fn new() -> World {
            let (claims, woken) = (BTreeMap::new(), BTreeSet::new());
            World {
                queue: Queue::new(BOOT, Duration::ZERO),
                claims,
                woken,
                last_exclusive_token: 0,
            }
        }

        fn happen(&mut self, what: u8, whom: u8) {
            let len = self.queue.entries.len();
            let whom = (len > 0).then(|| self.queue.entries[usize::from(whom) % len.max(1)]);
            match (what, whom) {
                (0..=4, _) if len < 20 => {
                    let at = self.queue.push(mode(what * 31 + len as u8), 0, 0);
                    self.queue.entries[at].slot = self.queue.free_slot(0);
                    let ticket = self.queue.entries[at].ticket;
                    self.claims.insert(ticket, Watching::default());
                    self.step(ticket);
                }
                (5..=7, Some(entry)) if !self.claims[&entry.ticket].dead => {
                    self.leave(entry.ticket);
                }
                (8, Some(entry)) => self.die(entry.ticket),
                (9, Some(entry)) => self.evict(entry.ticket),
                _ => {}
            }
        }

        /// As a claim's attempt.
        fn step(&mut self, ticket: u64) {
            let Some(mut at) = self.queue.position(ticket) else { return };
            if self.queue.entries[at].held || self.claims[&ticket].dead {
                return;
            }
            loop {
                if self.queue.fits(at) {
                    let token = self.queue.grant(at, 0);
                    if self.queue.entries[at].mode == Mode::Exclusive {
                        assert!(token > self.last_exclusive_token);
                        self.last_exclusive_token = token;
                    }
                    let next = self.queue.rung_by_grant(at);
                    self.woken.extend(next.map(|next| self.queue.entries[next].ticket));
                    return;
                }
                let blockers = self.queue.blockers(at);
                let dead =
                    blockers.clone().find(|at| self.claims[&self.queue.entries[*at].ticket].dead);
                let Some(dead) = dead else {
                    let ahead = at.checked_sub(1).map(|ahead| self.queue.entries[ahead].slot);
                    self.queue.entries[at].watch = match self.queue.watches_every_holder(at) {
                        true => EVERY_HOLDER,
                        false => ahead.unwrap_or(NOBODY),
                    };
                    let watches = self.queue.entries[blockers].iter().map(|entry| entry.ticket);
                    self.claims.get_mut(&ticket).unwrap().watches = watches.collect();
                    return;
                };
                self.queue.entries.remove(dead);
                at -= 1;
            }
        }

        /// The wake-ups of a removal: to whoever watched, and to the next if it watched not.
        fn removed(&mut self, gone: Entry) {
            let watchers = self.queue.watchers(&gone).map(|entry| entry.ticket);
            let next = self.queue.next_to_hold().map(|next| self.queue.entries[next].ticket);
            self.woken.extend(watchers.chain(next).collect::<Vec<_>>());
        }

        fn leave(&mut self, ticket: u64) {
            let gone = self.queue.entries.remove(self.queue.position(ticket).unwrap());
            self.removed(gone);
            self.claims.remove(&ticket);
        }

        fn evict(&mut self, ticket: u64) {
            let gone = self.queue.entries.remove(self.queue.position(ticket).unwrap());
            self.removed(gone);
        }

        /// Only closing pipes tell.
        fn die(&mut self, ticket: u64) {
            self.claims.get_mut(&ticket).unwrap().dead = true;
            let watches = |claim: &Watching| claim.watches.contains(&ticket);
            let told = self.claims.iter().filter(|(_, claim)| watches(claim)).map(|(own, _)| *own);
            self.woken.extend(told.collect::<Vec<_>>());
        }

        fn settle(&mut self, order: u8) {
            while !self.woken.is_empty() {
                let nth = usize::from(order) % self.woken.len();
                let ticket = *self.woken.iter().nth(nth).unwrap();
                self.woken.remove(&ticket);
                if self.claims.contains_key(&ticket) {
                    self.step(ticket);
                }
            }
        }

        fn check(&mut self) {
            let entries = &self.queue.entries;
            let holders = self.queue.holders();
            assert!(entries[holders..].iter().all(|entry| !entry.held), "holders come first");
            assert!(entries.is_sorted_by_key(|entry| entry.ticket), "nobody overtakes");
            let modes: Vec<Mode> = entries[..holders].iter().map(|entry| entry.mode).collect();
            for at in 0..holders {
                assert!(modes[at].fits_beside(modes[..at].iter().copied()), "{modes:?}");
            }
            let slots: BTreeSet<Slot> = entries.iter().map(|entry| entry.slot).collect();
            assert_eq!(slots.len(), entries.len(), "a pipe has one owner");
        }

        fn check_nobody_sleeps_who_could_hold(&self) {
            let mut living = self.queue.clone();
            living.entries.retain(|entry| !self.claims[&entry.ticket].dead);
            assert_eq!(living.next_to_hold(), None, "{:?}", living.entries);
        }
    }

    #[test]
    fn another_boot_voids_entries_and_goes_on_above_the_promise() {
        let mut queue = Queue::new(BOOT, Duration::ZERO);
        queue.promise();
        queue.promise_kept();
        let at = queue.push(Mode::Exclusive, 0, 0);
        queue.grant(at, 0);
        queue.begin(BOOT, |_| false);
        assert_eq!((queue.entries.len(), queue.needs_tokens()), (1, false));
        let mut elsewhere = queue.clone();
        elsewhere.begin([9; 16], |_| true);
        assert_eq!((elsewhere.entries.len(), elsewhere.token), (1, BLOCK), "it lives");
        queue.begin([8; 16], |_| false);
        assert_eq!((queue.entries.len(), queue.token), (0, BLOCK));
        assert!(queue.needs_tokens() && !queue.is_fresh());
        queue.promise();
        assert!(queue.needs_tokens(), "not before it is on the disk");
        queue.promise_kept();
        assert!(!queue.needs_tokens());
    }

    #[test]
    fn contradictions_are_corrupt() {
        let mut queue = Queue::new(BOOT, Duration::ZERO);
        for _ in 0..2 {
            let at = queue.push(Mode::Exclusive, 0, 0);
            queue.entries[at].slot = u16::try_from(at).unwrap();
        }
        let spoil: [fn(&mut Queue); 4] = [
            |queue| queue.entries[1].held = true,
            |queue| queue.entries.swap(0, 1),
            |queue| queue.next_ticket = 1,
            |queue| queue.durable = 5,
        ];
        for spoil in spoil {
            let mut disk = Disk::default();
            let mut spoilt = queue.clone();
            spoil(&mut spoilt);
            disk.commit(&mut spoilt, None);
            assert!(disk.read().is_err());
        }
    }

    #[test]
    fn what_a_power_failure_left_of_the_entries_is_void() {
        let mut queue = Queue::new([1; 16], Duration::ZERO);
        for slot in 0..120 {
            let at = queue.push(Mode::Exclusive, 0, 0);
            queue.entries[at].slot = slot;
        }
        let mut disk = Disk::default();
        disk.commit(&mut queue, None);
        disk.0.remove(&area_at(1));
        let found = disk.read().unwrap();
        assert_eq!((found.entries.len(), found.next_ticket), (0, queue.next_ticket));
        queue.boot = BOOT;
        disk.commit(&mut queue, None);
        disk.0.remove(&area_at(2));
        assert!(disk.read().is_err(), "in this boot nothing tears it");
    }

    #[test]
    fn the_lowest_free_slot_is_found_in_any_order() {
        let mut queue = Queue::new(BOOT, Duration::ZERO);
        for slot in [5, 0, 2, 1, 9] {
            let at = queue.push(Mode::Shared, 0, 0);
            queue.entries[at].slot = slot;
        }
        let free: Vec<Slot> = [0, 3, 4, 5, 9, 10].map(|from| queue.free_slot(from)).to_vec();
        assert_eq!(free, [3, 3, 4, 6, 10, 10]);
    }
}
