//! Fencing tokens, which a protected resource checks so that a holder that has lost its lock without
//! knowing it can no longer write.
//!
//! The resource remembers the largest token that it has seen and rejects a smaller one
//! (Kleppmann, "How to do distributed locking", 2016).

use std::fmt;

use crate::types::error::{Error, Result, invalid};

/// A fencing token: strictly increasing over the **exclusive** grants of one lock. It fits an
/// `i64`.
///
/// Shared and permit grants overlap, so their tokens only identify the grant: they are unique, and
/// never a reason to reject a write.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let mut largest_seen = 0; // kept by the resource, such as a column of a database
/// for _ in 0..2 {
///     // With each write.
///     let token = i64::from(guard.fencing_token());
///     assert!(token >= largest_seen, "a later holder has written already");
///     largest_seen = token;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

/// The bits below the epoch.
const STORE_BITS: u32 = 56;

impl FencingToken {
    /// For the authors of stores: the token for the store's counter, at most 2^56 - 1; larger values saturate.
    /// A program that has kept a token in its database has it back by `FencingToken::try_from(number)`.
    #[must_use]
    pub fn new(counted: u64) -> FencingToken {
        FencingToken(counted.min((1 << STORE_BITS) - 1))
    }

    /// A token as [`get`](FencingToken::get) gave it.
    pub(crate) fn stored(number: u64) -> FencingToken {
        FencingToken(number)
    }

    /// The number to pass to the resource.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The `n`-th after this one, of a range that the store has reserved.
    pub(crate) fn plus(self, n: u32) -> FencingToken {
        FencingToken(self.0 + u64::from(n))
    }

    /// As the store gave it.
    pub(crate) fn without_epoch(self) -> FencingToken {
        FencingToken(self.0 & ((1 << STORE_BITS) - 1))
    }

    pub(crate) fn epoch(self) -> u64 {
        self.0 >> STORE_BITS
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

/// The token that a program has kept as a number.
impl TryFrom<i64> for FencingToken {
    type Error = Error;

    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) below zero.
    fn try_from(number: i64) -> Result<FencingToken> {
        let number = u64::try_from(number);
        number.map(FencingToken).map_err(|_| invalid("a fencing token is not negative"))
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        // Epoch and counter have 63 bits together.
        i64::try_from(token.0).unwrap_or(i64::MAX)
    }
}

/// The top bits of every token, 0 to 127. Raise it when a service moves to another store, whose
/// counter may be smaller than the tokens that the resource has seen. It is one for all programs of a store, and never
/// lowered: elections, `once()` and cells too have seen a larger one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// use fencelock::{Settings, TokenEpoch};
/// # use fencelock_core::memory::Memory;
/// let settings = Settings::default().token_epoch(TokenEpoch::new(1)?); // or ?token_epoch=1 in the URL
/// # let locks = Memory::new().locks(settings)?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// assert!(guard.fencing_token().get() > 1 << 56, "larger than every token of epoch 0");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenEpoch(u8);

impl TokenEpoch {
    /// Parses `epoch`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) above 127.
    pub fn new(epoch: u8) -> Result<TokenEpoch> {
        if epoch > 127 {
            return Err(invalid(format!("invalid token epoch {epoch}: expected 0 to 127")));
        }
        Ok(TokenEpoch(epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_beats_every_counter() {
        let old = FencingToken::new(u64::MAX).in_epoch(TokenEpoch::new(3).unwrap());
        let new = FencingToken::new(1).in_epoch(TokenEpoch::new(4).unwrap());
        assert!(new > old);
        assert_eq!(new.without_epoch(), FencingToken::new(1));
        assert!(TokenEpoch::new(128).is_err());
        let top = FencingToken::new(u64::MAX).in_epoch(TokenEpoch::new(127).unwrap());
        assert_eq!(i64::from(top), i64::MAX);
        for token in [old, new, top] {
            assert_eq!(FencingToken::try_from(i64::from(token)).unwrap(), token);
        }
        assert!(FencingToken::try_from(-1).is_err());
    }
}
