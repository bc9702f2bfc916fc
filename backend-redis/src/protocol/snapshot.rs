//! The holders and waiters of a lock, for `inspect`.

use std::time::Duration;

use fencelock_core::{FencingToken, Label, Mode, Participant, ParticipantId, Snapshot};
use redis::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::identity::{ClientId, Identity};

/// Cap on reported holders and waiters: the script blocks the server while it runs.
pub(crate) const MOST: &str = "1000";

/// The holders and waiters of one lock in a server.
#[derive(Debug)]
pub(crate) struct LockContents {
    now_us: u64,
    holders: Vec<Holder>,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Holder {
    value: Vec<u8>,
    token: u64,
}

#[derive(Debug)]
struct Waiter {
    value: Vec<u8>,
    arrival_us: u64,
}

/// Reads the reply of the script `inspect`.
pub(crate) fn read(answer: Value) -> Option<LockContents> {
    let Value::Array(parts) = answer else { return None };
    let [now, Value::Array(holders), Value::Array(waiters)] = parts.as_slice() else { return None };
    let holder = |row: &[Value]| match row {
        [Value::BulkString(value), _ms_left, token] => {
            Some(Holder { value: value.clone(), token: number(token)? })
        }
        _ => None,
    };
    let waiter = |row: &[Value]| match row {
        [Value::BulkString(value), arrival] => {
            Some(Waiter { value: value.clone(), arrival_us: number(arrival)? })
        }
        _ => None,
    };
    Some(LockContents {
        now_us: number(now)?,
        holders: holders.chunks(3).map(holder).collect::<Option<_>>()?,
        waiters: waiters.chunks(2).map(waiter).collect::<Option<_>>()?,
    })
}

/// Parses an integer, or a text: a score may have an exponent.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(text).ok()?;
            text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|number| number as u64))
        }
        Value::Double(number) => Some(*number as u64),
        _ => None,
    }
}

/// An ID for the owner of `value` that does not prove ownership. That of a waiter is of its place, by its arrival: if it
/// is evicted, and queues again, it is another participant.
fn id(value: &[u8], arrival_us: Option<u64>) -> ParticipantId {
    let place = arrival_us.map_or(String::new(), |arrival| format!("\0{arrival}"));
    let digest = Sha256::digest([value, place.as_bytes()].concat());
    let short: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    ParticipantId::new(short)
}

/// The owner in `value`; `None` if another program wrote it.
#[cfg(feature = "redlock")]
fn owner(value: &[u8]) -> Option<Uuid> {
    Identity::parse(value).map(|identity| identity.owner)
}

impl LockContents {
    /// Combines the contents of several nodes: the holders that at least `needed` of them have, and
    /// the waiters of any of them.
    #[cfg(feature = "redlock")]
    pub(crate) fn merge(all: Vec<LockContents>, needed: usize) -> LockContents {
        use std::cmp::Reverse;
        use std::collections::HashSet;

        let now_us = all.iter().map(|seen| seen.now_us).max().unwrap_or_default();
        let mut holders: Vec<(usize, Holder)> = Vec::new();
        let mut waiters: Vec<Waiter> = Vec::new();
        for seen in all {
            for holder in seen.holders {
                match holders.iter_mut().find(|(_, known)| known.value == holder.value) {
                    Some((count, known)) => {
                        *count += 1;
                        known.token = known.token.max(holder.token);
                    }
                    None => holders.push((1, holder)),
                }
            }
            for waiter in seen.waiters {
                let is_known = waiters.iter().any(|known| known.value == waiter.value);
                if !is_known {
                    waiters.push(waiter);
                }
            }
        }
        holders.retain(|(count, _)| *count >= needed);
        // Some nodes may still have an earlier round of a holder, whose release is under way.
        holders.sort_by_key(|(count, holder)| Reverse((*count, holder.token)));
        let mut owners = HashSet::new();
        holders.retain(|(_, holder)| owner(&holder.value).is_none_or(|owner| owners.insert(owner)));
        holders.sort_by_key(|(_, holder)| holder.token);
        // A holder is still queued at nodes outside the majority that granted its claim.
        waiters.retain(|waiter| owner(&waiter.value).is_none_or(|owner| !owners.contains(&owner)));
        waiters.sort_by_key(|waiter| waiter.arrival_us);
        LockContents {
            now_us,
            holders: holders.into_iter().map(|(_, holder)| holder).collect(),
            waiters,
        }
    }

