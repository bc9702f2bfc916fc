//! The queue of one lock: who holds it, who waits, in which order, and its bytes.
//!
//! Everything here is pure. A queue is written as one record: a header and the entries in arrival
//! order, holders first. The records of a lock lie one behind the other in its page
//! ([`page`](crate::page)), and the last one counts. Entries that do not fit into a record go to
//! the one of two areas of the lock's file that is not in use, before the header that leads there,
//! so that a reader sees the state before a commit or after it, never between.

use std::ops::Range;

use fencelock_core::{Mode, Permits};

/// The longest record: what a pipe takes as a whole or not at all.
pub(crate) const MAX_RECORD: usize = 4096;
/// Up to which length all records together stay in a page: to consume many at once that no longer
/// count costs as little as one.
#[cfg(any(target_os = "linux", test))]
pub(crate) const COMPACT_ABOVE: usize = 1024;
/// Format version 2. The last byte is the version.
pub(crate) const MAGIC: [u8; 8] = *b"fencelk\x02";
const HEADER: usize = 48;
/// The bytes of one entry.
pub(crate) const ENTRY: usize = 36;
/// How many entries a record itself has room for.
pub(crate) const MAX_INLINE: usize = (MAX_RECORD - HEADER) / ENTRY;
/// How many entries there may be: slot numbers are 16 bits, the last two of which mean others.
pub(crate) const MAX_ENTRIES: usize = 65_534;

/// The number of a pipe in the lock's directory.
pub(crate) type Slot = u16;
/// An entry that watches nobody.
pub(crate) const NO_SLOT: Slot = Slot::MAX;
/// The first waiter, for permits: it watches every holder.
pub(crate) const EVERY_HOLDER: Slot = Slot::MAX - 1;

/// The door of an entry whose process is not known: nobody can be rung there.
pub(crate) const NO_WAKE_PIPE: u16 = u16::MAX;

/// One claim in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Never used twice.
    pub(crate) ticket: u64,
    /// Zero while it waits.
    pub(crate) token: u64,
    pub(crate) mode: Mode,
    pub(crate) held: bool,
    /// Its label stands in the lock's file; else it is that of its door.
    pub(crate) labelled: bool,
    /// In hundredths of a second since the boot, as far as they fit.
    pub(crate) since: u32,
    /// Its owner has this pipe open for reading.
    pub(crate) slot: Slot,
    /// Whom it has open for writing, as of its last attempt.
    pub(crate) watch: Slot,
    /// Where its process can be rung.
    pub(crate) wake_pipe: u16,
}

/// The queue and the tokens of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The last token given out.
    pub(crate) token: u64,
    /// Promised to the disk for certain: no token is given out above it.
    pub(crate) durable: u64,
    /// The lock's file may have a note of the last token, which has to be struck out before the
    /// queue has an entry.
    pub(crate) noted: bool,
    next_ticket: u64,
    which: u32,
    /// A pipe that a crowd left for its next one, or [`NOBODY`].
    pub(crate) spare: Slot,
    pub(crate) entries: Vec<Entry>,
}

/// What is wrong with bytes that are no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// Not damaged, but of processes that know more, or less.
pub(crate) const OTHER_VERSION: Corrupt = Corrupt("another version of this library wrote it");

impl Queue {
    /// Without entries. Its tickets are above `ticket`.
    pub(crate) fn starting_after(token: u64, durable: u64, noted: bool, ticket: u64) -> Queue {
        let (next_ticket, which, spare) = (ticket + 1, 0, NO_SLOT);
        Queue { token, durable, noted, next_ticket, which, spare, entries: Vec::new() }
    }

