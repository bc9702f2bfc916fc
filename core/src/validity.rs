//! Time on the store's clock: the one place where "until when may the holder believe it holds"
//! is computed.
//!
//! Everything here is pure. A [`Moment`] is meaningless outside the [`Clock`] that read it; the
//! wall clock of a client never decides who holds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A point on a store's clock, in nanoseconds since that clock's own origin.
///
/// Arithmetic saturates: a moment plus a very long duration is [`Moment::NEVER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The end of a promise that has none, as that of a file lock while its process lives.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment and `duration` more; [`Moment::NEVER`] when that does not fit.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    /// `duration` before this moment, or the clock's origin. [`Moment::NEVER`] stays itself.
    #[must_use]
    pub fn before(self, duration: Duration) -> Moment {
        if self == Moment::NEVER {
            return self;
        }
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }

    /// How long after `earlier` this is: zero when it is not, [`Duration::MAX`] for
    /// [`Moment::NEVER`].
    pub fn since(self, earlier: Moment) -> Duration {
        if self == Moment::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Moment::NEVER => f.write_str("never"),
            Moment(nanos) => write!(f, "{:?}", Duration::from_nanos(nanos)),
        }
    }
}

/// What a store measures validity with.
///
/// [`BootClock`](crate::BootClock) for everything that outlives the process,
/// [`TokioClock`] for the memory store.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Moment;

    /// Completes once `at` has passed; never for [`Moment::NEVER`]. Cancel safe.
    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Tokio's clock, which `tokio::time::pause` and `advance` control.
///
/// Its `now` must be read inside the runtime whose time is paused; elsewhere tokio answers real
/// time.
#[derive(Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock whose origin is long enough past that no subtraction meets it.
    #[must_use]
    pub fn new() -> TokioClock {
        TokioClock { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> TokioClock {
        TokioClock::new()
    }
}

/// The clock's origin lies a day before its creation, so that "a while ago" has a moment.
const DAY: Duration = Duration::from_secs(86_400);

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment(0) + DAY + self.origin.elapsed()
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if at == Moment::NEVER {
                return std::future::pending().await;
            }
            let since_origin = at.duration_since(Moment(0)).saturating_sub(DAY);
            match self.origin.checked_add(since_origin) {
                Some(instant) => tokio::time::sleep_until(instant).await,
                None => std::future::pending().await,
            }
        })
    }
}

/// When the holder of a lease must stop believing in it: `ttl` after the request was **sent**,
/// less a hundredth of it for clocks that run at different rates and 2 ms for their granularity.
///
/// The margin is Redlock's (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>).
/// Counting from the reply instead is a bug that other libraries had: the reply may be late.
#[must_use]
pub fn lease_end(sent: Moment, ttl: Duration) -> Moment {
    let margin = ttl / 100 + Duration::from_millis(2);
    sent + ttl.saturating_sub(margin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn never_is_absorbing() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::NEVER - Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::NEVER.duration_since(Moment::from_nanos(5)), Duration::MAX);
        assert_eq!(Moment::from_nanos(1) + Duration::MAX, Moment::NEVER);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_follows_paused_time() {
        let clock = TokioClock::new();
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(5)).await;
        assert_eq!(clock.now().duration_since(start), Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn a_lease_ends_before_the_store_frees_it(sent in 0..u64::MAX / 2, ms in 0u64..100_000_000) {
            let sent = Moment::from_nanos(sent);
            let ttl = Duration::from_millis(ms);
            prop_assert!(lease_end(sent, ttl) >= sent);
            prop_assert!(ttl.is_zero() || lease_end(sent, ttl) < sent + ttl);
        }
    }
}
