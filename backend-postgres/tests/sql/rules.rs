//! What one call may do to the locks, regardless of their history: judged by the rows before and
//! after it.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Verdict;
use super::bench::{Call, Reply, Step, ensure};
use super::claim::{Claim, SECOND};
use super::session::Note;
use super::state::{Grant, LockState, Queued, State};

/// How long a hand-off waits for its confirmation.
const CONFIRM: i64 = 2 * SECOND;
/// The limit of one hand-off.
const MOST: usize = 64;

/// The open transaction of a user that has checked a token.
#[derive(Debug, Clone)]
pub(crate) struct Guarded {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Uuid,
    pub(crate) mode: char,
}

/// One call and its effects.
pub(crate) struct Effects<'a> {
    pub(crate) call: &'a Call,
    pub(crate) reply: &'a Reply,
    pub(crate) notes: &'a [Note],
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    pub(crate) guarded: Option<&'a Guarded>,
    /// The largest token so far of each lock.
    pub(crate) highest: &'a BTreeMap<Vec<u8>, i64>,
}

impl Effects<'_> {
    pub(crate) fn judge(&self) -> Verdict {
        let mut expected_notes = Vec::new();
        let keys: Vec<_> = self.before.locks.keys().chain(self.after.locks.keys()).collect();
        for key in keys.iter().collect::<std::collections::BTreeSet<_>>() {
            self.judge_lock(key, &mut expected_notes)?;
        }
        if let Call::Evict { key, id } = self.call
            && self.reply.number == 1
        {
            expected_notes.push(self.victim(key, id)?);
        }
        let mut notes: Vec<_> = self.notes.iter().map(|(_, owner)| owner.clone()).collect();
        let mut expected: Vec<_> = expected_notes.iter().map(ToString::to_string).collect();
        notes.sort();
        expected.sort();
        ensure(notes == expected, || format!("notified {notes:?}, not {expected:?}"))?;
        super::replies::judge(self)
    }

    fn judge_lock(&self, key: &[u8], notes: &mut Vec<Uuid>) -> Verdict {
        let (before, after) = (self.before.lock(key), self.after.lock(key));
        let old = before.grants();
        let is_old =
            |grant: &Grant| old.iter().any(|o| o.owner == grant.owner && o.last == grant.last);
        let new: Vec<_> = after.grants().into_iter().filter(|grant| !is_old(grant)).collect();
        self.others_keep_the_lock(&old, &after)?;
        self.tokens_rise(key, (&before, &after), &new)?;
        self.grants_fit(key, &new, &after.grants())?;
        self.grants_are_in_order(&new, &before, &after)?;
        self.grants_last_as_long_as_they_should(&new, &after)?;
        self.waiters_keep_their_places(&before, &after)?;
        self.no_waiter_is_stuck(key, &after, new.len())?;
        // A later step of the same batch may confirm what an earlier one handed off.
        let in_batch = |owner: Uuid| {
            matches!(self.call, Call::Batch(_))
                && self.notes.iter().any(|(_, o)| *o == owner.to_string())
        };
        let notified = new.iter().filter(|grant| !grant.confirmed || in_batch(grant.owner));
        notes.extend(notified.map(|grant| grant.owner));
        Ok(())
    }

    /// A claim's own call changes it.
    pub(crate) fn is_own(&self, owner: Uuid) -> bool {
        match self.call {
            Call::Attempt { claim, .. } | Call::Release(claim) | Call::Downgrade(claim, _) => {
                claim.owner == owner
            }
            Call::Renew(claims, _) => claims.iter().any(|claim| claim.owner == owner),
            Call::Look { .. } => false,
            Call::Evict { key, id } => self.victim(key, id) == Ok(owner),
            Call::Batch(steps) => steps.iter().any(|step| match step {
                Step::Attempt { claim, .. } | Step::Release(claim) => claim.owner == owner,
            }),
        }
    }

    fn victim(&self, key: &[u8], id: &str) -> Result<Uuid, String> {
        let lock = self.before.lock(key);
        let holds = |grant: &&Grant| id == format!("h{}", grant.first);
        if let Some(grant) = lock.grants().iter().find(holds) {
            return Ok(grant.owner);
        }
        let waits = |it: &&Queued| matches!(it.state, 'w' | 'l') || self.before.is_late(it);
        let mut waiting = lock.claims.iter().filter(waits);
        let found = waiting.find(|claim| id == format!("w{}", claim.seq));
        found.map(|claim| claim.owner).ok_or_else(|| format!("{id} is not there"))
    }

    fn is_guarded(&self, key: &[u8]) -> bool {
        self.guarded.is_some_and(|guarded| guarded.key == key)
    }

    /// A holder is removed only when its lease has ended or by its own call, and no other moves the
    /// end.
    fn others_keep_the_lock(&self, old: &[Grant], after: &LockState) -> Verdict {
        for grant in old {
            let new = after.grant(grant.owner);
            let is_counted = self.guarded.is_some_and(|g| g.owner == grant.owner && g.mode != 'x');
            if is_counted && grant.mode != 'x' {
                ensure(new.is_some(), || format!("{grant:?} is gone during its transaction"))?;
            }
            if self.is_own(grant.owner) || grant.until <= self.before.now {
                continue;
            }
            ensure(new.as_ref() == Some(grant), || format!("{grant:?} became {new:?}"))?;
        }
        Ok(())
    }

    fn tokens_rise(
        &self,
        key: &[u8],
        (before, after): (&LockState, &LockState),
        new: &[Grant],
    ) -> Verdict {
        let highest = self.highest.get(key).copied().unwrap_or(0);
        let mut last = highest;
        for grant in new {
            ensure(grant.first > last, || format!("the token {} after {last}", grant.first))?;
            last = grant.last;
        }
        // The clock stands: tokens that were reserved and not used keep the next ones above it.
        let expected = new.last().map_or(before.token, |grant| grant.last);
        ensure(after.token == expected, || format!("{} remembered of {expected}", after.token))?;
        ensure(
            new.first().is_none_or(|grant| grant.first == self.after.now.max(highest + 1)),
            || format!("the token is neither the time nor the next of {highest}: {new:?}"),
        )
    }

    fn grants_fit(&self, key: &[u8], new: &[Grant], all: &[Grant]) -> Verdict {
        for grant in new {
            let earlier = |other: &&Grant| other.last < grant.last;
            let held = |other: &&Grant| other.until > self.after.now || self.is_guarded(key);
            let mut sum = 0;
            for other in all.iter().filter(earlier).filter(held) {
                let fits = grant.mode != 'x' && grant.mode == other.mode;
                ensure(fits, || format!("{grant:?} was granted beside {other:?}"))?;
                sum += other.n;
            }
            ensure(grant.mode != 'p' || sum + grant.n <= grant.limit, || {
                format!("{grant:?} was granted after {sum} permits")
            })?;
            if let Some(guarded) = self.guarded.filter(|guarded| guarded.key == key) {
                let fits = guarded.mode != 'x' && guarded.mode == grant.mode;
                ensure(fits, || {
                    format!("{grant:?} was granted during a transaction: {guarded:?}")
                })?;
            }
        }
        Ok(())
    }

    fn grants_are_in_order(&self, new: &[Grant], before: &LockState, after: &LockState) -> Verdict {
        for grant in new {
            let place = before.claim(grant.owner).map_or(i64::MAX, |claim| claim.seq);
            // Not a dead one: it may be removed, and queue again in the same batch, and in the same place if the
            // clock has fallen.
            let overtaken = |c: &&Queued| {
                let waited = before
                    .claim(c.owner)
                    .filter(|old| old.state == 'w' && self.before.is_live_at(old, self.after.now));
                c.state == 'w' && c.seq < place && waited.is_some_and(|old| old.seq == c.seq)
            };
            let overtaken = after.claims.iter().find(overtaken);
            ensure(overtaken.is_none(), || format!("{grant:?} overtook {overtaken:?}"))?;
        }
        // Within one hand-off: in the order of the tokens. One that was taken for dead may have
        // come back.
        let queued = new.iter().filter_map(|grant| before.claim(grant.owner));
        let places: Vec<_> =
            queued.filter(|c| c.state == 'w' && self.before.is_live(c)).map(|c| c.seq).collect();
        ensure(places.is_sorted(), || format!("granted in the order of {places:?}"))
    }

    fn grants_last_as_long_as_they_should(&self, new: &[Grant], after: &LockState) -> Verdict {
        for grant in new.iter().filter(|grant| !grant.confirmed) {
            let ttl = after.claim(grant.owner).map_or(0, |claim| claim.ttl);
            let expected = self.after.now + CONFIRM.min(ttl);
            ensure(grant.until == expected, || format!("{grant:?} should end at {expected}"))?;
        }
        Ok(())
    }

    fn waiters_keep_their_places(&self, before: &LockState, after: &LockState) -> Verdict {
        for claim in before.claims.iter().filter(|claim| claim.state != 'h') {
            let new = after.claim(claim.owner);
            if let Some(new) = new {
                // One that was taken for dead may have come back.
                let is_back = self.is_own(claim.owner) && !self.before.is_live(claim);
                ensure(new.seq == claim.seq || is_back, || {
                    format!("{claim:?} has the place {}", new.seq)
                })?;
                let is_passed_over = claim.state == 'g' && new.state == 'l';
                ensure(!is_passed_over || claim.until <= self.before.now, || {
                    format!("{claim:?} was passed over")
                })?;
            } else if !self.is_own(claim.owner) {
                ensure(!self.before.is_live(claim), || format!("{claim:?} lost its place"))?;
            }
        }
        Ok(())
    }

    /// After a step that hands off, the first in the queue has to wait for something.
    fn no_waiter_is_stuck(&self, key: &[u8], after: &LockState, granted: usize) -> Verdict {
        let hands_off = match self.call {
            Call::Attempt { claim, .. } => claim.key == key && after.waits(claim.owner),
            Call::Release(claim) => claim.key == key && self.reply.number == 1,
            Call::Downgrade(claim, _) => {
                let was_writer = |grant: Grant| grant.mode == 'x';
                let was_writer = self.before.lock(key).grant(claim.owner).is_some_and(was_writer);
                claim.key == key && self.reply.number == 1 && was_writer
            }
            Call::Look { keys, .. } => keys.iter().any(|looked| looked == key),
            Call::Evict { key: evicted, .. } => evicted == key && self.reply.number == 1,
            Call::Renew(..) | Call::Batch(_) => false,
        };
        if !hands_off || granted >= MOST || self.is_guarded(key) {
            return Ok(());
        }
        let first = after.claims.iter().find(|claim| claim.state == 'w');
        let stuck = first.filter(|c| after.is_free_for(c.mode, c.n, c.limit, self.after.now));
        ensure(stuck.is_none(), || format!("{stuck:?} could have the lock"))
    }

    /// The state of a claim's lock before and after.
    pub(crate) fn lock(&self, claim: &Claim) -> (LockState, LockState) {
        (self.before.lock(&claim.key), self.after.lock(&claim.key))
    }
}
