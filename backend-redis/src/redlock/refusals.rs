//! Why a round was not won, and when to ask again.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use uuid::Uuid;

/// Waiters who do not look sooner look together, this often.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often the first in the queue looks behind a client of another library.
const FOREIGN_LOOK: Duration = Duration::from_millis(50);
/// The first pause after a round that nobody won, on the average; it doubles, to a limit.
const SPLIT_PAUSE: Duration = Duration::from_millis(10);
const MAX_DOUBLINGS: u32 = 4;

/// What a node said that said no.
#[derive(Debug)]
pub(crate) struct Rejection {
    /// Whose the lock is there.
    whose: Vec<u8>,
    /// When that may change.
    change: Duration,
    /// Whether the waiter is the first.
    is_first: bool,
}

impl Rejection {
    /// A node's answer, if it is one.
    pub(crate) fn read(answer: &Value) -> Option<Rejection> {
        let Value::Array(values) = answer else { return None };
        let [Value::BulkString(whose), Value::Int(ms), Value::Int(first)] = values.as_slice()
        else {
            return None;
        };
        let ms = u64::try_from(*ms).ok()?;
        let change = match whose.as_slice() {
            b"foreign" => FOREIGN_LOOK,
            _ => Duration::from_millis(ms),
        };
        Some(Rejection { whose: whose.clone(), change, is_first: *first == 1 })
    }

    /// Whether it is for the sake of `owner`.
    pub(crate) fn is_for(&self, owner: Uuid) -> bool {
        *self.whose == *owner.simple().encode_lower(&mut Uuid::encode_buffer()).as_bytes()
    }
}

/// What the nodes said that said no.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    /// Whose the lock is, by node.
    owners: HashMap<Vec<u8>, usize>,
    /// When it may change, by node.
    changes: Vec<Duration>,
    /// The nodes where the waiter is the first.
    first_at: usize,
}

impl Rejections {
    pub(crate) fn add(&mut self, rejection: Rejection) {
        *self.owners.entry(rejection.whose).or_default() += 1;
        self.changes.push(rejection.change);
        self.first_at += usize::from(rejection.is_first);
    }

    /// Whether nobody has it, as far as the answers say: several have asked at the same time.
    pub(crate) fn is_split(&self, majority: usize) -> bool {
        self.owners.values().all(|nodes| *nodes < majority)
    }

    /// When to look again: the first in the queue as soon as a majority may be free.
    pub(crate) fn check_after(&self, majority: usize, splits: u32) -> Duration {
        if splits > 0 {
            let pause = SPLIT_PAUSE * 2u32.pow((splits - 1).min(MAX_DOUBLINGS));
            return pause.mul_f64(rand::random_range(0.5..1.5));
        }
        match self.first_at {
            0 => LOOK_AGAIN,
            _ => nth_change(self.changes.clone(), majority),
        }
    }
}

/// When a majority may have changed, of the times when each node may.
pub(crate) fn nth_change(mut changes: Vec<Duration>, majority: usize) -> Duration {
    changes.sort_unstable();
    changes.get(majority - 1).or(changes.last()).map_or(LOOK_AGAIN, |at| (*at).min(LOOK_AGAIN))
}
