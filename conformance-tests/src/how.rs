//! The kind of a lock as plain data: histories record it, and peers are sent it.

use fencelock_core::{Guard, Lock, Locks, Mode, Permits};
use serde::{Deserialize, Serialize};

/// How a lock is wanted, in a form that can be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum How {
    /// Alone.
    Exclusive,
    /// As a reader.
    Shared,
    /// Some of a limited number of permits.
    Permits {
        /// How many.
        n: u32,
        /// Of how many.
        limit: u32,
    },
}

impl How {
    /// The lock `name`, wanted like this.
    pub fn lock(self, locks: &Locks, name: &str) -> Lock {
        match self {
            How::Exclusive => locks.lock(name),
            How::Shared => locks.rw_lock(name).read(),
            How::Permits { n, limit } => locks.semaphore(name, limit).permits(n),
        }
    }

    /// How `guard` holds.
    #[must_use]
    pub fn of(guard: &Guard) -> How {
        match guard.mode() {
            Mode::Exclusive => How::Exclusive,
            Mode::Shared => How::Shared,
            Mode::Permits(permits) => How::Permits { n: permits.n(), limit: permits.limit() },
        }
    }

    /// As a mode; `None` for permits that can never be granted.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            How::Exclusive => Some(Mode::Exclusive),
            How::Shared => Some(Mode::Shared),
            How::Permits { n, limit } => Permits::new(n, limit).ok().map(Mode::Permits),
        }
    }
}
