//! One error type for every store: what happened, to which lock, on which store, and whether a
//! retry can succeed.
//!
//! The kinds are those that callers distinguish. No message ever contains a password or an owner
//! token.

use std::fmt;
use std::sync::Arc;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kinds of errors that a caller distinguishes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// use fencelock::ErrorKind;
/// /// What a service answers.
/// fn http_status(error: &fencelock::Error) -> u16 {
///     match error.kind() {
///         ErrorKind::Busy | ErrorKind::WaitTimedOut => 409,
///         ErrorKind::Unreachable | ErrorKind::Closed => 503,
///         ErrorKind::InvalidArgument => 400,
///         _ => 500, // also Lost: another client may have worked at the same time
///     }
/// }
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let _held = locks.lock("orders/42").acquire().await?;
/// let second = locks.lock("orders/42").wait_at_most(std::time::Duration::ZERO);
/// assert_eq!(http_status(&second.acquire().await.unwrap_err()), 409);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client holds the lock, or is ahead in its queue, and the caller asked not to wait.
    Busy,
    /// The wait limit ended before the lock was granted.
    WaitTimedOut,
    /// The lock was granted but its validity ended before it was released.
    Lost,
    /// The lock was no longer the caller's when it was released.
    NotHeld,
    /// The store did not answer in time.
    Unreachable,
    /// The store answered and refused: authentication, permission, a read-only or network mount.
    Refused,
    /// The caller's input is invalid: the message says what was expected.
    InvalidArgument,
    /// The store does not support this, for example permits on a quorum.
    Unsupported,
    /// The data at the lock's place was not written by this library, or is of another kind; it was not
    /// changed.
    Foreign,
    /// A write with a smaller fencing token than the cell has seen: a later holder has taken over.
    Stale,
    /// [`Locks::close`](crate::Locks::close) was called, or the runtime that connected ended.
    Closed,
}

impl ErrorKind {
    /// The kind after the last retry: a store whose last answer was a refusal did answer.
    pub(crate) fn given_up_after(cause: Option<&Error>) -> ErrorKind {
        match cause.map(Error::kind) {
            Some(ErrorKind::Refused) => ErrorKind::Refused,
            _ => ErrorKind::Unreachable,
        }
    }

    /// The kind as text for messages.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            ErrorKind::Busy => "busy",
            ErrorKind::WaitTimedOut => "wait timed out",
            ErrorKind::Lost => "lock lost",
            ErrorKind::NotHeld => "not held",
            ErrorKind::Unreachable => "store unreachable",
            ErrorKind::Refused => "refused by the store",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::Unsupported => "not supported by the store",
            ErrorKind::Foreign => "foreign data",
            ErrorKind::Stale => "stale fencing token",
            ErrorKind::Closed => "closed",
        }
    }
}

/// Why a lock was lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::LostReason;
/// use std::time::Duration;
/// let guard = locks.lock("report").hold_at_most(Duration::from_millis(5)).acquire().await?;
/// match guard.lost().await {
///     LostReason::HoldLimit => println!("it took too long"),
///     LostReason::TakenAway => println!("an operator took the lock"),
///     LostReason::Closed => println!("this process shuts down"),
///     reason => println!("start again: {reason}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its validity ended: no renewal was confirmed in time, or a fixed lease ended.
    Expired,
    /// The store reported that another client holds it, or none.
    TakenAway,
    /// `hold_at_most` elapsed.
    HoldLimit,
    /// The connected store was closed, or its runtime ended.
    Closed,
}

impl LostReason {
    /// The reason as it appears in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LostReason::Expired => "expired",
            LostReason::TakenAway => "taken_away",
            LostReason::HoldLimit => "hold_limit",
            LostReason::Closed => "closed",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its validity ended before a renewal was confirmed",
            LostReason::TakenAway => "the store reports that the lock was taken or deleted",
            LostReason::HoldLimit => "hold_at_most elapsed",
            LostReason::Closed => "its client was closed, or the runtime that connected it ended",
        })
    }
}

