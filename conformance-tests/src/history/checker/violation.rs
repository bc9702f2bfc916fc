//! What a checked history shows that should not have happened.

use std::fmt;

/// A violation, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The lock, counter, job or election.
    pub name: String,
    /// What should not have happened.
    pub violation: Violation,
}

/// What should not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the variants say what their fields are")]
pub enum Violation {
    /// Holders believed in a lock together that exclude each other: the tokens of the two, or of all
    /// that hold too many permits together, and for how long the last two did.
    Overlap { tokens: Vec<u64>, nanos: u64 },
    /// An exclusive grant had no larger token than an earlier one.
    TokenNotRising { earlier: u64, later: u64 },
    /// Two grants had the same token.
    TokenTwice { token: u64 },
    /// The protected resource took a write by this token, which is older than one it had taken.
    StaleWrite { token: u64 },
    /// A free lock was not granted to its waiters for so long.
    Stuck { nanos: u64 },
    /// A later claim was granted first: the tokens of the claim that was overtaken, and of the one
    /// that overtook it.
    OutOfOrder { tokens: (u64, u64) },
    /// Two additions to a counter that were answered these sums were given the same numbers, or a
    /// value was read between two of one addition.
    AddedTwice { sums: (i64, i64) },
    /// A counter has a value that no additions explain: between these values some are missing, or
    /// were never asked for.
    Unexplained { values: (i64, i64) },
    /// An addition was answered a sum that had been passed before it began.
    SumNotRising { earlier: i64, later: i64 },
    /// A tick was run although it was done, and its first run could tell that it was.
    RunAgain { tick: u64 },
    /// A tick that is never run twice was.
    BegunTwice { tick: u64 },
    /// A tick was said to be done that no run has marked, and that is not between such by a little.
    NeverRun { tick: u64 },
    /// An observer was told of a term after a later one: the later one, and the one told after it.
    TermWentBack { terms: (u64, u64) },
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.name)?;
        match &self.violation {
            Violation::Overlap { tokens, nanos } => write!(
                f,
                "the holders with tokens {tokens:?} exclude each other and overlapped for {nanos} ns"
            ),
            Violation::TokenNotRising { earlier, later } => {
                write!(f, "token {later} was granted after {earlier}")
            }
            Violation::TokenTwice { token } => write!(f, "token {token} was granted twice"),
            Violation::StaleWrite { token } => {
                write!(f, "a write with the stale token {token} was accepted")
            }
            Violation::Stuck { nanos } => write!(f, "free for {nanos} ns while others waited"),
            Violation::OutOfOrder { tokens: (overtaken, first) } => {
                write!(f, "token {first} came later and overtook {overtaken}")
            }
            Violation::AddedTwice { sums: (one, other) } => {
                write!(f, "the additions that got {one} and {other} share numbers")
            }
            Violation::Unexplained { values: (from, to) } => {
                write!(f, "no additions explain how it went from {from} to {to}")
            }
            Violation::SumNotRising { earlier, later } => {
                write!(f, "{later} was the sum of an addition that began after {earlier}")
            }
            Violation::RunAgain { tick } => {
                write!(f, "tick {tick} was run again after it was done")
            }
            Violation::BegunTwice { tick } => {
                write!(f, "tick {tick} was begun twice, and never may be")
            }
            Violation::NeverRun { tick } => {
                write!(f, "tick {tick} was said to be done, and no run has marked it")
            }
            Violation::TermWentBack { terms: (first, then) } => {
                write!(f, "an observer was told of term {then} after {first}")
            }
        }
    }
}
