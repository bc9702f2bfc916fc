//! Distributed locks with pluggable stores: one API, one behaviour, the store chosen by a URL.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
//! let locks = fencelock::connect("mem://").await?; // file:///var/lib/jobs/locks, …
//! let guard = locks.lock("orders/42").acquire().await?; // waits until it is free
//! println!("charge the card, with fencing token {}", guard.fencing_token());
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! Cargo features choose the stores: `memory` and `file`, both on by default, and `redis` and `zk`,
//! with `tls` and `zk-tls` for encrypted connections. `redis` includes Redlock, `redis-single` does not.
//! `metrics`, on by default, reports to the recorder of the crate `metrics`.
//! The repository's docs/guarantees.md states what each of them guarantees, and what it cannot.

mod features;

use std::time::Duration;

pub use fencelock_core::*;

use fencelock_core::url::Scheme;

/// The stores this program was built with, those of the widest reach first.
pub const SCHEMES: &[Scheme] = &[
    #[cfg(feature = "redis-single")]
    fencelock_redis::SCHEME,
    #[cfg(feature = "redlock")]
    fencelock_redis::REDLOCK_SCHEME,
    #[cfg(feature = "zk")]
    fencelock_zk::SCHEME,
    #[cfg(feature = "file")]
    fencelock_file::SCHEME,
    #[cfg(feature = "memory")]
    memory::SCHEME,
];

/// Administration of the nodes of a `redlock://` URL: declare them new, show their status, replace
/// the set. `fencelock redlock` does this on the command line.
#[cfg(feature = "redlock")]
pub mod redlock {
    pub use fencelock_redis::redlock::{
        Deployment, LockSeen, Membership, NodeSeen, NodeStatus, Replaced, init, open_when_due,
        replace, status,
    };
}

/// The environment variable that [`connect_from_env`] reads.
pub const URL_VARIABLE: &str = "FENCELOCK_URL";

/// Connects to the store that `url` names, on the current tokio runtime.
///
/// Every store takes the parameters `ttl` (30s), `prefix` (`lock:`), `unreachable_after` (30s),
/// `token_epoch` (0), `label` (none; it follows the host name and process id) and `metrics_by_lock`
/// (false); durations are written like `500ms`, `2s`, `1m30s`. [`connect_with`] sets them in code.
///
/// An unreachable store, such as a server that is starting, is retried until `unreachable_after` has
/// passed: at first after 20 ms, later about once a second. [`connect_within`] takes a limit of its
/// own, and [`connect_lazy`] does not wait at all.
///
/// Network stores need real time. A paused tokio clock (`tokio::time::pause`) jumps to the end of
/// every bound before an answer arrives; tests with a paused clock use `mem://`.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`]: an invalid URL; the message says what was expected. Also outside
///   a tokio runtime, and on one that was built without `enable_all`.
/// - [`ErrorKind::Unreachable`]: the store did not answer within `unreachable_after`. The last
///   attempt's error is the [source](std::error::Error::source).
/// - [`ErrorKind::Refused`]: the store refused, for example the password. This is not retried.
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect(url: &str) -> Result<Locks> {
    features::require(url)?;
    fencelock_core::url::connect(SCHEMES, url).await
}

/// As [`connect`], with settings made in code. They are the program's defaults: a parameter of the
/// URL, which an operator chooses for one deployment, replaces the setting of the same name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// use fencelock::{Label, Settings};
/// let settings = Settings::default()
///     .prefix("shop:")
///     .label(Label::of_this_process().with("the importer"))
///     .metrics_by_lock(true);
/// let locks = fencelock::connect_with("mem://?prefix=test:", settings).await?; // prefix: test:
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect_with(url: &str, settings: Settings) -> Result<Locks> {
    features::require(url)?;
    fencelock_core::url::connect_with(SCHEMES, url, settings).await
}

/// As [`connect`], but until `limit` has passed, regardless of `unreachable_after`. Zero makes one
/// attempt, of at most 2 s.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Cancel safe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// use std::time::Duration;
/// let locks = fencelock::connect_within("mem://", Duration::from_secs(60)).await?;
/// # Ok(()) }
/// ```
pub async fn connect_within(url: &str, limit: Duration) -> Result<Locks> {
    features::require(url)?;
    fencelock_core::url::connect_within(SCHEMES, url, limit).await
}

/// Returns at once and connects in the background, on the current tokio runtime: for a service that
/// starts while its store is unreachable.
///
/// Until the store is connected, each acquisition waits for the connection as it waits for a store
/// that does not answer: up to its wait limit, or `unreachable_after` without one. So do
/// [`inspect`](Locks::inspect), [`evict`](Locks::evict) and [`ready`](Locks::ready), which waits for
/// nothing else. [`profile`](Locks::profile) guarantees nothing until then. The attempts continue
/// until one succeeds, or the `Locks` is closed or dropped with all its clones. A store that refuses,
/// for example the password, is retried only for a new call, which gets the error.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an invalid URL, and outside a tokio runtime.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// let locks = fencelock::connect_lazy("mem://")?;
/// let guard = locks.lock("orders/42").acquire().await?; // waits for the store, then for the lock
/// # guard.release().await?;
/// # Ok(()) }
/// ```
pub fn connect_lazy(url: &str) -> Result<Locks> {
    features::require(url)?;
    fencelock_core::url::connect_lazy(SCHEMES, url)
}

/// As [`connect_lazy`], with settings made in code, as for [`connect_with`].
///
/// # Errors
/// As [`connect_lazy`].
pub fn connect_lazy_with(url: &str, settings: Settings) -> Result<Locks> {
    features::require(url)?;
    fencelock_core::url::connect_lazy_with(SCHEMES, url, settings)
}

/// Connects to the store that `FENCELOCK_URL` names.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// let locks = fencelock::connect_from_env().await?; // FENCELOCK_URL=redis://localhost
/// # locks.close().await }
/// ```
///
/// # Errors
/// As [`connect`]; [`ErrorKind::InvalidArgument`] when the variable is not set.
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect_from_env() -> Result<Locks> {
    match std::env::var(URL_VARIABLE) {
        Ok(url) => connect(&url).await,
        // The cause would show the variable's text, which may contain a password.
        Err(cause) => {
            let what = match cause {
                std::env::VarError::NotPresent => "is not set",
                std::env::VarError::NotUnicode(_) => "is not UTF-8",
            };
            let message = format!(
                "{URL_VARIABLE} {what}; expected a store URL, such as redis://HOST or file:///DIR"
            );
            Err(Error::new(ErrorKind::InvalidArgument, message).during(Operation::Connect))
        }
    }
}

/// The README's program compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