/// The operation that failed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Operation;
/// let error = locks.lock("").acquire().await.unwrap_err();
/// assert_eq!(error.operation(), Some(Operation::Acquire));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Connecting to a store.
    Connect,
    /// Acquiring a lock, or trying to.
    Acquire,
    /// Renewing a held lock.
    Renew,
    /// Working under a lock, for example in [`Guard::run`](crate::Guard::run).
    Hold,
    /// Making a writer a reader.
    Downgrade,
    /// Releasing a lock.
    Release,
    /// Reading a cell, or what is made of one.
    Read,
    /// Writing a cell, or what is made of one.
    Write,
    /// Waiting for a latch or a barrier.
    Wait,
    /// Removing a cell, or what is made of one.
    Remove,
    /// Inspecting holders and waiters.
    Inspect,
    /// Evicting a holder or waiter.
    Evict,
    /// Removing what a run of a tool has left.
    Clear,
    /// Closing a client.
    Close,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Connect => "connect",
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Hold => "hold",
            Operation::Downgrade => "downgrade",
            Operation::Release => "release",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Wait => "wait",
            Operation::Remove => "remove",
            Operation::Inspect => "inspect",
            Operation::Evict => "evict",
            Operation::Clear => "clear",
            Operation::Close => "close",
        })
    }
}

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// An error of any operation.
///
/// `Display` shows the operation, the lock, the store and the message, which says what to do; the
/// cause is in [`source`](std::error::Error::source). `{error:#}` and `Debug`, which a `main` that
/// returns an error prints, also show the causes, in one line that says nothing twice.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// # use fencelock_core as fencelock;
/// use fencelock::ErrorKind;
/// let error = locks.lock("").acquire().await.unwrap_err();
/// match error.kind() {
///     ErrorKind::Busy | ErrorKind::WaitTimedOut => println!("{:?} is not free", error.lock()),
///     _ if error.is_retryable() => println!("try again later: {}", error.message()),
///     kind => println!("{kind:?} in {:?}: {error}", error.operation()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error {
    pub(super) inner: Box<Inner>,
    source: Option<Source>,
}

#[derive(Clone)]
pub(super) struct Inner {
    kind: ErrorKind,
    retryable: bool,
    message: String,
    operation: Option<Operation>,
    lock: Option<Arc<str>>,
    store: Option<Arc<str>>,
}

impl Error {
    /// An error of `kind`; `message` says what was expected, or what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let inner = Inner {
            kind,
            retryable: matches!(
                kind,
                ErrorKind::Unreachable | ErrorKind::Busy | ErrorKind::WaitTimedOut
            ),
            message: message.into(),
            operation: None,
            lock: None,
            store: None,
        };
        Error { inner: Box::new(inner), source: None }
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.source = Some(cause.into().into());
        self
    }

    /// Sets the cause, if there is one.
    pub(crate) fn with_cause(self, cause: Option<Error>) -> Error {
        match cause {
            Some(cause) => self.caused_by(cause),
            None => self,
        }
    }

    /// Continues the message.
    pub(crate) fn adding(mut self, text: &str) -> Error {
        self.inner.message.push_str(text);
        self
    }

    /// Sets whether a retry can succeed. The default is `true` for [`ErrorKind::Unreachable`],
    /// [`ErrorKind::Busy`] and [`ErrorKind::WaitTimedOut`], and `false` for other kinds.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Error {
        self.inner.retryable = retryable;
        self
    }

    /// Sets the operation, unless it is set already.
    #[must_use]
    pub fn during(mut self, operation: Operation) -> Error {
        self.inner.operation.get_or_insert(operation);
        self
    }

    /// Sets the lock, unless it is set already.
    #[must_use]
    pub fn on(mut self, lock: &str) -> Error {
        self.inner.lock.get_or_insert_with(|| lock.into());
        self
    }

    /// Sets the store, unless it is set already. `store` must not contain a secret.
    #[must_use]
    pub fn with_store(mut self, store: &Arc<str>) -> Error {
        self.inner.store.get_or_insert_with(|| store.clone());
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The message without operation, lock and store.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Whether the same call may succeed later with nothing changed by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.inner.retryable
    }

    /// The operation that failed.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.inner.operation
    }

    /// The name of the lock concerned.
    #[must_use]
    pub fn lock(&self) -> Option<&str> {
        self.inner.lock.as_deref()
    }
}

/// An error about an invalid argument or parameter; `message` says what was expected.
pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The server cannot be asked; a retry may succeed.
pub fn unreachable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}

pub(crate) const CLOSED: &str = "the store was closed, or the runtime that connected ended";

/// After [`close`](crate::Locks::close).
#[must_use]
pub fn closed() -> Error {
    Error::new(ErrorKind::Closed, CLOSED)
}

/// After the end of the runtime that connected.
#[must_use]
pub(crate) fn runtime_ended() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the tokio runtime that connected this client has ended; a client in a static that a #[tokio::test] connects \
         ends with that test: connect in each test, or on a runtime that outlives them all",
    )
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.operation {
            write!(f, "{operation}")?;
            if let Some(lock) = &self.lock {
                write!(f, " {lock:?}")?;
            }
            if let Some(store) = &self.store {
                write!(f, " on {store}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}: {}", self.kind.message(), self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_where_and_why() {
        let error = Error::new(ErrorKind::Busy, "held by web-1")
            .during(Operation::Acquire)
            .on("orders/42")
            .with_store(&Arc::from("redis://host:6379"))
            .caused_by("io");
        assert_eq!(
            error.to_string(),
            r#"acquire "orders/42" on redis://host:6379: busy: held by web-1"#
        );
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "io");
        assert!(error.is_retryable() && !error.retryable(false).is_retryable());
        assert!(!Error::new(ErrorKind::Refused, "wrong password").is_retryable());
    }

    #[test]
    fn is_one_pointer_and_its_cause() {
        assert!(size_of::<Error>() <= 24, "results stay small on the hot path");
    }
}
