//! Fencing tokens: 64 for each node, from the number of the transaction that created it.
//!
//! The number rises over restarts and changes of leader, and when the lock's node was deleted and
//! created again. The 64 are for further holders that one node stands for: no second number could be
//! had for them, since a transaction has one, whatever it does.

use fencelock_core::FencingToken;

use crate::error::{RequestError, ZkResult};

/// Tokens of one node.
const OF_A_NODE: u64 = 64;
/// The first number whose tokens would not fit in the 56 bits below the epoch.
const END: u64 = 1 << 50;

/// The first token of the node that transaction `czxid` created.
///
/// # Errors
/// [`RequestError::NoTokens`] from 2^50 on, after some 260,000 changes of leader: a token that stops
/// rising protects nothing.
pub(crate) fn first_of(czxid: i64) -> ZkResult<FencingToken> {
    match u64::try_from(czxid) {
        Ok(number) if number < END => Ok(FencingToken::new(number * OF_A_NODE)),
        _ => Err(RequestError::NoTokens { czxid }),
    }
}

/// The transaction that created the node of `token`. An epoch may be above its 56 bits.
pub(crate) fn transaction_of(token: FencingToken) -> i64 {
    i64::try_from(token.get() / OF_A_NODE % END).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::{ErrorKind, Settings, TokenEpoch};

    #[test]
    fn a_token_leads_back_to_its_transaction_also_with_an_epoch() {
        let settings = Settings::default().token_epoch(TokenEpoch::new(127).unwrap());
        let last = i64::try_from(END).unwrap() - 1;
        for czxid in [1, 0x3_0000_0007, last] {
            let token = first_of(czxid).unwrap();
            assert_eq!(token.get(), u64::try_from(czxid).unwrap() * 64);
            assert_eq!(transaction_of(settings.token(token)), czxid);
        }
        assert!(first_of(last).unwrap() < FencingToken::new(u64::MAX), "room for 63 more");
    }

    #[test]
    fn a_number_without_tokens_is_refused_and_not_cut() {
        for czxid in [i64::try_from(END).unwrap(), i64::MAX, -1] {
            let error = first_of(czxid).unwrap_err().into_error();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(!error.is_retryable() && error.message().contains("token_epoch"), "{error}");
        }
    }
}
