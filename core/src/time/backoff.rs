//! The pause before a retry.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Pauses that double up to a limit, each shortened by a random part of up to half, so that clients
/// that failed together do not retry together.
///
/// ```
/// use std::time::Duration;
/// let mut backoff = fencelock_core::backend::Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// assert!(backoff.next("host pid 7") > Duration::from_millis(5));
/// assert!(backoff.next("host pid 7") > Duration::from_millis(10));
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
    /// 0 until the first pause.
    random: u64,
}

impl Backoff {
    /// Pauses from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest, random: 0 }
    }

    /// The core's own: 20 ms to 1 s.
    pub(crate) const fn start() -> Backoff {
        Backoff::new(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// The next pause. The `seed` of the first one decides about all, so that it must differ between
    /// clients, and a seeded simulation is reproducible.
    pub fn next(&mut self, seed: impl Hash) -> Duration {
        if self.random == 0 {
            let mut hasher = DefaultHasher::new();
            seed.hash(&mut hasher);
            self.random = hasher.finish() | 1;
        }
        let step = self.next;
        self.next = (step * 2).min(self.longest);
        // xorshift64 (Marsaglia, 2003): enough to spread retries.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = u64::try_from(step.as_nanos() / 2).unwrap_or(u64::MAX);
        step.saturating_sub(Duration::from_nanos(self.random % half.max(1)))
    }
}
