//! The content of one lock's keys, and its invariants.

use std::collections::BTreeMap;

use super::Verdict;
use super::claim::Claim;
use super::client::Value;

/// In ms: how far a TTL of the server can be from the time that is read with it.
pub(crate) const SLACK: i64 = 60;
pub(crate) const DAY: i64 = 86_400_000;
pub(crate) const HOUR: i64 = 3_600_000;

/// Reads the three keys of a lock at one moment.
pub(crate) const READ: &str = "
local function read(key)
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'string' then content = {redis.call('GET', key)}
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1) end
  return {kind, content, redis.call('PTTL', key)}
end
local time = redis.call('TIME')
return {time[1] * 1000000 + time[2], read(KEYS[1]), read(KEYS[2]), read(KEYS[3])}";

#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) claim: Claim,
    /// In ms since the epoch.
    pub(crate) expiry: i64,
    /// Only groups store it with the holder.
    pub(crate) token: Option<i64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    pub(crate) claim: Claim,
    /// In us since the epoch.
    pub(crate) arrival: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) now_us: i64,
    /// When the lock's key expires, in ms since the epoch; never, if it has no TTL.
    lock_end: i64,
    pub(crate) holders: BTreeMap<String, Holder>,
    /// The value of another program.
    pub(crate) foreign: Option<String>,
    /// In the order of their arrival.
    pub(crate) waiting: Vec<Waiter>,
    /// Granted, not confirmed.
    pub(crate) granted: Vec<Waiter>,
    /// The deadline of each client, in ms.
    pub(crate) deadlines: BTreeMap<String, i64>,
    /// In ms.
    pub(crate) queue_ttl: Option<i64>,
    pub(crate) last_token: Option<i64>,
    /// Whether an exclusive holder, and the token, are marked.
    pub(crate) marks: (bool, bool),
    /// In ms.
    pub(crate) token_ttl: i64,
}

impl State {
    /// Checks the invariants; an error names the broken one.
    pub(crate) fn of(answer: &Value) -> Result<State, String> {
        let [now_us, lock, queue, token] = answer.list() else {
            return Err(format!("the keys are unreadable: {answer:?}"));
        };
        let mut state = State {
            now_us: now_us.int().ok_or("no time")?,
            lock_end: i64::MAX,
            holders: BTreeMap::new(),
            foreign: None,
            waiting: Vec::new(),
            granted: Vec::new(),
            deadlines: BTreeMap::new(),
            queue_ttl: None,
            last_token: None,
            marks: (false, false),
            token_ttl: 0,
        };
        state.read_lock(&Key::of(lock)?)?;
        state.read_queue(&Key::of(queue)?)?;
        state.read_token(&Key::of(token)?)?;
        Ok(state)
    }

    /// In ms.
    pub(crate) fn now(&self) -> i64 {
        self.now_us / 1000
    }

    pub(crate) fn waits(&self, text: &str) -> Option<i64> {
        self.waiting.iter().find(|waiter| waiter.claim.text == text).map(|waiter| waiter.arrival)
    }

    pub(crate) fn is_granted(&self, text: &str) -> Option<i64> {
        self.granted.iter().find(|waiter| waiter.claim.text == text).map(|waiter| waiter.arrival)
    }

    /// Whether `claim` could have the lock, as of a time in ms, without waiters.
    pub(crate) fn is_free_for(&self, claim: &Claim, now: i64) -> bool {
        // The server itself expires a string, up to 1 ms later than a script would.
        let holds = |holder: &&Holder| holder.token.is_none() || holder.expiry > now;
        let mut others = self.holders.values().filter(holds).peekable();
        if self.foreign.is_some() {
            return false;
        }
        let Some(first) = others.peek() else { return true };
        use super::claim::Mode::{Exclusive, Permits, Shared};
        match (claim.mode, first.claim.mode) {
            (Shared, Shared) => true,
            (Permits { n, limit }, Permits { .. }) => {
                n + others.map(|holder| holder.claim.mode.share()).sum::<i64>() <= limit
            }
            (Exclusive | Shared | Permits { .. }, _) => false,
        }
    }

    /// Whether a holder may expire after this state and before `later`.
    pub(crate) fn hold_ends_before(&self, later: &State) -> bool {
        let ends = self.holders.values().map(|holder| holder.expiry).chain([self.lock_end]);
        ends.into_iter().any(|end| self.is_between(end, later))
    }

    /// Whether anything may expire after this state and before `later`.
    pub(crate) fn ends_before(&self, later: &State) -> bool {
        let queue = self.queue_ttl.map(|ttl| ttl + self.now());
        let mut ends = self.deadlines.values().copied().chain(queue);
        self.hold_ends_before(later) || ends.any(|end| self.is_between(end, later))
    }

    /// Equal times on the server can differ by 1 ms.
    fn is_between(&self, end: i64, later: &State) -> bool {
        (self.now() - 1..=later.now() + 1).contains(&end)
    }