    /// Whether tokens must be promised to the disk before the next grant.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.token >= self.durable
    }

    /// Takes over the holders of a queue that was lost.
    pub(crate) fn adopt(&mut self, mut holders: Vec<Entry>) {
        holders.sort_by_key(|entry| entry.ticket);
        for holder in &holders {
            self.next_ticket = self.next_ticket.max(holder.ticket.saturating_add(1));
            self.token = self.token.max(holder.token);
        }
        self.entries = holders;
    }

    /// What the next claim that joins draws.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.next_ticket
    }

    pub(crate) fn position(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }

    /// Joins the end of the queue.
    pub(crate) fn push(&mut self, mode: Mode, wake_pipe: u16, since: u32) -> usize {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.entries.push(Entry {
            ticket,
            token: 0,
            mode,
            held: false,
            labelled: false,
            since,
            slot: NO_SLOT,
            watch: NO_SLOT,
            wake_pipe,
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
            && self.entries[at].mode.is_compatible_with(ahead.iter().map(|entry| entry.mode))
    }

    pub(crate) fn grant(&mut self, at: usize, since: u32) -> u64 {
        self.token += 1;
        let entry = &mut self.entries[at];
        (entry.held, entry.token, entry.watch, entry.since) = (true, self.token, NO_SLOT, since);
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
    pub(crate) fn woken_by_grant(&self, granted: usize) -> Option<usize> {
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

    /// Whether a record has room for all entries.
    pub(crate) fn is_inline(&self) -> bool {
        self.entries.len() <= MAX_INLINE
    }

    /// Writes the record; where it has no room for the entries, they go to `area` and are to be
    /// written before it, to the area that this returns.
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
        // At most MOST.
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        for number in [count, self.which, u32::from(self.noted), u32::from(self.spare)] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        let room = match self.which {
            0 => record,
            _ => {
                area.clear();
                area
            }
        };
        for entry in &self.entries {
            room.extend_from_slice(&entry.encode());
        }
        (self.which > 0).then_some(self.which)
    }

    /// Reads one record. Where its entries are elsewhere, `area` is asked for them.
    pub(crate) fn decode<E: From<Corrupt>>(
        &mut self,
        record: &[u8],
        area: impl FnOnce(u32, usize, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Header { count, which, .. } = Header::of(record)?;
        self.token = number(&record[8..16]);
        self.durable = number(&record[16..24]);
        self.next_ticket = number(&record[24..32]);
        self.noted = record[40] != 0;
        self.spare = u16::from_le_bytes(array(&record[44..46]));
        self.which = which;
        if which == 0 {
            let entries = record.get(HEADER..HEADER + count * ENTRY).unwrap_or_default();
            return Ok(self.decode_entries(count, entries)?);
        }
        let mut bytes = Vec::new();
        area(which, count * ENTRY, &mut bytes)?;
        Ok(self.decode_entries(count, &bytes)?)
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
                return Err(Corrupt("a holder stands behind a waiter"));
            }
            (before, waits) = (entry.ticket, !entry.held);
            self.entries.push(entry);
        }
        Ok(())
    }
}

/// What a record says of its own length.
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

/// Refuses what does not begin as this version writes it.
pub(crate) fn check_magic(bytes: &[u8]) -> Result<(), Corrupt> {
    match bytes.get(..8) {
        Some(magic) if magic == MAGIC => Ok(()),
        Some(magic) if magic[..7] == MAGIC[..7] => Err(OTHER_VERSION),
        _ => Err(Corrupt("it does not begin as a queue of this library does")),
    }
}

/// Where the last record of a page is, if it has one. A process that is killed while it commits
/// leaves two.
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

/// The first record of a page that has something else behind it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn first_record(page: &[u8]) -> &[u8] {
    let len = Header::of(page).map_or(page.len(), |header| header.record_len());
    &page[..len.min(page.len())]
}

/// Whether a record says that its entries are in an area.
pub(crate) fn has_area(record: &[u8]) -> bool {
    Header::of(record).is_ok_and(|header| header.which > 0)
}

const HELD: u8 = 1;
const LABELLED: u8 = 2;

impl Entry {
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
            wake_pipe: half(30),
            watch: half(32),
        })
    }
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(array(bytes))
}

