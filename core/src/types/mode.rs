//! Lock modes, and the rule of which holders may hold a lock at the same time.
//!
//! Exclusive conflicts with everything, shared with exclusive and permits, permits with exclusive
//! and shared and by their sum. `lock(x)`, `rw_lock(x)` and `semaphore(x, n)` are one lock.

use std::fmt;
use std::num::NonZeroU32;

use crate::types::error::{Result, invalid};

/// The mode in which a claim asks for a lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Mode;
/// let reader = locks.rw_lock("prices").read().acquire().await?;
/// assert_eq!(reader.mode(), Mode::Shared);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
    /// Readers: any number at the same time.
    Shared,
    /// Some of a limited number of permits.
    Permits(Permits),
}

/// `n` of `limit` permits, with `1 <= n <= limit`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::{Mode, Permits};
/// let guard = locks.semaphore("uploads", 3).permits(2).acquire().await?;
/// assert_eq!(guard.mode(), Mode::Permits(Permits::new(2, 3)?));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permits {
    n: NonZeroU32,
    limit: NonZeroU32,
}

impl Permits {
    /// `n` of `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when either is zero or `n` exceeds `limit`, which could
    /// never be granted.
    pub fn new(n: u32, limit: u32) -> Result<Permits> {
        match (NonZeroU32::new(n), NonZeroU32::new(limit)) {
            (Some(n), Some(limit)) if n <= limit => Ok(Permits { n, limit }),
            _ => Err(invalid(format!(
                "{n} of {limit} permits can never be granted; \
                 expected at least 1 permit and a limit not below it"
            ))),
        }
    }

    /// The number of permits that the claim asks for.
    #[must_use]
    pub fn n(self) -> u32 {
        self.n.get()
    }

    /// The total number of permits, as seen by this claim.
    #[must_use]
    pub fn limit(self) -> u32 {
        self.limit.get()
    }
}

impl Mode {
    /// The mode as it appears in metrics and logs: `exclusive`, `shared` or `permits`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permits(_) => "permits",
        }
    }

    /// Whether a claim in this mode can be granted while the modes `held` are held.
    ///
    /// A permit claim is measured by *its own* limit, so that a limit changes by claiming with
    /// another one. The caller ensures that no claim overtakes an earlier waiter.
    ///
    /// ```
    /// # use fencelock_core as fencelock;
    /// use fencelock::{Mode, Permits};
    /// let two_of_three = Mode::Permits(Permits::new(2, 3)?);
    /// assert!(Mode::Shared.is_compatible_with([Mode::Shared, Mode::Shared]));
    /// assert!(two_of_three.is_compatible_with([]));
    /// assert!(!two_of_three.is_compatible_with([two_of_three]));
    /// # Ok::<(), fencelock_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_compatible_with(self, held: impl IntoIterator<Item = Mode>) -> bool {
        let mut held = held.into_iter();
        match self {
            Mode::Exclusive => held.next().is_none(),
            Mode::Shared => held.all(|other| other == Mode::Shared),
            Mode::Permits(wanted) => {
                let mut out = u64::from(wanted.n());
                let limit = u64::from(wanted.limit());
                held.all(|other| match other {
                    Mode::Permits(taken) => {
                        out += u64::from(taken.n());
                        out <= limit
                    }
                    _ => false,
                })
            }
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Permits(permits) => {
                write!(f, "{} of {} permits", permits.n(), permits.limit())
            }
            other => f.write_str(other.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn permits(n: u32, limit: u32) -> Mode {
        Mode::Permits(Permits::new(n, limit).unwrap())
    }

    #[test]
    fn modes_that_may_be_held_together() {
        let (x, s, p) = (Mode::Exclusive, Mode::Shared, permits(1, 2));
        for mode in [x, s, p] {
            assert!(mode.is_compatible_with([]));
            assert!(!x.is_compatible_with([mode]));
            assert!(!mode.is_compatible_with([x]));
        }
        assert!(
            s.is_compatible_with([s, s])
                && !s.is_compatible_with([p])
                && !p.is_compatible_with([s])
        );
        assert!(p.is_compatible_with([p]) && !p.is_compatible_with([p, p]));
        assert!(
            permits(1, 5).is_compatible_with([permits(2, 2), permits(2, 2)]),
            "its own limit counts"
        );
        assert!(
            !permits(2, u32::MAX).is_compatible_with([permits(u32::MAX, u32::MAX)]),
            "no overflow"
        );
    }

    #[test]
    fn invalid_permits_are_refused() {
        for (n, limit) in [(0, 0), (0, 1), (1, 0), (2, 1)] {
            assert_eq!(Permits::new(n, limit).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
