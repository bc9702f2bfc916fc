//! The content of the tables, and what it must be at any time.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use uuid::Uuid;

use super::Verdict;
use super::bench::ensure;

/// A row of `claims`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) owner: Uuid,
    /// An exclusive claim that was handed the lock, which the lock's row says, has the state `g` and the end of
    /// that here.
    pub(crate) state: char,
    pub(crate) seq: i64,
    pub(crate) mode: char,
    pub(crate) n: i64,
    pub(crate) limit: i64,
    pub(crate) ttl: i64,
    pub(crate) process: String,
    pub(crate) tokens: i32,
    pub(crate) token: Option<i64>,
    pub(crate) until: i64,
    /// What the row itself has.
    own_until: i64,
}

/// A claim that holds, or was handed off to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) owner: Uuid,
    pub(crate) mode: char,
    pub(crate) n: i64,
    pub(crate) limit: i64,
    /// The tokens from `first` to `last`.
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) until: i64,
    pub(crate) confirmed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LockState {
    pub(crate) token: i64,
    tokens: i32,
    owner: Option<Uuid>,
    until: i64,
    pub(crate) crowd: bool,
    group: Option<char>,
    sum: i64,
    /// In the order of their arrival.
    pub(crate) claims: Vec<Queued>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) now: i64,
    pub(crate) locks: BTreeMap<Vec<u8>, LockState>,
    pub(crate) deadlines: BTreeMap<String, i64>,
}

pub(crate) const QUERIES: [&str; 3] = [
    "SELECT key, token, tokens, owner, until, crowd, grp, sum FROM locks",
    "SELECT key, owner, state, seq, mode, n, lim, ttl, proc, tokens, token, until FROM claims ORDER BY seq",
    "SELECT proc, deadline FROM processes",
];

impl State {
    /// Of the rows of [`QUERIES`]; an error names the broken invariant.
    pub(crate) fn of(now: i64, rows: &[Vec<Row>]) -> Result<State, String> {
        let mut state = State { now, ..State::default() };
        for row in &rows[0] {
            let lock = LockState {
                token: row.get(1),
                tokens: row.get(2),
                owner: row.get(3),
                until: row.get(4),
                crowd: row.get(5),
                group: row.get::<_, Option<i8>>(6).map(text),
                sum: row.get(7),
                claims: Vec::new(),
            };
            state.locks.insert(row.get(0), lock);
        }
        for row in &rows[1] {
            let key: Vec<u8> = row.get(0);
            let lock = state.locks.get_mut(&key).ok_or("a claim without a lock")?;
            let (owner, state, mode) = (row.get(1), text(row.get(2)), text(row.get(4)));
            ensure(mode != 'x' || matches!(state, 'w' | 'l'), || format!("an x that is {state}"))?;
            let is_handed_off = mode == 'x' && state == 'w' && lock.owner == Some(owner);
            lock.claims.push(Queued {
                owner,
                state: if is_handed_off { 'g' } else { state },
                seq: row.get(3),
                mode,
                n: row.get(5),
                limit: row.get(6),
                ttl: row.get(7),
                process: row.get(8),
                tokens: row.get(9),
                token: row.get(10),
                until: if is_handed_off { lock.until } else { row.get(11) },
                own_until: row.get(11),
            });
        }
        state.deadlines = rows[2].iter().map(|row| (row.get(0), row.get(1))).collect();
        state.locks.values().try_for_each(LockState::judge)?;
        Ok(state)
    }

    pub(crate) fn lock(&self, key: &[u8]) -> LockState {
        self.locks.get(key).cloned().unwrap_or_default()
    }

    /// Whether a claim's process must be taken for a live one.
    pub(crate) fn is_live(&self, claim: &Queued) -> bool {
        self.is_live_at(claim, self.now)
    }

    /// As of now, if nothing else has happened.
    pub(crate) fn is_live_at(&self, claim: &Queued, now: i64) -> bool {
        self.has_looked(claim, now) || (matches!(claim.state, 'w' | 'l') && claim.until >= now)
    }

