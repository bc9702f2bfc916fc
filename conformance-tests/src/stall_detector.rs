//! Whether the machine kept time. A virtual machine whose host is busy stands still, and whatever
//! has a TTL is then lost rightly: no store can keep it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often the machine is asked for the time, and what is late without being remarkable.
const BEAT: Duration = Duration::from_millis(10);
const USUAL: Duration = Duration::from_millis(40);

/// For how long this machine has stood still so far, in ms, as far as a thread saw that only
/// sleeps.
static STOOD_STILL: AtomicU64 = AtomicU64::new(0);

/// Feels the machine's pulse from now on.
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

    /// For how long the machine has stood still since then, all in all.
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
