//! A step that is repeated, because its reply was lost, changes nothing.

use super::Verdict;
use super::bench::Op;
use super::client::Value;
use super::state::{State, Waiter, ensure};

/// The first reply and the repeated ones, the state after the first and after the last; nothing expires
/// between the beginning of the step and the last.
pub(crate) fn judge(
    op: Op,
    (first, again): (&Value, &[Value]),
    (after, last): (&State, &State),
) -> Verdict {
    for answer in again {
        let same = match op {
            Op::Release | Op::Evict => *answer == Value::Int(0),
            // The time until the next check decreases.
            Op::Queue => answer == first || (!answer.list().is_empty() && !first.list().is_empty()),
            // The second reports the grants of the first. A queue that the first removed has no client.
            Op::Check => after.queue_ttl.is_none() || answer.list().get(1) == first.list().get(1),
            Op::Try | Op::Renew => answer == first,
        };
        ensure(same, || format!("{op:?} answered {first:?}, repeated {answer:?}"))?;
    }
    // Any step may remove dead waiters.
    let lives = |waiter: &&Waiter| {
        after.deadlines.get(&waiter.claim.process).is_some_and(|end| *end >= after.now())
    };
    let places = |state: &State| -> Vec<_> {
        let all = state.waiting.iter().chain(&state.granted).filter(lives);
        all.map(|waiter| (waiter.claim.text.clone(), waiter.arrival)).collect()
    };
    let holders = |state: &State| {
        let all = state.holders.values();
        let all: Vec<_> = all.map(|holder| (holder.claim.text.clone(), holder.token)).collect();
        (all, state.last_token, state.foreign.clone())
    };
    ensure(places(after) == places(last), || format!("{op:?} repeated changed the queue"))?;
    ensure(holders(after) == holders(last), || format!("{op:?} repeated changed the lock"))
}
