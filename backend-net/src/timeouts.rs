//! How long a server may take, and the bounds of what a user sets.

use std::ops::RangeInclusive;
use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use fencelock_core::url::Params;

/// A shorter one expires at each pause of a server, a longer one keeps a dead connection.
const BOUNDS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// How long a server may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection with its handshakes and the login.
    pub connect: Duration,
    /// For a reply. A retry is harmless.
    pub answer: Duration,
}

impl Timeouts {
    /// These, unless the URL has the parameters `connect_timeout` and `answer_timeout`.
    ///
    /// # Errors
    /// What [`check`](Timeouts::check) refuses.
    pub fn or_of_url(self, params: Params<'_>) -> Result<Timeouts> {
        let connect = params.duration("connect_timeout")?.unwrap_or(self.connect);
        let answer = params.duration("answer_timeout")?.unwrap_or(self.answer);
        let timeouts = Timeouts { connect, answer };
        timeouts.check()?;
        Ok(timeouts)
    }

    /// Checks what the user has set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) when one is out of its
    /// bounds.
    pub fn check(&self) -> Result<()> {
        for (name, given) in [("connect_timeout", self.connect), ("answer_timeout", self.answer)] {
            if !BOUNDS.contains(&given) {
                return Err(invalid(format!("{name} must be 10ms to 1m")));
            }
        }
        Ok(())
    }
}