    /// The snapshot to show, without owner tokens.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        let since = |us: u64| Duration::from_micros(self.now_us.saturating_sub(us));
        let holder = |holder: Holder| {
            let id = id(&holder.value, None);
            let Some(own) = Identity::parse(&holder.value) else {
                let label = Label::new("a client of another library");
                return Participant::new(id, Mode::Exclusive).labelled(label);
            };
            let participant = Participant::new(id, own.mode).labelled(own.label);
            // The first of its grant. A fencing token of ours is the time of its grant, except for ties.
            match holder.token.saturating_sub(own.tokens.saturating_sub(1)) {
                0 => participant,
                token => participant.token(FencingToken::new(token)).since(since(token)),
            }
        };
        let waiter = |waiter: Waiter| {
            let own = Identity::parse(&waiter.value)?;
            let id = id(&waiter.value, Some(waiter.arrival_us));
            let participant = Participant::new(id, own.mode).labelled(own.label);
            Some(participant.since(since(waiter.arrival_us)))
        };
        Snapshot::new(
            self.holders.into_iter().map(holder).collect(),
            self.waiters.into_iter().filter_map(waiter).collect(),
        )
    }

    /// The queue entries of `client` whose claims are over: what a server that was frozen did after they were given up.
    pub(crate) fn strays(self, client: &ClientId, is_over: impl Fn(&Uuid) -> bool) -> Vec<Vec<u8>> {
        let is_stray = |value: &Vec<u8>| {
            Identity::parse(value).is_some_and(|own| own.client == *client && is_over(&own.owner))
        };
        self.waiters.into_iter().map(|waiter| waiter.value).filter(is_stray).collect()
    }

    /// The value of the participant `who` of an earlier snapshot, if it is still there, and how the scripts remove it.
    /// A client of any prefix is notified, or its eviction denied, for it goes on with its work until then. What another
    /// program wrote, however much it looks like a claim, chooses no channel that is published to.
    pub(crate) fn evicted(&self, who: &ParticipantId) -> Option<(&[u8], &'static [u8])> {
        let holders = self.holders.iter().map(|holder| (&holder.value, None));
        let waiters = self.waiters.iter().map(|waiter| (&waiter.value, Some(waiter.arrival_us)));
        let (value, _) = holders.chain(waiters).find(|(value, at)| id(value, *at) == *who)?;
        let client = Identity::parse(value).filter(|it| it.client.is_well_formed());
        Some((value, if client.is_some() { b"evict" } else { b"take" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holders: &[(&str, u64)], waiters: &[&str]) -> LockContents {
        let value = |mode: &str| match mode.starts_with("foreign") {
            true => mode.into(),
            false => format!("{mode} 30000 @1 {} host", "0a".repeat(16)).into_bytes(),
        };
        let holder = |(mode, token): &(&str, u64)| Holder { value: value(mode), token: *token };
        let waiter = |mode: &&str| Waiter { value: value(mode), arrival_us: 1 };
        LockContents {
            now_us: 1,
            holders: holders.iter().map(holder).collect(),
            waiters: waiters.iter().map(waiter).collect(),
        }
    }

    fn shown(all: Vec<LockContents>, needed: usize) -> (Vec<u64>, usize) {
        let merged = LockContents::merge(all, needed);
        (merged.holders.iter().map(|holder| holder.token).collect(), merged.waiters.len())
    }

    #[test]
    fn a_claim_is_shown_once_whatever_its_earlier_rounds_left_behind() {
        let all = || {
            let second = || seen(&[("x2", 9)], &[]);
            vec![seen(&[("x1", 7)], &["x"]), second(), second()]
        };
        assert_eq!(shown(all(), 2), (vec![9], 0));
        assert_eq!(shown(all(), 1), (vec![9], 0), "two nodes are unreachable");
        let even = vec![seen(&[("x1", 7)], &[]), seen(&[("x2", 9)], &[])];
        assert_eq!(shown(even, 1), (vec![9], 0), "the later one");
    }

    #[test]
    fn values_of_other_programs_are_shown_as_they_are() {
        let all = vec![seen(&[("foreign a", 0)], &[]), seen(&[("foreign b", 0)], &["x"])];
        assert_eq!(shown(all, 1), (vec![0, 0], 1));
    }
}