/// The first `N` bytes, zero where they end early.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn mode(kind: u8) -> Mode {
        match kind % 5 {
            0 | 1 => Mode::Exclusive,
            2 => Mode::Shared,
            3 => Mode::Permits(Permits::new(1, 3).unwrap()),
            _ => Mode::Permits(Permits::new(2, 3).unwrap()),
        }
    }

    /// A page and two areas, which a process that is killed may have written only in part.
    #[derive(Clone, Default)]
    struct Written {
        page: Vec<u8>,
        areas: BTreeMap<u32, Vec<u8>>,
    }

    /// Where a process dies that commits.
    #[derive(Clone, Copy, Debug)]
    enum Dies {
        /// After so many of the bytes that go to an area.
        InArea(usize),
        /// Each of these follows one call, which a kill does not split.
        AfterArea,
        BehindLeft,
        BehindNew,
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
            if matches!(dies, Dies::BehindLeft) {
                return;
            }
            self.page.extend_from_slice(&record);
            assert!(self.page.len() <= 2 * MAX_RECORD, "there is room for two records");
            if !stays && !matches!(dies, Dies::BehindNew) {
                self.page.drain(..last.len());
            }
        }

        fn read(&self) -> Result<Queue, Corrupt> {
            let mut queue = Queue::default();
            let last = last_record(&self.page)?.unwrap_or(0..0);
            queue.decode(&self.page[last], |which, len, bytes| {
                let part = self.areas.get(&which).map_or(&[][..], Vec::as_slice);
                bytes.extend_from_slice(part.get(..len).unwrap_or_default());
                Ok(())
            })?;
            Ok(queue)
        }
    }

    fn fresh() -> Queue {
        Queue::starting_after(0, 1000, false, 0)
    }

    /// The same but for where it is written, which each commit decides.
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
                        after.grant(at, 5);
                    }
                }
                let dies = match dies {
                    0 => Dies::InArea(reaches),
                    1 => Dies::AfterArea,
                    2 => Dies::BehindLeft,
                    3 | 4 => Dies::BehindNew,
                    _ => Dies::Never,
                };
                written.commit(&mut after.clone(), dies);
                let found = written.read().unwrap();
                let committed = matches!(dies, Dies::BehindNew | Dies::Never);
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

        #[test]
        fn a_waiter_that_may_hold_is_woken_whatever_the_others_do(
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
            World { queue: fresh(), claims, woken, last_exclusive_token: 0 }
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
                    let next = self.queue.woken_by_grant(at);
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
                        false => ahead.unwrap_or(NO_SLOT),
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
                assert!(modes[at].is_compatible_with(modes[..at].iter().copied()), "{modes:?}");
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
    fn adopted_holders_keep_their_order_and_their_numbers() {
        let mut queue = fresh();
        let at = queue.push(Mode::Shared, 0, 0);
        let held = |ticket, token| Entry { ticket, token, held: true, ..queue.entries[at] };
        let holders = vec![held(9, 7), held(4, 3)];
        let mut queue = Queue::starting_after(5, 1000, true, 6);
        queue.adopt(holders);
        let tickets: Vec<u64> = queue.entries.iter().map(|entry| entry.ticket).collect();
        assert_eq!((tickets, queue.token), (vec![4, 9], 7));
        let at = queue.push(Mode::Shared, 0, 0);
        assert_eq!(queue.entries[at].ticket, 10);
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
        assert!(written.read().is_err(), "somebody else wrote there");
    }

    #[test]
    fn the_lowest_free_slot_is_found_in_any_order() {
        let mut queue = fresh();
        for slot in [5, 0, 2, 1, 9] {
            let at = queue.push(Mode::Shared, 0, 0);
            queue.entries[at].slot = slot;
        }
        let free: Vec<Slot> = [0, 3, 4, 5, 9, 10].map(|from| queue.free_slot(from)).to_vec();
        assert_eq!(free, [3, 3, 4, 6, 10, 10]);
    }
}
