//! The pause before a retry: 20 ms, doubled up to 1 s, each shortened by a random part of up to half,
//! so that clients that failed together do not retry together.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::types::options::Label;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    /// 0 until the first pause.
    random: u64,
}

impl Backoff {
    pub(crate) const fn start() -> Backoff {
        Backoff { next: FIRST, random: 0 }
    }

    /// The next pause. It differs between hosts, processes and claims, by `label` and `id`, and is
    /// the same for the same ones, so that a seeded simulation is reproducible.
    pub(crate) fn next(&mut self, label: &Label, id: u64) -> Duration {
        if self.random == 0 {
            let mut hasher = DefaultHasher::new();
            (label.as_str(), id).hash(&mut hasher);
            self.random = hasher.finish() | 1;
        }
        let step = self.next;
        self.next = (step * 2).min(LONGEST);
        // xorshift64 (Marsaglia, 2003): enough to spread retries.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let cut = self.random % (u64::try_from(step.as_nanos()).unwrap_or(u64::MAX) / 2);
        step.saturating_sub(Duration::from_nanos(cut))
    }
}