    fn has_looked(&self, claim: &Queued, now: i64) -> bool {
        self.deadlines.get(&claim.process).is_some_and(|deadline| *deadline >= now)
    }

    /// Whether it did not take the lock in time: the next step has it wait again.
    pub(crate) fn is_late(&self, claim: &Queued) -> bool {
        claim.mode == 'x' && claim.state == 'g' && claim.until <= self.now
    }

    /// Whether `inspect` shows it as a waiter.
    pub(crate) fn is_waiter(&self, claim: &Queued) -> bool {
        let waits = matches!(claim.state, 'w' | 'l') || self.is_late(claim);
        waits && (claim.own_until >= self.now || self.has_looked(claim, self.now))
    }
}

impl LockState {
    pub(crate) fn claim(&self, owner: Uuid) -> Option<&Queued> {
        self.claims.iter().find(|claim| claim.owner == owner)
    }

    pub(crate) fn waits(&self, owner: Uuid) -> bool {
        self.claim(owner).is_some_and(|claim| claim.state == 'w')
    }

    /// In the order of their tokens, those that have ended included.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let mut grants = Vec::new();
        if let Some(owner) = self.owner {
            let (first, confirmed) =
                (self.token - i64::from(self.tokens) + 1, self.claim(owner).is_none());
            let (mode, n, limit, last, until) = ('x', 1, 1, self.token, self.until);
            grants.push(Grant { owner, mode, n, limit, first, last, until, confirmed });
        }
        for claim in self.claims.iter().filter(|claim| claim.mode != 'x') {
            if let ('g' | 'h', Some(last)) = (claim.state, claim.token) {
                let (owner, mode, n, limit) = (claim.owner, claim.mode, claim.n, claim.limit);
                let first = last - i64::from(claim.tokens) + 1;
                let (until, confirmed) = (claim.until, claim.state == 'h');
                grants.push(Grant { owner, mode, n, limit, first, last, until, confirmed });
            }
        }
        grants.sort_by_key(|grant| grant.last);
        grants
    }

    pub(crate) fn grant(&self, owner: Uuid) -> Option<Grant> {
        self.grants().into_iter().find(|grant| grant.owner == owner)
    }

    /// Whether the next in the queue could have the lock at `now`, as the rows say.
    pub(crate) fn is_free_for(&self, mode: char, n: i64, limit: i64, now: i64) -> bool {
        let is_held = self.owner.is_some() && self.until > now;
        let joins = |group| mode == group && (mode == 's' || self.sum + n <= limit);
        !is_held && self.group.is_none_or(joins)
    }

    fn judge(&self) -> Verdict {
        let members = self.claims.iter().filter(|c| c.mode != 'x' && matches!(c.state, 'g' | 'h'));
        let sum: i64 = members.clone().map(|claim| claim.n).sum();
        ensure(sum == self.sum, || format!("the sum is {}, the members make {sum}", self.sum))?;
        ensure(self.group.is_some() == (sum > 0), || format!("{:?} of {sum}", self.group))?;
        ensure(members.clone().all(|c| Some(c.mode) == self.group), || "a mixed group".into())?;
        ensure(self.group.is_none() || self.owner.is_none(), || "a writer in a group".into())?;
        ensure(self.crowd != self.claims.is_empty(), || format!("crowd is {}", self.crowd))?;
        let mut places = self.claims.iter().filter(|claim| claim.state != 'h').map(|c| c.seq);
        let first = places.next().unwrap_or_default();
        let is_sorted =
            places.try_fold(first, |last, next| (next > last).then_some(next)).is_some();
        ensure(is_sorted, || "two claims in one place".into())?;
        let mut tokens = self.claims.iter().filter_map(|claim| claim.token);
        ensure(tokens.all(|token| token <= self.token), || {
            "the lock's token is not the last".into()
        })
    }

    /// Nothing that anything waits for.
    pub(crate) fn is_idle(&self, now: i64) -> bool {
        self.claims.is_empty() && (self.owner.is_none() || self.until <= now)
    }
}

fn text(char: i8) -> char {
    char::from(u8::try_from(char).unwrap())
}
