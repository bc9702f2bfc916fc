//! The check of a held lock that a database makes in the user's own transaction.

use std::fmt;
use std::time::Duration;

/// A statement that a transaction on the lock's own database runs **first**, and by itself: from there to the end of
/// that transaction nobody else is granted the lock, also if the lease ends, the client falls silent or a
/// clock jumps meanwhile. What the same statement reads may be from before an earlier turn's end. It fails, with
/// SQLSTATE `FL001`, when the lock is no longer this guard's.
///
/// [`Guard::check`](crate::Guard::check) makes it. Any client of the database runs it, with its three
/// arguments in this order: [`key`](Check::key) as `bytea`, [`token`](Check::token) as `bigint` and
/// [`idle_ms`](Check::idle_ms) as `int`.
#[derive(Clone, PartialEq, Eq)]
pub struct Check {
    sql: String,
    key: Vec<u8>,
    token: i64,
    idle: Duration,
}

impl Check {
    /// For the authors of stores: this statement with its arguments.
    #[must_use]
    pub fn new(sql: String, key: &[u8], token: i64, idle: Duration) -> Check {
        Check { sql, key: key.to_vec(), token, idle }
    }

    /// The statement.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The lock's key in the store: `$1`.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The fencing token as the store knows it, which is without the epoch: `$2`.
    #[must_use]
    pub fn token(&self) -> i64 {
        self.token
    }

    /// For how many milliseconds the client may be silent within the transaction, before the server ends
    /// it and the lock can go on: `$3`. What is left of the validity, at least one.
    #[must_use]
    pub fn idle_ms(&self) -> i32 {
        i32::try_from(self.idle.as_millis()).unwrap_or(i32::MAX).max(1)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("sql", &self.sql)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
