//! The queue of one lock: its holders and waiters in arrival order, which of them may hold, and
//! which entries each waiter watches.

use std::ops::Range;

use fencelock_core::Mode;

use crate::queue::entry::{EVERY_HOLDER, Entry, NO_SLOT, Slot};

/// The queue and the tokens of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The last granted token.
    pub(crate) token: u64,
    /// The reservation that is certainly on the disk: no token above it is granted.
    pub(crate) durable: u64,
    /// The lock's state file may have a note of the last token, which has to be cleared before the
    /// queue gets an entry.
    pub(crate) noted: bool,
    /// The ticket of the next claim that joins.
    pub(crate) next_ticket: u64,
    /// The area of the state file that has the entries; 0 when they are in the record.
    pub(super) which: u32,
    /// The slot of a surplus pipe that is kept for the next waiter, or [`NO_SLOT`].
    pub(crate) spare: Slot,
    pub(crate) entries: Vec<Entry>,
}

/// The most tokens of one grant.
pub(crate) const MOST_TOKENS: u64 = 1_024;

impl Queue {
    /// A queue without entries. Its tickets are above `ticket`.
    pub(crate) fn starting_after(token: u64, durable: u64, noted: bool, ticket: u64) -> Queue {
        let (next_ticket, which, spare) = (ticket + 1, 0, NO_SLOT);
        Queue { token, durable, noted, next_ticket, which, spare, entries: Vec::new() }
    }

    /// Whether tokens must be reserved on the disk before the next grant.
    pub(crate) fn needs_tokens(&self) -> bool {
        self.token + MOST_TOKENS > self.durable
    }

    /// Takes over the holders of a lost queue.
    pub(crate) fn adopt(&mut self, mut holders: Vec<Entry>) {
        holders.sort_by_key(|entry| entry.ticket);
        for holder in &holders {
            self.next_ticket = self.next_ticket.max(holder.ticket.saturating_add(1));
            // It may have reserved further ones.
            self.token = self.token.max(holder.token.saturating_add(MOST_TOKENS - 1));
        }
        self.entries = holders;
    }

    pub(crate) fn position(&self, ticket: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }

    /// Adds a claim at the end of the queue. Returns its index.
    pub(crate) fn push(&mut self, mode: Mode, wake_pipe: u16, since: u32) -> usize {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.entries.push(Entry::waiting(ticket, mode, wake_pipe, since));
        self.entries.len() - 1
    }

    /// The number of holders. They are the first entries.
    pub(crate) fn holders(&self) -> usize {
        self.entries.iter().take_while(|entry| entry.held).count()
    }

    /// Whether entry `at`, which waits, may hold now: no entry waits ahead of it, and its mode is
    /// compatible with the holders.
    pub(crate) fn fits(&self, at: usize) -> bool {
        let ahead = &self.entries[..at];
        ahead.iter().all(|entry| entry.held)
            && self.entries[at].mode.is_compatible_with(ahead.iter().map(|entry| entry.mode))
    }

    /// Grants the lock to entry `at`, with so many `tokens`. Returns the first.
    pub(crate) fn grant(&mut self, at: usize, since: u32, tokens: u32) -> u64 {
        let first = self.token + 1;
        self.token += u64::from(tokens);
        let entry = &mut self.entries[at];
        (entry.held, entry.token, entry.watch, entry.since) = (true, first, NO_SLOT, since);
        first
    }

    /// The entries that entry `at`, which must wait, has to watch: each one whose end could let it
    /// proceed. After a waiter, that is the waiter, which notifies it in the remaining cases;
    /// after holders that must all end, the youngest; where one more permit may be enough, all
    /// holders.
    pub(crate) fn blockers(&self, at: usize) -> Range<usize> {
        if self.watches_every_holder(at) { 0..at } else { at.saturating_sub(1)..at }
    }

    /// What entry `at`, which must wait, has in [`Entry::watch`].
    pub(crate) fn watched_slot(&self, at: usize) -> Slot {
        match self.watches_every_holder(at) {
            true => EVERY_HOLDER,
            false => at.checked_sub(1).map_or(NO_SLOT, |ahead| self.entries[ahead].slot),
        }
    }

    fn watches_every_holder(&self, at: usize) -> bool {
        let permits = |entry: &Entry| matches!(entry.mode, Mode::Permits(_));
        permits(&self.entries[at])
            && self.entries[..at].iter().all(|entry| entry.held && permits(entry))
    }

    /// The first waiter, if the grant to the entry just ahead of it has to wake it: it fits as
    /// well, or must watch more than that entry from now on.
    pub(crate) fn woken_by_grant(&self, granted: usize) -> Option<usize> {
        let next = granted + 1;
        let entry = self.entries.get(next)?;
        let wakes = !entry.held && (self.fits(next) || self.watches_every_holder(next));
        wakes.then_some(next)
    }

