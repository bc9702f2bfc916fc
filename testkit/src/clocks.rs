//! Servers' wall clocks that jump, or run too fast.

use std::sync::atomic::{AtomicI64, Ordering};
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
/// When they did not, or the servers do not have these clocks: an hour ahead they must show it, by the microseconds
/// since 1970 that `shown` asks each for.
pub async fn one_percent_fast(
    clocks: &[ServerClock],
    scene: impl Future<Output = ()>,
    mut shown: impl AsyncFnMut() -> Vec<u64>,
) {
    let (began, last) = (Instant::now(), AtomicI64::new(0));
    let ticking = async {
        loop {
            let ahead = i64::try_from(began.elapsed().as_micros() / 100).expect("soon");
            for clock in clocks {
                clock.is_ahead_by_micros(ahead).expect("written");
            }
            last.store(ahead, Ordering::Relaxed);
            sleep(ms(1)).await;
        }
    };
    select(Box::pin(scene), Box::pin(ticking)).await;
    let half = began.elapsed().as_micros() / 200;
    assert!(u128::from(last.into_inner().unsigned_abs()) > half, "the clocks were not moved on");
    for clock in clocks {
        clock.is_ahead_by(3_600).expect("written");
    }
    until("all servers show an hour more", async || {
        let at_least = right_time() + Duration::from_secs(3_000);
        let shown = shown().await;
        shown.len() == clocks.len() && shown.iter().all(|it| u128::from(*it) > at_least.as_micros())
    })
    .await;
}
