//! What the code calls that `#[locked]` makes. Not for programs: it changes without notice.

use fencelock_core::{Error, Result};

/// What a locked function returns.
#[diagnostic::on_unimplemented(
    message = "expected a function that returns a Result<_, E> where E: From<fencelock::Error>",
    label = "an error of the lock cannot be returned as this type",
    note = "an error type of your own has it by `impl From<fencelock::Error>`, or thiserror's `#[from]`"
)]
pub trait Returned: Sized {
    /// What the body returned, or the error of its lock.
    fn of(locked: Result<Self>) -> Self;
}

// Else the compiler would report a part of the bounds, without the message.
#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> Returned for std::result::Result<T, E> {
    fn of(locked: Result<Self>) -> Self {
        locked.unwrap_or_else(|error| Err(error.into()))
    }
}

/// What a locked function with `try` returns.
#[diagnostic::on_unimplemented(
    message = "expected a function that returns a Result<Option<T>, E> where E: \
               From<fencelock::Error>: with `try`, None says that the lock is not free",
    label = "this type has no None, or no error of the lock"
)]
pub trait Tried: Sized {
    /// What the body returned, nothing if the lock was not free, or the error of the lock.
    fn of(locked: Result<Option<Self>>) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Error>> Tried for std::result::Result<Option<T>, E> {
    fn of(locked: Result<Option<Self>>) -> Self {
        match locked {
            Ok(returned) => returned.unwrap_or(Ok(None)),
            Err(error) => Err(error.into()),
        }
    }
}
