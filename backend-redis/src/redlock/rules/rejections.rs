//! Why a round was not won, and when to ask again.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use uuid::Uuid;

/// How often waiters are checked that no earlier change is expected for, all of a lock together.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the first in the queue asks while a client of another library holds the lock.
const FOREIGN_INTERVAL: Duration = Duration::from_millis(50);
/// The mean of the first pause after a round that no claim won; it doubles, up to a limit.
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
const MAX_DOUBLINGS: u32 = 4;

/// One node's reply when it does not vote for the claim.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// The lock's owner there.
    owner: Vec<u8>,
    /// When that may change.
    change: Duration,
    /// Whether the waiter is the first in the queue.
    is_first: bool,
}

impl Rejection {
    /// `None` for any other reply.
    pub(crate) fn read(reply: &Value) -> Option<Rejection> {
        let Value::Array(values) = reply else { return None };
        let [Value::BulkString(owner), Value::Int(ms), Value::Int(first)] = values.as_slice()
        else {
            return None;
        };
        let ms = u64::try_from(*ms).ok()?;
        let change = match owner.as_slice() {
            b"foreign" => FOREIGN_INTERVAL,
            _ => Duration::from_millis(ms),
        };
        Some(Rejection { owner: owner.clone(), change, is_first: *first == 1 })
    }

    /// Whether `owner` has the lock there.
    pub(crate) fn is_for(&self, owner: Uuid) -> bool {
        *self.owner == *owner.simple().encode_lower(&mut Uuid::encode_buffer()).as_bytes()
    }
}

/// The rejections of one round.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    /// How many nodes each owner has.
    owners: HashMap<Vec<u8>, usize>,
    /// When each node may change.
    changes: Vec<Duration>,
    /// How many nodes have the waiter first.
    first_at: usize,
}

impl Rejections {
    pub(crate) fn add(&mut self, rejection: Rejection) {
        *self.owners.entry(rejection.owner).or_default() += 1;
        self.changes.push(rejection.change);
        self.first_at += usize::from(rejection.is_first);
    }

    /// Whether no claim has a majority, as far as the replies show: several have asked at the same
    /// time.
    pub(crate) fn is_split(&self, majority: usize) -> bool {
        self.owners.values().all(|nodes| *nodes < majority)
    }

    /// When to ask again: the first in the queue as soon as a majority may be free.
    pub(crate) fn check_after(&self, majority: usize, splits: u32) -> Duration {
        if splits > 0 {
            let pause = SPLIT_PAUSE * 2u32.pow((splits - 1).min(MAX_DOUBLINGS));
            return pause.mul_f64(rand::random_range(0.5..1.5));
        }
        match self.first_at {
            0 => CHECK_INTERVAL,
            _ => nth_change(self.changes.clone(), majority),
        }
    }
}

/// When a majority may have changed, of the times when each node may.
pub(crate) fn nth_change(mut changes: Vec<Duration>, majority: usize) -> Duration {
    changes.sort_unstable();
    let at = changes.get(majority - 1).or(changes.last());
    at.map_or(CHECK_INTERVAL, |at| (*at).min(CHECK_INTERVAL))
}
