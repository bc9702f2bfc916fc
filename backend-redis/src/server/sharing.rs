//! Which calls may share a request.
//!
//! A server refuses a request as a whole for one key that an ACL denies, or for keys in several
//! slots. Each refusal costs all its calls another round trip. So calls on a denied lock are sent
//! separately from then on; if refusals continue, all calls are, for a while.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::backend::program;
use fencelock_core::sync::Mutex;
use tokio::time::Instant;

/// How long a refusal is remembered.
pub(crate) const WHILE: Duration = Duration::from_secs(60);
/// After this many refused requests in a [`WHILE`], none is shared for another one.
pub(crate) const REFUSALS: u32 = 8;
/// Cap on the denied locks that are remembered.
const MOST_DENIED: usize = 1024;

/// What one server has refused.
#[derive(Debug)]
pub(crate) struct Sharing(Mutex<Refused>);

#[derive(Debug)]
struct Refused {
    /// All calls are sent separately until then.
    separate_until: Instant,
    /// All calls are sent separately: the server is in cluster mode.
    slots_differ: bool,
    /// The locks that the ACL denies, each with the end of its entry.
    denied: HashMap<Box<[u8]>, Instant>,
    /// Since when refused requests are counted.
    since: Instant,
    requests: u32,
}

impl Sharing {
    pub(crate) fn new() -> Sharing {
        let now = Instant::now();
        Sharing(Mutex::new(Refused {
            separate_until: now,
            slots_differ: false,
            denied: HashMap::new(),
            since: now,
            requests: 0,
        }))
    }

    /// Those of `calls` that may share a request, and those that may not.
    pub(crate) fn split<S>(
        &self,
        calls: Vec<S>,
        lock: impl Fn(&S) -> &[u8],
        now: Instant,
    ) -> (Vec<S>, Vec<S>) {
        let refused = self.0.lock();
        if refused.slots_differ || now < refused.separate_until {
            return (Vec::new(), calls);
        }
        if refused.denied.is_empty() {
            return (calls, Vec::new());
        }
        let is_denied = |call: &S| refused.denied.get(lock(call)).is_some_and(|end| now < *end);
        calls.into_iter().partition(|call| !is_denied(call))
    }

    /// Records that a shared request was refused as a whole.
    pub(crate) fn request_refused(&self, now: Instant) {
        let mut refused = self.0.lock();
        if now >= refused.since + WHILE {
            (refused.since, refused.requests) = (now, 0);
            refused.denied.retain(|_, end| now < *end);
        }
        refused.requests += 1;
        if refused.requests >= REFUSALS {
            refused.separate_until = now + WHILE;
            program::call(|| {
                tracing::debug!("shared requests are refused; each call is sent separately");
            });
        }
    }

    /// Records that the server refuses keys of several slots in one request, which is final.
    pub(crate) fn slots_differ(&self) {
        self.0.lock().slots_differ = true;
    }

    /// Records that the ACL denies this lock.
    pub(crate) fn denied(&self, lock: &[u8], now: Instant) {
        let mut refused = self.0.lock();
        if refused.denied.len() < MOST_DENIED || refused.denied.contains_key(lock) {
            refused.denied.insert(lock.into(), now + WHILE);
        }
    }

    /// Records that the ACL does not deny this lock.
    pub(crate) fn allowed(&self, lock: &[u8]) {
        let mut refused = self.0.lock();
        if !refused.denied.is_empty() {
            refused.denied.remove(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(sharing: &Sharing, now: Instant, calls: &[&'static str]) -> Vec<&'static str> {
        sharing.split(calls.to_vec(), |call| call.as_bytes(), now).1
    }

    #[test]
    fn calls_on_a_denied_lock_are_sent_separately_until_it_is_allowed_or_forgotten() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        assert!(apart(&sharing, now, &["a", "b"]).is_empty());
        sharing.request_refused(now);
        sharing.denied(b"a", now);
        sharing.denied(b"b", now);
        assert_eq!(apart(&sharing, now, &["a", "b", "c"]), ["a", "b"]);
        sharing.allowed(b"b");
        assert_eq!(apart(&sharing, now, &["a", "b", "c"]), ["a"]);
        now += WHILE;
        assert!(apart(&sharing, now, &["a"]).is_empty());
    }

    #[test]
    fn the_number_of_refusals_is_bounded() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        for round in 1..=3 {
            for _ in 1..REFUSALS {
                sharing.request_refused(now);
                assert!(apart(&sharing, now, &["a"]).is_empty(), "round {round}");
            }
            sharing.request_refused(now);
            assert_eq!(apart(&sharing, now, &["a"]), ["a"], "round {round}");
            now += WHILE;
        }
        sharing.slots_differ();
        now += 100 * WHILE;
        assert_eq!(apart(&sharing, now, &["a"]), ["a"]);
    }

    #[test]
    fn the_number_of_remembered_locks_is_bounded() {
        let (sharing, mut now) = (Sharing::new(), Instant::now());
        for lock in 0..2 * MOST_DENIED {
            sharing.denied(lock.to_string().as_bytes(), now);
        }
        assert_eq!(sharing.0.lock().denied.len(), MOST_DENIED);
        now += WHILE;
        sharing.request_refused(now);
        assert!(sharing.0.lock().denied.is_empty());
    }
}
