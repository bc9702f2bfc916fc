//! The resource that a lock protects, as it should be: it rejects a fencing token smaller than the
//! largest it has seen.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

pub(crate) mod ledger;
pub(crate) mod process;

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
    writes: Writes,
}

/// What became of the writes to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Writes that were taken.
    pub accepted: u64,
    /// Reads and writes that were refused for their stale token.
    pub rejected: u64,
    /// Accepted writes by a token after one by a larger token.
    pub stale: u64,
    /// Accepted writes that did not build on the one before: an update was lost.
    pub lost_updates: u64,
    /// The money that the accounts have more or less than transfers between them can leave.
    pub money: i64,
}

impl std::ops::Add for Writes {
    type Output = Writes;

    fn add(self, other: Writes) -> Writes {
        Writes {
            accepted: self.accepted + other.accepted,
            rejected: self.rejected + other.rejected,
            stale: self.stale + other.stale,
            lost_updates: self.lost_updates + other.lost_updates,
            money: self.money + other.money,
        }
    }
}

/// What became of the same writes where tokens are checked and where they are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// In registers that check.
    pub checked: Writes,
    /// In registers that take anything.
    pub unchecked: Writes,
}

impl std::ops::Add for Seen {
    type Output = Seen;

    fn add(self, other: Seen) -> Seen {
        Seen { checked: self.checked + other.checked, unchecked: self.unchecked + other.unchecked }
    }
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
        if !content.admits(token, self.checks) {
            return false;
        }
        content.writes.accepted += 1;
        content.writes.lost_updates += u64::from(value <= content.value);
        content.value = value;
        true
    }

    /// Reads, to write afterwards: from then on smaller tokens are stale. `None` when this one is,
    /// and the register checks.
    pub fn read_with(&self, token: u64) -> Option<u64> {
        let mut content = self.content();
        content.admits(token, self.checks).then_some(content.value)
    }

    /// What was written last.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.content().value
    }

    /// How many writes destroyed a later holder's.
    #[must_use]
    pub fn stale_writes(&self) -> u64 {
        self.content().writes.stale
    }

    /// What became of the writes since this was asked last.
    fn take_writes(&self) -> Writes {
        std::mem::take(&mut self.content().writes)
    }
}

impl Content {
    fn admits(&mut self, token: u64, checks: bool) -> bool {
        let stale = token < self.largest;
        if stale && checks {
            self.writes.rejected += 1;
            return false;
        }
        self.writes.stale += u64::from(stale);
        self.largest = self.largest.max(token);
        true
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

    #[test]
    fn an_update_is_lost_only_where_nothing_is_checked() {
        for (register, lost) in
            [(ProtectedRegister::checking(), 0), (ProtectedRegister::trusting(), 1)]
        {
            let (one, two) = (register.read_with(1), register.read_with(2));
            assert_eq!((one, two), (Some(0), Some(0)));
            register.write(2, 1);
            register.write(1, 1);
            assert_eq!(register.take_writes().lost_updates, lost);
        }
    }
}
