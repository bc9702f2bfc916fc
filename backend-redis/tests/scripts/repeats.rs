//! A step that is repeated, because its answer was lost, changes nothing more.

use super::Verdict;
use super::bench::Op;
use super::client::Value;
use super::state::{State, Waiter, ensure};

/// The first answer and the repeated ones, the state after the first and after the last; no end
/// lies between the step's begin and the last.
pub(crate) fn judge(
    op: Op,
    (first, again): (&Value, &[Value]),
    (after, last): (&State, &State),
) -> Verdict {
    for answer in again {
        let same = match op {
            Op::Release | Op::Evict => *answer == Value::Int(0),
            // The time until the next look runs.
            Op::Queue => answer == first || (!answer.list().is_empty() && !first.list().is_empty()),
            // What was granted by the first is known to the second. A queue that went with the first
            // knows no process.
            Op::Look => after.queue_ttl.is_none() || answer.list().get(1) == first.list().get(1),
            Op::Try | Op::Renew => answer == first,
        };
        ensure(same, || format!("{op:?} answered {first:?}, repeated {answer:?}"))?;
    }
    // Any step may pass over the dead.
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
        (all, state.fence, state.foreign.clone())
    };
    ensure(places(after) == places(last), || format!("{op:?} repeated changed the queue"))?;
    ensure(holders(after) == holders(last), || format!("{op:?} repeated changed the lock"))
}
