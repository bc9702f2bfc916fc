//! What the nodes' replies amount to. Pure: the model in `models` checks this code.

/// How many of `nodes` are a majority: of all that are configured, since two majorities of those that
/// reply need not have a node in common.
#[must_use]
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// One node's reply in a round of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vote {
    /// Asked, without a reply yet.
    Pending,
    /// The claim has the lock there, with this fencing token.
    Yes(u64),
    /// Another claim has it there, or, in an extension, none.
    No,
    /// Does not count: not asked, silent, or not entitled to vote.
    Absent,
}

/// The state of a round of acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Poll {
    /// Too few have replied.
    Open,
    /// A majority says yes, and a majority has this token.
    Won(u64),
    /// A majority says yes, but this token, its largest, has to be written back to the others:
    /// else a later majority could give a smaller one.
    Uneven(u64),
    /// A majority is impossible.
    Failed,
}

/// Counts the votes of a round of acquiring.
#[must_use]
pub fn poll(votes: &[Vote]) -> Poll {
    match largest(votes) {
        Some(token) if yes(votes) >= majority(votes.len()) => match settled(votes, token) {
            Settled::Yes => Poll::Won(token),
            Settled::Open | Settled::No => Poll::Uneven(token),
        },
        _ if is_possible(votes) => Poll::Open,
        _ => Poll::Failed,
    }
}

/// Whether a round of acquisition has to wait for more replies: until it is won, or it is known
/// whether another client has the lock or nodes are unreachable.
#[must_use]
pub fn is_open(votes: &[Vote]) -> bool {
    match poll(votes) {
        Poll::Open => true,
        Poll::Failed => !is_busy(votes) && votes.contains(&Vote::Pending),
        Poll::Won(_) | Poll::Uneven(_) => false,
    }
}

/// The state of writing a token back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// Too few nodes have acknowledged it.
    Open,
    /// A majority has it, or a larger one, where the claim still has the lock.
    Yes,
    /// Such a majority is impossible.
    No,
}

/// Counts the nodes that have `token`. A node it is being written to is `Pending`; an acknowledgement
/// is `Yes` only from a node that is open and where the claim still has the lock.
#[must_use]
pub fn settled(votes: &[Vote], token: u64) -> Settled {
    let has_it = |vote: &&Vote| matches!(vote, Vote::Yes(its) if *its >= token);
    let pending = votes.iter().filter(|vote| **vote == Vote::Pending).count();
    let have = votes.iter().filter(has_it).count();
    match majority(votes.len()) {
        needed if have >= needed => Settled::Yes,
        needed if have + pending >= needed => Settled::Open,
        _ => Settled::No,
    }
}

/// The state of a round of extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extension {
    /// Too few have replied.
    Open,
    /// A majority has extended it.
    Kept,
    /// So many do not have it that a majority is impossible: final.
    Lost,
    /// Neither: the old expiry stands.
    Unknown,
}

/// Counts the votes of a round of extending.
#[must_use]
pub fn extension(votes: &[Vote]) -> Extension {
    let count = |wanted| votes.iter().filter(|vote| **vote == wanted).count();
    let (no, pending) = (count(Vote::No), count(Vote::Pending));
    let too_many = votes.len() - majority(votes.len()) + 1;
    if yes(votes) >= majority(votes.len()) {
        Extension::Kept
    } else if no >= too_many {
        Extension::Lost
    } else if is_possible(votes) || (pending > 0 && no + pending >= too_many) {
        Extension::Open
    } else {
        Extension::Unknown
    }
}

/// Whether a majority has replied, so that the lock is busy rather than the nodes unreachable.
#[must_use]
pub fn is_busy(votes: &[Vote]) -> bool {
    let said = votes.iter().filter(|vote| matches!(vote, Vote::Yes(_) | Vote::No)).count();
    said >= majority(votes.len())
}

fn yes(votes: &[Vote]) -> usize {
    votes.iter().filter(|vote| matches!(vote, Vote::Yes(_))).count()
}

fn largest(votes: &[Vote]) -> Option<u64> {
    let tokens = votes.iter().filter_map(|vote| match vote {
        Vote::Yes(token) => Some(*token),
        _ => None,
    });
    tokens.max()
}

/// Whether a majority can still say yes.
fn is_possible(votes: &[Vote]) -> bool {
    let pending = votes.iter().filter(|vote| **vote == Vote::Pending).count();
    pending > 0 && yes(votes) + pending >= majority(votes.len())
}

#[cfg(test)]
mod tests {
    use super::Vote::{Absent, No, Pending, Yes};
    use super::*;

    #[test]
    fn a_majority_is_of_all_that_are_configured() {
        assert_eq!(poll(&[Yes(7), Absent, Absent]), Poll::Failed);
        assert_eq!(poll(&[Yes(7), Pending, Absent]), Poll::Open);
        assert_eq!(poll(&[Yes(7), Yes(7), Absent]), Poll::Won(7));
        assert_eq!(
            poll(&[Yes(7), Yes(7), Pending]),
            Poll::Won(7),
            "the last reply is not waited for"
        );
        assert_eq!(poll(&[Yes(7), No, No]), Poll::Failed);
        assert_eq!(poll(&[No, No, Pending, Pending, Yes(1)]), Poll::Open);
        assert_eq!(poll(&[No, No, No, Pending, Pending]), Poll::Failed);
    }

    #[test]
    fn a_token_is_won_once_a_majority_has_it() {
        assert_eq!(poll(&[Yes(7), Yes(9), Pending]), Poll::Uneven(9));
        assert_eq!(settled(&[Pending, Yes(9), Pending], 9), Settled::Open);
        assert_eq!(settled(&[Yes(9), Yes(9), Absent], 9), Settled::Yes);
        assert_eq!(settled(&[No, Yes(9), Absent], 9), Settled::No);
        assert_eq!(settled(&[Yes(12), Yes(9), Absent], 9), Settled::Yes);
        assert_eq!(poll(&[Yes(9), Yes(9), Yes(3), Pending, Pending]), Poll::Uneven(9));
    }

    #[test]
    fn an_extension_is_lost_only_when_no_majority_can_have_it() {
        assert_eq!(extension(&[Yes(1), Yes(1), No]), Extension::Kept);
        assert_eq!(extension(&[Yes(1), No, No]), Extension::Lost);
        assert_eq!(extension(&[Yes(1), No, Absent]), Extension::Unknown);
        assert_eq!(extension(&[Yes(1), No, Pending]), Extension::Open);
        assert_eq!(extension(&[Absent, No, Pending]), Extension::Open, "it may be lost");
        assert_eq!(extension(&[Absent, Absent, Pending]), Extension::Unknown);
        assert_eq!(extension(&[Absent, Absent, Absent]), Extension::Unknown);
        assert_eq!(extension(&[No, No, Pending, Pending, Pending]), Extension::Open);
        assert_eq!(extension(&[No, No, No, Pending, Pending]), Extension::Lost);
    }

    #[test]
    fn a_lock_is_busy_once_a_majority_has_replied() {
        assert!(is_busy(&[No, No, Absent]));
        assert!(is_busy(&[Yes(1), No, Absent]), "a split is busy too");
        assert!(!is_busy(&[No, Absent, Absent]));
        assert!(is_open(&[No, Pending, Absent]), "failed, and the reason is unknown");
        assert!(!is_open(&[No, No, Pending]) && !is_open(&[No, Absent, Absent]));
    }
}
