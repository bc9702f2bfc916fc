//! What one step may do to a lock, regardless of its history: judged by the keys before and after it.
//!
//! The rules expect no particular run, so they hold under any order of steps, lost messages and foreign
//! clients. Times are compared as windows: the step ran somewhere between its two states.

use super::Verdict;
use super::bench::Op;
use super::claim::{Claim, Mode};
use super::client::{Push, Value};
use super::state::{HOUR, Holder, SLACK, State, Waiter, ensure};

/// One step and its effects.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) op: Op,
    /// The claim of the step; for a check only its client matters.
    pub(crate) me: &'a Claim,
    pub(crate) samples: &'a [String],
    pub(crate) before: &'a State,
    pub(crate) after: &'a State,
    pub(crate) reply: &'a Value,
    pub(crate) pushes: &'a [Push],
    /// The largest token so far of the lock.
    pub(crate) highest: i64,
}

pub(crate) const SILENCE: i64 = 3000;
pub(crate) const CLAIM: i64 = 2000;
const QUEUE: i64 = 10_000;
/// The interval at which the first waiter checks a lock of another program, whose release notifies
/// no waiter.
pub(crate) const FOREIGN: i64 = 0;

impl Step<'_> {
    pub(crate) fn judge(&self) -> Verdict {
        let mut granted = self.new_holders()?;
        granted.sort_by_key(|(token, _)| *token);
        self.others_keep_the_lock()?;
        self.token_rises(&granted)?;
        self.grants_fit(&granted)?;
        self.grants_are_in_order(&granted)?;
        self.grants_last_as_long_as_they_should(&granted)?;
        self.pushes_tell_of_grants(&granted)?;
        self.waiters_keep_their_places(&granted)?;
        self.deadlines_are_their_own()?;
        self.marks_stay(&granted)?;
        self.nobody_is_stuck(&granted)?;
        self.queue_goes_with_the_last(&granted)?;
        super::replies::judge(self, &granted)
    }

    pub(crate) fn is_attempt(&self) -> bool {
        matches!(self.op, Op::Queue | Op::Try)
    }

    pub(crate) fn is_release(&self) -> bool {
        matches!(self.op, Op::Release | Op::Evict)
    }

    pub(crate) fn is_me(&self, claim: &Claim) -> bool {
        self.op != Op::Check && claim.text == self.me.text
    }

    pub(crate) fn was_there(&self) -> bool {
        self.is_release() && self.reply.int() == Some(1)
    }

    /// The token of a holder, in the state after the step.
    pub(crate) fn token(&self, holder: &Holder) -> Option<i64> {
        holder.token.or(self.after.last_token)
    }

    fn new_holders(&self) -> Result<Vec<(i64, &Holder)>, String> {
        let mut new = Vec::new();
        for (text, holder) in &self.after.holders {
            let token = self.token(holder);
            let is_new = match self.before.holders.get(text) {
                None => true,
                // It may have expired and been granted again; if the token was lost, it may have been
                // confirmed, and got another one.
                Some(old) if old.token.is_some() => old.token != holder.token,
                Some(old) => {
                    let (before, now) = (self.before.last_token, self.after.now());
                    old.expiry <= now && before.is_some() && before != token
                }
            };
            if is_new {
                let token = token.ok_or_else(|| format!("{text} was granted without a token"))?;
                new.push((token, holder));
            }
        }
        let may_grant = self.op != Op::Renew && self.reply.error().is_none();
        ensure(new.is_empty() || may_grant, || format!("granted by {:?}: {new:?}", self.op))?;
        Ok(new)
    }

    /// A holder is removed only when it expired or released, and no other claim moves its expiry.
    fn others_keep_the_lock(&self) -> Verdict {
        for (text, old) in &self.before.holders {
            if old.expiry <= self.after.now() || (self.is_me(&old.claim) && self.op != Op::Renew) {
                continue;
            }
            let Some(new) = self.after.holders.get(text) else {
                return Err(format!("{text} lost the lock"));
            };
            ensure(old.token == new.token, || format!("{text} has another token"))?;
            let is_kept = (old.expiry - new.expiry).abs() < SLACK;
            ensure(is_kept || self.is_me(&old.claim), || format!("{text} ends another time"))?;
        }
        let kept = self.before.foreign.is_none() || self.before.foreign == self.after.foreign;
        let is_mine = self.before.foreign.as_deref() == Some(&self.me.text);
        let ends = self.before.hold_ends_before(self.after);
        ensure(kept || is_mine || ends, || "another program lost the lock".into())
    }

    fn token_rises(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let (before, after) = (self.before.last_token, self.after.last_token);
        ensure(after >= before, || format!("the token fell from {before:?} to {after:?}"))?;
        if let Some((last, _)) = granted.last() {
            ensure(after == Some(*last), || format!("{last} granted, {after:?} remembered"))?;
        } else if before.is_some() {
            ensure(before == after, || "a token for nothing".into())?;
        }
        ensure(
            before.is_some() || after.is_none() || self.runs_for(self.after.token_ttl, HOUR),
            || format!("a new token's key ends in {}", self.after.token_ttl),
        )?;
        let mut tokens: Vec<_> = granted.iter().map(|(token, _)| *token).collect();
        if before.is_none() && tokens.is_empty() {
            // A holder whose token was deleted gets another one, not smaller.
            tokens.extend(after);
        }
        let rise = tokens.first().is_none_or(|first| *first > self.highest)
            && tokens.windows(2).all(|pair| pair[0] < pair[1]);
        ensure(rise, || format!("{tokens:?} after {}", self.highest))
    }

    fn grants_fit(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let is_new = |text: &str| granted.iter().any(|(_, new)| new.claim.text == text);
        let old = self.after.holders.values().filter(|holder| !is_new(&holder.claim.text));
        let mut sum: i64 = old.map(|holder| holder.claim.mode.share()).sum();
        for (_, holder) in granted {
            let fits = match holder.claim.mode {
                Mode::Exclusive => sum == 0,
                Mode::Shared => true,
                Mode::Permits { n, limit } => sum + n <= limit,
            };
            ensure(fits, || format!("{} granted on top of {sum}", holder.claim.text))?;
            sum += holder.claim.mode.share();
        }
        let mut groups = self.after.holders.values().map(|holder| holder.claim.mode.group());
        let first = groups.next();
        ensure(groups.all(|group| Some(group) == first && group != "x"), || "mixed".into())
    }

    /// Waiters before a granted one are granted too, dead, or leave in this step.
    fn grants_are_in_order(&self, granted: &[(i64, &Holder)]) -> Verdict {
        for (token, holder) in granted {
            let text = &holder.claim.text;
            let place = self.before.waits(text).or_else(|| self.before.is_granted(text));
            let place = place.unwrap_or(i64::MAX);
            for waiter in self.before.waiting.iter().filter(|waiter| waiter.arrival < place) {
                let other = granted.iter().find(|(_, new)| new.claim.text == waiter.claim.text);
                let is_gone = self.after.waits(&waiter.claim.text).is_none();
                let in_order = match other {
                    Some((earlier, _)) => earlier < token,
                    None => is_gone && (self.may_be_dead(waiter) || self.is_me(&waiter.claim)),
                };
                ensure(in_order, || format!("{text} overtook {}", waiter.claim.text))?;
            }
        }
        Ok(())
    }

    fn grants_last_as_long_as_they_should(&self, granted: &[(i64, &Holder)]) -> Verdict {
        for (_, Holder { claim, expiry, .. }) in granted {
            let own = self.is_attempt() && self.is_me(claim);
            let ttl = if own { claim.ttl } else { claim.ttl.min(CLAIM) };
            // Nor longer than its client's deadline, before or after this step.
            let is_right = |state: &State| {
                let known = state.deadlines.get(&claim.process);
                let known = known.filter(|_| !own).map_or(ttl, |end| end - self.after.now());
                self.is_from_now(*expiry, ttl.min(known))
            };
            ensure(is_right(self.before) || is_right(self.after), || {
                format!("{} until {expiry}", claim.text)
            })?;
            let text = &claim.text;
            let place = self.after.is_granted(text);
            let is_waiting = self.after.waits(text).is_some();
            let expected = if own { None } else { self.before.waits(text) };
            ensure(place == expected && !is_waiting && (own || place.is_some()), || {
                format!("{text} has the place {place:?} after its grant, not {expected:?}")
            })?;
        }
        Ok(())
    }

    fn pushes_tell_of_grants(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let mut expected: Vec<_> = granted
            .iter()
            .filter(|(_, holder)| !(self.is_attempt() && self.is_me(&holder.claim)))
            .map(|(token, Holder { claim, .. })| Push {
                channel: claim.process.clone(),
                message: claim.granted(*token),
            })
            .collect();
        // By each repeat: before it is known whether it is there.
        if self.op == Op::Evict && Claim::parse(&self.me.text).is_some() {
            let notice = Push { channel: self.me.process.clone(), message: self.me.granted(0) };
            let times = self.pushes.iter().filter(|push| **push == notice).count();
            expected.extend(std::iter::repeat_n(notice, times.max(1)));
        }
        let mut pushes = self.pushes.to_vec();
        pushes.sort();
        expected.sort();
        ensure(pushes == expected, || format!("pushed {pushes:?} instead of {expected:?}"))
    }

    fn waiters_keep_their_places(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let is_new = |text: &str| granted.iter().any(|(_, new)| new.claim.text == text);
        for waiter in &self.before.waiting {
            let text = &waiter.claim.text;
            let may_leave = self.is_release() && self.is_me(&waiter.claim);
            let kept = match self.after.waits(text) {
                Some(place) => place == waiter.arrival && !may_leave,
                None => is_new(text) || may_leave || self.may_be_dead(waiter),
            };
            ensure(kept, || format!("{text} lost its place"))?;
        }
        for waiter in &self.before.granted {
            let text = &waiter.claim.text;
            let mine = self.is_me(&waiter.claim) && (self.is_attempt() || self.is_release());
            let passed_over = self.op == Op::Check && self.may_be_dead(waiter);
            let kept = match (self.after.is_granted(text), self.after.waits(text)) {
                (Some(place), None) => place == waiter.arrival,
                (None, Some(place)) => mine && self.op == Op::Queue && place == waiter.arrival,
                (None, None) => mine || passed_over,
                (Some(_), Some(_)) => false,
            };
            ensure(kept, || format!("{text} lost its granted place"))?;
        }
        let known = |text: &str| {
            self.before.waits(text).is_some() || self.before.is_granted(text).is_some()
        };
        let last = self.before.waiting.last().map_or(0, |waiter| waiter.arrival);
        for waiter in self.after.waiting.iter().filter(|waiter| !known(&waiter.claim.text)) {
            let at_the_end =
                waiter.arrival > last && waiter.arrival <= self.after.now_us.max(last + 1);
            let may_enter = self.op == Op::Queue && self.is_me(&waiter.claim);
            ensure(at_the_end && may_enter && waiter.arrival >= self.before.now_us, || {
                format!("{} came in at {}", waiter.claim.text, waiter.arrival)
            })?;
        }
        let stray = self.after.granted.iter().find(|waiter| !known(&waiter.claim.text));
        ensure(stray.is_none(), || format!("granted from nowhere: {stray:?}"))
    }

    fn deadlines_are_their_own(&self) -> Verdict {
        let own = &self.me.process;
        let waits = self.op == Op::Queue && !self.reply.list().is_empty();
        for (process, deadline) in &self.after.deadlines {
            let old = self.before.deadlines.get(process);
            let refreshed = process == own && (waits || (self.op == Op::Check && old.is_some()));
            let right = if refreshed {
                self.is_from_now(*deadline, SILENCE)
            } else {
                // An attempt that queues and is granted at once sets it as well.
                old == Some(deadline)
                    || (process == own
                        && self.op == Op::Queue
                        && self.is_from_now(*deadline, SILENCE))
            };
            ensure(right, || format!("{process}'s deadline went from {old:?} to {deadline}"))?;
            let long = self.after.queue_ttl.is_some_and(|ttl| self.runs_for(ttl, QUEUE));
            ensure(!refreshed || long, || format!("the queue ends: {:?}", self.after.queue_ttl))?;
        }
        ensure(!waits || self.after.deadlines.contains_key(own), || "waits for dead".into())?;
        if self.after.queue_ttl.is_some() {
            for (process, deadline) in &self.before.deadlines {
                let is_over = *deadline < self.after.now();
                ensure(is_over || self.after.deadlines.contains_key(process), || {
                    format!("{process} is no longer known")
                })?;
            }
        }
        Ok(())
    }

    /// The marks must show that there may be waiters.
    fn marks_stay(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let (before, after) = (self.before.marks, self.after.marks);
        let queued = !self.after.waiting.is_empty() || !self.after.granted.is_empty();
        let exclusive = |holder: &&Holder| holder.claim.mode == Mode::Exclusive;
        let is_new = granted.iter().map(|(_, holder)| *holder).any(|holder| exclusive(&holder));
        let stays = self.after.holders.keys().any(|text| self.before.holders.contains_key(text));
        let holder_marked = after.0 || !(is_new || (before.0 && stays));
        ensure(!(queued && before.1) || (after.1 && holder_marked), || {
            format!("the marks were {before:?}, they are {after:?}")
        })
    }

    /// The first in the queue is live, and not granted only while there is a holder.
    fn nobody_is_stuck(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let busy = self.is_attempt() && self.reply.int().unwrap_or(0) == 0;
        let Some(first) = self.after.waiting.first() else { return Ok(()) };
        let text = &first.claim.text;
        let waits = self.op == Op::Check || !self.reply.list().is_empty();
        let is_held =
            self.after.holders.values().any(|holder| holder.claim.mode == Mode::Exclusive);
        ensure(!waits || (self.after.marks.1 && (self.after.marks.0 || !is_held)), || {
            format!("{text} waits without marks: {:?}", self.after.marks)
        })?;
        if !(self.op == Op::Check || busy || self.was_there()) || self.reply.error().is_some() {
            return Ok(());
        }
        let deadline = self.after.deadlines.get(&first.claim.process);
        // Waiters after an exclusive grant are left to the next step.
        let served = granted.iter().any(|(_, new)| new.claim.mode == Mode::Exclusive);
        ensure(served || deadline.is_some_and(|end| *end >= self.before.now()), || {
            format!("{text} is first, but dead")
        })?;
        let is_free = self.is_free_for(&first.claim);
        let alive = deadline.is_some_and(|end| *end >= self.after.now());
        ensure(!(is_free && alive), || format!("{text} waits for a free lock"))
    }

    fn queue_goes_with_the_last(&self, granted: &[(i64, &Holder)]) -> Verdict {
        let text = &self.me.text;
        let left = self.before.waits(text).or(self.before.is_granted(text)).is_some();
        let own = granted.iter().any(|(_, holder)| self.is_me(&holder.claim));
        let attempted = self.is_attempt() && (left || own || self.reply.int() == Some(0));
        if self.op == Op::Check || self.was_there() || attempted {
            let is_empty = self.after.waiting.is_empty() && self.after.granted.is_empty();
            ensure(!is_empty || self.after.queue_ttl.is_none(), || {
                "an empty queue is left".into()
            })?;
        }
        Ok(())
    }

    /// Whether `claim` could certainly have been granted the lock without the queue.
    pub(crate) fn is_free_for(&self, claim: &Claim) -> bool {
        self.after.is_free_for(claim, self.before.now())
            && !self.before.hold_ends_before(self.after)
    }

    fn may_be_dead(&self, waiter: &Waiter) -> bool {
        let deadline = self.before.deadlines.get(&waiter.claim.process);
        deadline.is_none_or(|end| *end < self.after.now())
            || self.before.queue_ttl.is_none_or(|ttl| self.before.now() + ttl <= self.after.now())
    }

    /// Whether a key with `ttl` ms left after this step was given at least `ms` by it.
    fn runs_for(&self, ttl: i64, ms: i64) -> bool {
        self.after.now() + ttl >= self.before.now() + ms - SLACK
    }

    /// Whether `end` is `ms` after this step.
    pub(crate) fn is_from_now(&self, end: i64, ms: i64) -> bool {
        (self.before.now() + ms - SLACK..=self.after.now() + ms + SLACK).contains(&end)
    }
}
