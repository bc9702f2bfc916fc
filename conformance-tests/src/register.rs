//! The resource that a lock protects, as it should be: it rejects a fencing token smaller than the
//! largest it has seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One number, written with fencing tokens.
///
/// The kind that does not check shows what happens without: tests that freeze a holder must find
/// lost updates there, or they prove nothing.
#[derive(Debug)]
pub struct ProtectedRegister {
    checks: bool,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    value: u64,
    largest: u64,
    /// Accepted writes by a token that a larger one had overtaken.
    stale: u64,
}

impl ProtectedRegister {
    /// One that rejects stale tokens.
    #[must_use]
    pub fn checking() -> ProtectedRegister {
        ProtectedRegister { checks: true, content: Mutex::default() }
    }

    /// One that takes anything.
    #[must_use]
    pub fn trusting() -> ProtectedRegister {
        ProtectedRegister { checks: false, content: Mutex::default() }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `value`; `false` when `token` is stale and the register checks.
    pub fn write(&self, token: u64, value: u64) -> bool {
        let mut content = self.content();
        let stale = token < content.largest;
        if stale && self.checks {
            return false;
        }
        content.stale += u64::from(stale);
        content.largest = content.largest.max(token);
        content.value = value;
        true
    }

    /// What was written last.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.content().value
    }

    /// How many writes destroyed a later holder's.
    #[must_use]
    pub fn stale_writes(&self) -> u64 {
        self.content().stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_token_is_rejected_only_where_it_is_checked() {
        let register = ProtectedRegister::checking();
        assert!(register.write(5, 1) && register.write(5, 2) && !register.write(4, 3));
        assert_eq!((register.read(), register.stale_writes()), (2, 0));
        let register = ProtectedRegister::trusting();
        assert!(register.write(5, 1) && register.write(4, 3));
        assert_eq!((register.read(), register.stale_writes()), (3, 1));
    }
}
