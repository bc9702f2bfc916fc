//! Wall clocks that step, forward and back, at random moments. In the end all are right.

use std::io;
use std::time::Duration;

use fencelock_conformance::ServerClock;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use tokio::time::{Instant, sleep};

/// The largest step, and the furthest that a clock is from the right time, in ms.
const FAR: i64 = 40_000;

/// The bounds of the steps, in ms: shorter than a lease, about as long as one, and much longer.
const SIZES: [i64; 3] = [1_000, 4_000, FAR];

/// Steps one of these clocks after the other for the duration `during`. Returns how far one was
/// ahead at most: a lease that began then lasts so much longer, once that clock is right.
///
/// # Errors
/// When a clock cannot be moved, or is not that of any program.
pub(super) async fn inflict(
    clocks: &[ServerClock],
    during: Duration,
    random: &mut StdRng,
) -> io::Result<Duration> {
    for clock in clocks {
        if !clock.is_in_use()? {
            return Err(io::Error::other("no program has the clock that is to be stepped"));
        }
    }
    let end = Instant::now() + during;
    let mut ahead = vec![0; clocks.len()];
    let mut furthest = 0;
    let all: Vec<usize> = (0..clocks.len()).collect();
    while Instant::now() < end {
        let Some(&one) = all.choose(random) else { break };
        ahead[one] = next(ahead[one], random);
        furthest = furthest.max(ahead[one]);
        clocks[one].is_ahead_by_micros(ahead[one] * 1_000)?;
        sleep(Duration::from_millis(random.random_range(50..500))).await;
    }
    clocks.iter().try_for_each(|clock| clock.is_ahead_by(0))?;
    Ok(Duration::from_millis(furthest.unsigned_abs()))
}

/// How far a clock is ahead after its next step, of at most [`FAR`] and to at most as far as that.
fn next(ahead: i64, random: &mut impl Rng) -> i64 {
    let size = *SIZES.choose(random).unwrap_or(&FAR);
    (ahead + random.random_range(-size..=size)).clamp(-FAR, FAR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn clocks_step_forward_and_back_within_bounds_as_the_seed_says() {
        let steps = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let mut ahead = 0;
            let step = |_| {
                ahead = next(ahead, &mut random);
                ahead
            };
            (0..1_000).map(step).collect::<Vec<i64>>()
        };
        let places = steps(7);
        assert_eq!(places, steps(7));
        assert_ne!(places, steps(8));
        assert!(places.iter().all(|place| place.abs() <= FAR));
        let by = |least: i64| places.windows(2).filter(move |two| two[1] - two[0] > least).count();
        let back =
            |least: i64| places.windows(2).filter(move |two| two[0] - two[1] > least).count();
        for least in [0, 2_000, FAR / 2] {
            assert!(by(least) > 50 && back(least) > 50, "too few steps by {least} ms");
        }
    }

    #[tokio::test]
    async fn a_clock_that_no_program_has_is_an_error() {
        let clock = ServerClock::of("true").unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let clocks = [clock];
        inflict(&clocks, Duration::ZERO, &mut random).await.unwrap_err();
        assert!(std::process::Command::new(clocks[0].program()).status().unwrap().success());
        inflict(&clocks, Duration::ZERO, &mut random).await.unwrap();
    }
}
