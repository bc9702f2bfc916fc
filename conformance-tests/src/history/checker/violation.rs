//! What a checked history shows that should not have happened.

use std::fmt;

/// What should not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Holders believed in a lock together that exclude each other.
    Overlap {
        /// The lock.
        lock: String,
        /// The later of the two, or of all that hold too many permits together.
        tokens: Vec<u64>,
        /// For how long the last two did.
        nanos: u64,
    },
    /// An exclusive grant had no larger token than an earlier one.
    TokenNotRising {
        /// The lock.
        lock: String,
        /// The earlier grant's.
        earlier: u64,
        /// The later grant's.
        later: u64,
    },
    /// Two grants had the same token.
    TokenTwice {
        /// The lock.
        lock: String,
        /// The token.
        token: u64,
    },
    /// The protected resource took a write by a token older than one it had taken.
    StaleWrite {
        /// The lock.
        lock: String,
        /// The token of the stale write.
        token: u64,
    },
    /// A free lock was not granted to its waiters.
    Stuck {
        /// The lock.
        lock: String,
        /// For how long.
        nanos: u64,
    },
    /// A later claim was granted first.
    OutOfOrder {
        /// The lock.
        lock: String,
        /// The tokens of the claim that was overtaken, and of the one that overtook it.
        tokens: (u64, u64),
    },
    /// Two additions to a counter were given the same numbers, or a value was read between two of one
    /// addition.
    AddedTwice {
        /// The counter.
        counter: String,
        /// The sums that they were answered.
        sums: (i64, i64),
    },
    /// A counter has a value that no additions explain.
    Unexplained {
        /// The counter.
        counter: String,
        /// The values between which additions are missing, or were never asked for.
        values: (i64, i64),
    },
    /// An addition was answered a sum that had been passed before it began.
    SumNotRising {
        /// The counter.
        counter: String,
        /// The sum that was answered before.
        earlier: i64,
        /// Its own.
        later: i64,
    },
    /// A tick was run although it was done, and its first run could tell that it was.
    RunAgain {
        /// The job.
        once: String,
        /// The tick.
        tick: u64,
    },
    /// A tick that is never run twice was.
    BegunTwice {
        /// The job.
        once: String,
        /// The tick.
        tick: u64,
    },
    /// A tick was said to be done that no run has marked, and that is not between such by a little.
    NeverRun {
        /// The job.
        once: String,
        /// The tick.
        tick: u64,
    },
    /// An observer of an election was told of an earlier term after a later one.
    TermWentBack {
        /// The election.
        election: String,
        /// The terms, in the order in which it was told of them.
        terms: (u64, u64),
    },
}

impl Violation {
    /// Whether it may come of a loss of the store's data.
    #[must_use]
    pub fn is_of_data(&self) -> bool {
        matches!(
            self,
            Violation::AddedTwice { .. }
                | Violation::Unexplained { .. }
                | Violation::SumNotRising { .. }
                | Violation::RunAgain { .. }
                | Violation::BegunTwice { .. }
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap { lock, tokens, nanos } => write!(
                f,
                "{lock:?}: the holders with tokens {tokens:?} exclude each other \
                 and overlapped for {nanos} ns"
            ),
            Violation::TokenNotRising { lock, earlier, later } => {
                write!(f, "{lock:?}: token {later} was granted after {earlier}")
            }
            Violation::TokenTwice { lock, token } => {
                write!(f, "{lock:?}: token {token} was granted twice")
            }
            Violation::StaleWrite { lock, token } => {
                write!(f, "{lock:?}: a write with the stale token {token} was accepted")
            }
            Violation::Stuck { lock, nanos } => {
                write!(f, "{lock:?}: free for {nanos} ns while others waited")
            }
            Violation::OutOfOrder { lock, tokens: (overtaken, first) } => {
                write!(f, "{lock:?}: token {first} came later and overtook {overtaken}")
            }
            Violation::AddedTwice { counter, sums: (one, other) } => {
                write!(f, "{counter:?}: the additions that got {one} and {other} share numbers")
            }
            Violation::Unexplained { counter, values: (from, to) } => {
                write!(f, "{counter:?}: no additions explain how it went from {from} to {to}")
            }
            Violation::SumNotRising { counter, earlier, later } => {
                write!(
                    f,
                    "{counter:?}: {later} was the sum of an addition that began after {earlier}"
                )
            }
            Violation::RunAgain { once, tick } => {
                write!(f, "{once:?}: tick {tick} was run again after it was done")
            }
            Violation::BegunTwice { once, tick } => {
                write!(f, "{once:?}: tick {tick} was begun twice, and never may be")
            }
            Violation::NeverRun { once, tick } => {
                write!(f, "{once:?}: tick {tick} was said to be done, and no run has marked it")
            }
            Violation::TermWentBack { election, terms: (first, then) } => {
                write!(f, "{election:?}: an observer was told of term {then} after {first}")
            }
        }
    }
}