    /// The entries that watched a removed entry.
    pub(crate) fn watchers(&self, gone: &Entry) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            !entry.held && (entry.watch == gone.slot || gone.held && entry.watch == EVERY_HOLDER)
        })
    }

    /// Whether a waiter may have `slot` open, to watch its current or an earlier owner.
    pub(crate) fn is_watched(&self, slot: Slot) -> bool {
        self.entries.iter().any(|entry| entry.watch == slot || entry.watch == EVERY_HOLDER)
    }

    /// The first waiter, if it may hold now.
    pub(crate) fn next_to_hold(&self) -> Option<usize> {
        let first = self.holders();
        (first < self.entries.len() && self.fits(first)).then_some(first)
    }

    /// The lowest slot from `from` on that no entry has.
    pub(crate) fn free_slot(&self, from: Slot) -> Slot {
        if self.entries.iter().all(|entry| entry.slot != from) {
            return from;
        }
        // Of n + 1 slots, n entries leave one free.
        let mut taken = vec![false; self.entries.len()];
        for after in self.entries.iter().filter_map(|entry| entry.slot.checked_sub(from)) {
            if let Some(taken) = taken.get_mut(usize::from(after)) {
                *taken = true;
            }
        }
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        from.saturating_add(u16::try_from(free).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use fencelock_core::Permits;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// A mode, most often the exclusive one.
    pub(crate) fn mode(kind: u8) -> Mode {
        match kind % 5 {
            0 | 1 => Mode::Exclusive,
            2 => Mode::Shared,
            3 => Mode::Permits(Permits::new(1, 3).unwrap()),
            _ => Mode::Permits(Permits::new(2, 3).unwrap()),
        }
    }

    /// A queue of a new lock.
    pub(crate) fn fresh() -> Queue {
        Queue::starting_after(0, 1000, false, 0)
    }

    proptest! {
        #[test]
        fn a_waiter_that_may_hold_is_woken_whatever_the_others_do(
            events in prop::collection::vec((0u8..10, any::<u8>(), any::<u8>()), 1..150),
        ) {
            let mut world = World::new();
            for (event, target, order) in events {
                world.happen(event, target);
                // Some wake-ups come late.
                if order % 3 > 0 {
                    world.settle(order);
                }
                world.check();
            }
            world.settle(0);
            world.check_no_waiter_that_could_hold_sleeps();
        }
    }

    /// A simulation of claims on a queue, with delayed wake-ups.
    struct World {
        queue: Queue,
        /// By ticket.
        claims: BTreeMap<u64, Watching>,
        woken: BTreeSet<u64>,
        last_exclusive_token: u64,
    }

    #[derive(Default)]
    struct Watching {
        dead: bool,
        /// The tickets of the claims whose pipes it has open.
        watches: Vec<u64>,
    }

    impl World {
        fn new() -> World {
            let (claims, woken) = (BTreeMap::new(), BTreeSet::new());
            World { queue: fresh(), claims, woken, last_exclusive_token: 0 }
        }

        fn happen(&mut self, event: u8, target: u8) {
            let len = self.queue.entries.len();
            let target = (len > 0).then(|| self.queue.entries[usize::from(target) % len.max(1)]);
            match (event, target) {
                (0..=4, _) if len < 20 => {
                    let at = self.queue.push(mode(event * 31 + len as u8), 0, 0);
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

        /// An attempt of a claim.
        fn step(&mut self, ticket: u64) {
            let Some(mut at) = self.queue.position(ticket) else { return };
            if self.queue.entries[at].held || self.claims[&ticket].dead {
                return;
            }
            loop {
                if self.queue.fits(at) {
                    let token = self.queue.grant(at, 0, 1);
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
                    self.queue.entries[at].watch = self.queue.watched_slot(at);
                    let watches = self.queue.entries[blockers].iter().map(|entry| entry.ticket);
                    self.claims.get_mut(&ticket).unwrap().watches = watches.collect();
                    return;
                };
                self.queue.entries.remove(dead);
                at -= 1;
            }
        }

        /// The wake-ups of a removal: of the watchers, and of the next waiter.
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

        /// Only the closing of its pipe wakes its watchers.
        fn die(&mut self, ticket: u64) {
            self.claims.get_mut(&ticket).unwrap().dead = true;
            let watches = |claim: &Watching| claim.watches.contains(&ticket);
            let woken = self.claims.iter().filter(|(_, claim)| watches(claim)).map(|(own, _)| *own);
            self.woken.extend(woken.collect::<Vec<_>>());
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
            assert!(entries.is_sorted_by_key(|entry| entry.ticket), "arrival order is kept");
            let modes: Vec<Mode> = entries[..holders].iter().map(|entry| entry.mode).collect();
            for at in 0..holders {
                assert!(modes[at].is_compatible_with(modes[..at].iter().copied()), "{modes:?}");
            }
            let slots: BTreeSet<Slot> = entries.iter().map(|entry| entry.slot).collect();
            assert_eq!(slots.len(), entries.len(), "a pipe has one owner");
        }

        fn check_no_waiter_that_could_hold_sleeps(&self) {
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
        assert_eq!((tickets, queue.token), (vec![4, 9], 7 + MOST_TOKENS - 1));
        let at = queue.push(Mode::Shared, 0, 0);
        assert_eq!(queue.entries[at].ticket, 10);
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
