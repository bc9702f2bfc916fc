//! A mutex without poisoning, for the core and for backends.

use std::fmt;
use std::sync::{MutexGuard, PoisonError};

/// [`std::sync::Mutex`] whose `lock` ignores poison.
///
/// A poisoned mutex would turn one panic into a panic of every thread that locks it later, among them
/// the task that renews all locks of a client. The critical sections of this project are short and
/// leave their data consistent at every step that can panic, so the data is still valid.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that contains `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// The value, which no other thread can lock any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex, and blocks until it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_the_lock_does_not_poison_it() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut locked = mutex.lock();
                *locked += 1;
                panic!("while the mutex is locked");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(mutex.into_inner(), 2);
    }
}