    fn read_lock(&mut self, key: &Key) -> Verdict {
        let expiry = self.now() + key.ttl;
        if key.ttl >= 0 {
            self.lock_end = expiry;
        }
        match key.kind.as_str() {
            "none" => {}
            // A newline marks a holder when there are waiters.
            "string" => match Claim::parse(key.content[0].trim_end_matches('\n')) {
                Some(claim) => {
                    self.marks.0 = key.content[0].ends_with('\n');
                    ensure(key.ttl >= 0, || "the lock's key has no TTL".into())?;
                    ensure(claim.mode.group() == "x", || format!("{} alone", claim.text))?;
                    let text = claim.text.clone();
                    self.holders.insert(text, Holder { claim, expiry, token: None });
                }
                None => self.foreign = Some(key.content[0].clone()),
            },
            "zset" => {
                ensure(key.ttl >= 0, || "the group's key has no TTL".into())?;
                self.read_group(&key.members()?)?;
                let last = self.holders.values().map(|holder| holder.expiry).max();
                ensure(last.is_some_and(|last| (last - expiry).abs() < SLACK), || {
                    format!("the group's key ends at {expiry}, its last member at {last:?}")
                })?;
            }
            other => return Err(format!("the lock's key is a {other}")),
        }
        Ok(())
    }

    fn read_group(&mut self, members: &[(String, i64)]) -> Verdict {
        let mut sums = BTreeMap::new();
        let mut tokens = BTreeMap::new();
        for (member, score) in members {
            if let Some(group) = member.strip_prefix('=') {
                sums.insert(group.to_owned(), -score);
            } else if let Some(owner) = member.strip_prefix('#') {
                tokens.insert(owner.to_owned(), *score);
            } else {
                let claim = Claim::parse(member).ok_or_else(|| format!("{member} in a group"))?;
                let holder = Holder { claim, expiry: *score, token: None };
                self.holders.insert(member.clone(), holder);
            }
        }
        for holder in self.holders.values_mut() {
            holder.token = tokens.remove(&holder.claim.owner);
            ensure(holder.token.is_some(), || format!("{} has no token", holder.claim.text))?;
        }
        ensure(tokens.is_empty(), || format!("tokens without a holder: {tokens:?}"))?;
        let mut expected = BTreeMap::new();
        for holder in self.holders.values() {
            let mode = holder.claim.mode;
            *expected.entry(mode.group().to_owned()).or_insert(0) += mode.share();
        }
        ensure(sums == expected && sums.len() == 1 && !sums.contains_key("x"), || {
            format!("the sums are {sums:?}, the members make {expected:?}")
        })
    }

    fn read_queue(&mut self, key: &Key) -> Verdict {
        if key.kind == "none" {
            return Ok(());
        }
        ensure(key.kind == "zset", || format!("the queue is a {}", key.kind))?;
        ensure((0..=10_000).contains(&key.ttl), || format!("the queue's TTL is {}", key.ttl))?;
        self.queue_ttl = Some(key.ttl);
        for (member, score) in key.members()? {
            if let Some(process) = member.strip_prefix('@') {
                self.deadlines.insert(process.into(), score);
                continue;
            }
            let claim = Claim::parse(&member).ok_or_else(|| format!("{member} in the queue"))?;
            let list = if score < 0 { &mut self.granted } else { &mut self.waiting };
            list.push(Waiter { claim, arrival: score.abs() });
        }
        Ok(())
    }

    fn read_token(&mut self, key: &Key) -> Verdict {
        if key.kind == "none" {
            return Ok(());
        }
        // Marked when there may be waiters; there may have been no token yet.
        let token = key.content.first().and_then(|text| text.trim_end_matches('q').parse().ok());
        self.marks.1 = key.content.first().is_some_and(|text| text.ends_with('q'));
        let token: i64 = token.ok_or_else(|| format!("no token: {key:?}"))?;
        self.last_token = (token > 0).then_some(token);
        self.token_ttl = key.ttl;
        ensure((1..=DAY).contains(&key.ttl), || format!("the token's TTL is {}", key.ttl))
    }
}

#[derive(Debug)]
struct Key {
    kind: String,
    content: Vec<String>,
    ttl: i64,
}

impl Key {
    fn of(value: &Value) -> Result<Key, String> {
        let [Value::Text(kind), content, Value::Int(ttl)] = value.list() else {
            return Err(format!("no key: {value:?}"));
        };
        let content = content.texts().into_iter().map(Into::into).collect();
        Ok(Key { kind: kind.clone(), content, ttl: *ttl })
    }

    fn members(&self) -> Result<Vec<(String, i64)>, String> {
        let pairs = self.content.chunks(2).map(|pair| {
            let score = pair[1].parse::<i64>();
            score.map(|score| (pair[0].clone(), score)).map_err(|_| format!("score {pair:?}"))
        });
        pairs.collect()
    }
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}
