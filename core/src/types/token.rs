//! The number a protected resource checks, so that a holder that was lost without knowing it
//! cannot write any more.
//!
//! The resource remembers the largest token it has seen and rejects a smaller one
//! (Kleppmann, "How to do distributed locking", 2016).

use std::fmt;

use crate::types::error::{Error, ErrorKind};

/// A fencing token: strictly increasing over the **exclusive** grants of one lock. It fits an
/// `i64`.
///
/// Shared and permit grants overlap, so for them it only identifies the grant: it is unique, and
/// never a reason to reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

/// The bits below the epoch.
const STORE_BITS: u32 = 56;

impl FencingToken {
    /// What the store counted: at most 2^56 - 1, the rest saturates.
    #[must_use]
    pub fn new(counted: u64) -> FencingToken {
        FencingToken(counted.min((1 << STORE_BITS) - 1))
    }

    /// The number to hand to the resource.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn in_epoch(self, epoch: TokenEpoch) -> FencingToken {
        FencingToken(self.0 | u64::from(epoch.0) << STORE_BITS)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        // Epoch and count have 63 bits together.
        i64::try_from(token.0).unwrap_or(i64::MAX)
    }
}

/// The top bits of every token, 0 to 127, raised when a service moves to another store, whose
/// own count may be behind what the resource has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenEpoch(u8);

impl TokenEpoch {
    /// Epoch `epoch`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] above 127.
    pub fn new(epoch: u8) -> Result<TokenEpoch, Error> {
        if epoch > 127 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("token epoch {epoch} does not fit; expected 0 to 127"),
            ));
        }
        Ok(TokenEpoch(epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_beats_every_count() {
        let old = FencingToken::new(u64::MAX).in_epoch(TokenEpoch::new(3).unwrap());
        let new = FencingToken::new(1).in_epoch(TokenEpoch::new(4).unwrap());
        assert!(new > old);
        assert!(TokenEpoch::new(128).is_err());
        let top = FencingToken::new(u64::MAX).in_epoch(TokenEpoch::new(127).unwrap());
        assert_eq!(i64::from(top), i64::MAX);
    }
}
