//! Detects stalls of the machine. A virtual machine on a busy host is paused, and then leases
//! rightly end: no store can keep them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The interval of the checks, and the lateness that is normal.
const BEAT: Duration = Duration::from_millis(10);
const USUAL: Duration = Duration::from_millis(40);

/// The total duration of all stalls so far, in ms, as measured by a thread that only sleeps.
static STOOD_STILL: AtomicU64 = AtomicU64::new(0);

/// Measures stalls from its start on.
pub(crate) struct StallDetector {
    before: u64,
}

impl StallDetector {
    pub(crate) fn start() -> StallDetector {
        static BEATING: OnceLock<()> = OnceLock::new();
        BEATING.get_or_init(|| {
            thread::spawn(beat);
        });
        StallDetector { before: STOOD_STILL.load(Ordering::Relaxed) }
    }

    /// The total duration of stalls since the start.
    pub(crate) fn stood_still(&self) -> Duration {
        Duration::from_millis(STOOD_STILL.load(Ordering::Relaxed) - self.before)
    }
}

fn beat() -> ! {
    loop {
        let asked = Instant::now();
        thread::sleep(BEAT);
        let late = asked.elapsed().saturating_sub(BEAT);
        if late > USUAL {
            let late = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
            STOOD_STILL.fetch_add(late, Ordering::Relaxed);
        }
    }
}
