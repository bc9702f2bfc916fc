//! Claims, as clients make them.

use uuid::Uuid;

/// In us.
pub(crate) const SECOND: i64 = 1_000_000;
/// Far longer than a run.
pub(crate) const LONG: i64 = 30 * SECOND;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Uuid,
    /// `x`, `s` or `p`.
    pub(crate) mode: char,
    pub(crate) n: i64,
    pub(crate) limit: i64,
    /// In us.
    pub(crate) ttl: i64,
    pub(crate) process: String,
    pub(crate) tokens: i32,
}

impl Claim {
    fn new(number: u128, mode: char, n: i64, limit: i64) -> Claim {
        let process = format!("fl_{:016x}", number % 5);
        let owner = Uuid::from_u128(number);
        Claim { key: b"lock".to_vec(), owner, mode, n, limit, ttl: LONG, process, tokens: 1 }
    }

    pub(crate) fn exclusive(number: u128) -> Claim {
        Self::new(number, 'x', 1, 1)
    }

    pub(crate) fn shared(number: u128) -> Claim {
        Self::new(number, 's', 1, 1)
    }

    pub(crate) fn permits(number: u128, n: i64, limit: i64) -> Claim {
        Self::new(number, 'p', n, limit)
    }

    pub(crate) fn ttl(self, ttl: i64) -> Claim {
        Claim { ttl, ..self }
    }

    pub(crate) fn tokens(self, tokens: i32) -> Claim {
        Claim { tokens, ..self }
    }

    pub(crate) fn key(self, key: &[u8]) -> Claim {
        Claim { key: key.to_vec(), ..self }
    }
}

/// What Postgres calls "char".
pub(crate) fn char_of(mode: char) -> i8 {
    i8::try_from(u32::from(mode)).unwrap()
}
