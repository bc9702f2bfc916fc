//! Which steps may share a call: what a server has refused as a whole is not sent to it that way
//! again and again.
//!
//! A call is refused as a whole for one of its keys, which an ACL denies, or because its keys are in
//! several slots. Each refusal costs all steps of the call another round trip. So a denied lock goes
//! apart from then on, and where that does not end the refusals every step does, for a while.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long what was refused is remembered.
pub(crate) const WHILE: Duration = Duration::from_secs(60);
/// With more refused calls than this in a [`WHILE`] none is shared for another one.
pub(crate) const REFUSALS: u32 = 8;
/// So many denied locks at most are remembered.
const MOST_DENIED: usize = 1024;

/// What one server has refused.
#[derive(Debug)]
pub(crate) struct Sharing(Mutex<Refused>);

#[derive(Debug)]
struct Refused {
    all: Apart,
    /// The locks that the ACL denies, and until when that is remembered.
    denied: HashMap<Box<[u8]>, Instant>,
    /// When the refused calls were last counted from.
    since: Instant,
    calls: u32,
}

/// Whether every step goes apart.
#[derive(Clone, Copy, Debug)]
enum Apart {
    No,
    Until(Instant),
    /// The server is a part of a cluster.
    Always,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        let (denied, since) = (HashMap::new(), Instant::now());
        Sharing(Mutex::new(Refused { all: Apart::No, denied, since, calls: 0 }))
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of `steps` that may share a call, and those that may not.
    pub(crate) fn split<S>(
        &self,
        steps: Vec<S>,
        lock: impl Fn(&S) -> &[u8],
        now: Instant,
    ) -> (Vec<S>, Vec<S>) {
        let refused = self.refused();
        match refused.all {
            Apart::Always => return (Vec::new(), steps),
            Apart::Until(end) if now < end => return (Vec::new(), steps),
            Apart::No | Apart::Until(_) if refused.denied.is_empty() => return (steps, Vec::new()),
            Apart::No | Apart::Until(_) => {}
        }
        let is_denied = |step: &S| refused.denied.get(lock(step)).is_some_and(|end| now < *end);
        steps.into_iter().partition(|step| !is_denied(step))
    }

    /// A call was refused as a whole.
    pub(crate) fn call_refused(&self, now: Instant) {
        let mut refused = self.refused();
        if now >= refused.since + WHILE {
            (refused.since, refused.calls) = (now, 0);
            refused.denied.retain(|_, end| now < *end);
        }
        refused.calls += 1;
        if refused.calls >= REFUSALS && !matches!(refused.all, Apart::Always) {
            tracing::debug!("shared calls are refused; each step goes in a call of its own");
            refused.all = Apart::Until(now + WHILE);
        }
    }

    /// The server takes no keys of several slots in one call, and never will.
    pub(crate) fn slots_differ(&self) {
        self.refused().all = Apart::Always;
    }

    /// The ACL denies this lock.
    pub(crate) fn denied(&self, lock: &[u8], now: Instant) {
        let mut refused = self.refused();
        let end = now + WHILE;
        if refused.denied.len() < MOST_DENIED || refused.denied.contains_key(lock) {
            refused.denied.insert(lock.into(), end);
        }
    }

    /// This lock is not denied, or no longer.
    pub(crate) fn allowed(&self, lock: &[u8]) {
        let mut refused = self.refused();
        if !refused.denied.is_empty() {
            refused.denied.remove(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(sharing: &Sharing, now: Instant, steps: &[&'static str]) -> Vec<&'static str> {
        sharing.split(steps.to_vec(), |step| step.as_bytes(), now).1
    }

    #[test]
    fn a_denied_lock_goes_apart_until_it_is_allowed_or_forgotten() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        assert!(apart(&sharing, now, &["a", "b"]).is_empty());
        sharing.call_refused(now);
        sharing.denied(b"a", now);
        sharing.denied(b"b", now);
        assert_eq!(apart(&sharing, now, &["a", "b", "c"]), ["a", "b"]);
        sharing.allowed(b"b");
        assert_eq!(apart(&sharing, now, &["a", "b", "c"]), ["a"]);
        now += WHILE;
        assert!(apart(&sharing, now, &["a"]).is_empty());
    }

    #[test]
    fn refusals_without_end_are_few() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        for round in 1..=3 {
            for _ in 1..REFUSALS {
                sharing.call_refused(now);
                assert!(apart(&sharing, now, &["a"]).is_empty(), "round {round}");
            }
            sharing.call_refused(now);
            assert_eq!(apart(&sharing, now, &["a"]), ["a"], "round {round}");
            now += WHILE;
        }
        sharing.slots_differ();
        now += 100 * WHILE;
        assert_eq!(apart(&sharing, now, &["a"]), ["a"]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        for lock in 0..2 * MOST_DENIED {
            sharing.denied(lock.to_string().as_bytes(), now);
        }
        assert_eq!(sharing.refused().denied.len(), MOST_DENIED);
        now += WHILE;
        sharing.call_refused(now);
        assert!(sharing.refused().denied.is_empty());
    }
}
