//! Servers' wall clocks that jump, or run too fast.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_conformance::ServerClock;
use futures_util::future::select;
use tokio::time::{Instant, sleep};

use crate::helpers::{ms, until};

/// The right time, since 1970.
#[must_use]
pub fn right_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Sets `clock` to so many seconds after the right time, and awaits that the server shows it, whose seconds since
/// 1970 `shown` asks for.
///
/// # Panics
/// When it does not.
pub async fn jump(clock: &ServerClock, seconds: i64, mut shown: impl AsyncFnMut() -> i64) {
    clock.is_ahead_by(seconds).expect("written");
    let expected = right_time().as_secs().cast_signed() + seconds;
    until("the clock has jumped", async || (shown().await - expected).abs() < 30).await;
}

/// Runs `scene` while these clocks run one percent too fast.
///
/// # Panics
/// When a server has not shown that afterwards, whose microseconds since 1970 `shown` asks for.
pub async fn one_percent_fast(
    clocks: &[ServerClock],
    scene: impl Future<Output = ()>,
    shown: impl AsyncFnOnce() -> Vec<u64>,
) {
    let began = Instant::now();
    let ticking = async {
        loop {
            let ahead = i64::try_from(began.elapsed().as_micros() / 100).expect("soon");
            for clock in clocks {
                clock.is_ahead_by_micros(ahead).expect("written");
            }
            sleep(ms(1)).await;
        }
    };
    select(Box::pin(scene), Box::pin(ticking)).await;
    let fast = right_time() + began.elapsed() / 200;
    for shown in shown().await {
        assert!(u128::from(shown) > fast.as_micros(), "its clock was not fast");
    }
}
