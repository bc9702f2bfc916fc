//! What the suite and a peer process say to each other: one JSON object per line.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::Params;
use crate::how::How;
use crate::processes::workload::Shift;

/// The first line to a peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) address: String,
    pub(crate) params: Params,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) want: Want,
}

/// What a peer process is to do. Requests are carried out at the same time; a waiting acquire
/// holds up none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Want {
    /// Acquire a lock and keep its guard in `slot`.
    Acquire {
        /// Where to keep it.
        slot: u64,
        /// The lock.
        name: String,
        /// Its mode.
        how: How,
        /// Its wait limit; zero tries.
        wait_at_most: Option<Duration>,
        /// Its TTL.
        ttl: Option<Duration>,
        /// How many acquisitions of the process share a grant; 1 for none.
        local_handoffs: u32,
    },
    /// Release the guard in a slot.
    Release {
        /// Which.
        slot: u64,
    },
    /// Say whether the guard in a slot believes that it holds.
    IsHeld {
        /// Which.
        slot: u64,
    },
    /// Acquire and release again and again, counting in an unprotected file meanwhile, and record
    /// the history of it.
    Work {
        /// The lock.
        name: String,
        /// Its mode. Only exclusive holders count.
        how: How,
        /// Its TTL.
        ttl: Duration,
        /// How often.
        rounds: u32,
        /// The file with the count.
        counter: PathBuf,
        /// Where to append events.
        history: PathBuf,
    },
    /// Say how many hold a lock or wait for it.
    Participants {
        /// The lock.
        name: String,
    },
    /// Work under faults, as a torture test does, until [`Calm`](Want::Calm).
    Torture(Shift),
    /// Settle what a counter is.
    Sum {
        /// Which.
        counter: String,
    },
    /// Finish the work that was begun.
    Calm,
    /// Disconnect from the store.
    Leave,
    /// Say how many seconds it is since 1970.
    WallClock,
    /// Abort, as a bug would.
    Crash,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) id: u64,
    pub(crate) answer: Answer,
}

/// What a peer answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// It is granted.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// It is done.
    Done,
    /// Yes or no: held, or accepted.
    Is(bool),
    /// How many.
    Count(u64),
    /// The value of a counter.
    Sum(i64),
    /// How often each kind of error occurred.
    Errors(BTreeMap<String, u64>),
    /// An error of the library.
    Failed {
        /// Its kind, in words.
        kind: String,
        /// All of it.
        message: String,
    },
}
