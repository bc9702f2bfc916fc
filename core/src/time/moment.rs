//! Time on the store's clock, and the only computation of how long a lease is valid.
//!
//! Everything here is pure. A [`Moment`] is meaningless outside the [`Clock`] that read it; the
//! wall clock of a client never decides who holds.

use std::fmt;
use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::time::Duration;

/// A point on a store's clock, in nanoseconds since that clock's own origin.
///
/// Arithmetic saturates: a moment plus a very long duration is [`Moment::NEVER`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let left = guard.valid_until().duration_since(locks.now());
/// println!("renewed or lost within {left:?}");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The end of a validity without an end, such as a file lock's while its process lives.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The duration from `earlier` to this moment: zero if `earlier` is later, [`Duration::MAX`] for
    /// [`Moment::NEVER`].
    #[must_use]
    pub fn duration_since(self, earlier: Moment) -> Duration {
        if self == Moment::NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at [`Moment::NEVER`].
impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }
}

/// Saturates at the clock's origin. [`Moment::NEVER`] less a duration is [`Moment::NEVER`].
impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, duration: Duration) -> Moment {
        if self == Moment::NEVER {
            return self;
        }
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
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

/// The clock on which a store measures validity.
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
/// Read its `now` inside the runtime whose time is paused; elsewhere tokio returns real time.
#[derive(Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock whose origin is far enough in the past that no subtraction reaches it.
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

/// The clock's origin lies a day before its creation, so that earlier moments can be expressed.
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

/// The end of a lease's validity for its holder: `ttl` after the request was **sent**, less a
/// hundredth of it for clocks that run at different rates and 2 ms for their granularity.
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
