//! Distributed locks with pluggable stores: one API, one behaviour, the store chosen by a URL.
//!
//! Every lock carries a fencing token, is renewed while it is held, reports a loss in time, and cleans
//! up after itself when a future is dropped.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
//! let locks = fencelock::connect("mem://").await?; // redis://HOST, file:///DIR, … in production
//! let guard = locks.lock("orders/42").acquire().await?; // waits until it is free
//! println!("charge the card, with fencing token {}", guard.fencing_token());
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! ```sh
//! cargo add fencelock --features redis
//! cargo add tokio --features macros,rt-multi-thread
//! ```
//!
//! # Five types
//!
//! | type | what it is |
//! |---|---|
//! | [`Locks`] | the client of a store. [`connect`] once per process and clone it |
//! | [`Lock`] | a name and the options of an acquisition, from [`Locks::lock`] or [`Locks::semaphore`] |
//! | [`RwLock`] | a name for readers and writers, from [`Locks::rw_lock`] |
//! | [`Guard`] | a held lock, renewed in the background until it is released or dropped |
//! | [`Error`] | what failed, on which lock and store, and what to try; [`ErrorKind`] is for `match` |
//!
//! # Acquiring
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
//! # let locks = fencelock::connect("mem://").await?;
//! use std::time::Duration;
//! // 1. Wait, in order of arrival, for as long as it takes.
//! let guard = locks.lock("a").acquire().await?;
//! // 2. Wait for at most three seconds; then the error is `ErrorKind::WaitTimedOut`.
//! let guard = locks.lock("b").wait_at_most(Duration::from_secs(3)).acquire().await?;
//! // 3. Do not wait: skip if another client holds it.
//! if let Some(guard) = locks.lock("c").try_acquire().await? { /* the work */ }
//! // 4. Together with others: as one of many readers, or with one of three permits.
//! let reader = locks.rw_lock("d").read().acquire().await?;
//! let permit = locks.semaphore("e", 3).acquire().await?;
//! # Ok(()) }
//! ```
//!
//! [`connect_with`] takes settings made in code, such as a prefix for the names and a [`Label`] that is
//! shown as the holder; [`connect_lazy`] does not wait for a store that is away.
//!
//! A lock is **not re-entrant**: a task that acquires a lock again waits for itself, unless both
//! acquisitions have one [`Owner`] ([`docs::reentrancy`]). [`all`] acquires several locks without a
//! deadlock, and [`Lock::with`] acquires, works and releases in one call.
//!
//! # When a lock is lost
//!
//! A lock can end before it is released: the store was unreachable for longer than the TTL, the process
//! was paused, an operator took the lock away. [`LostReason`] lists the reasons. The holder is notified
//! by its own clock, without help from the store, before another client can acquire the lock:
//!
//! - [`Guard::run`] cancels a future when the lock is lost. This is what most programs need.
//! - [`Guard::lost`] completes at the loss, and [`Guard::expiring`] some time before; both are for
//!   `select!`.
//! - [`Guard::is_held`] answers at once, for code that is not async.
//!
//! Between such a check and the arrival of a write any time may pass, on every store. So pass the
//! [`FencingToken`] with each write and let the resource reject a smaller one than it has seen; its page
//! shows how, also in SQL.
//!
//! # Testing
//!
//! `mem://` needs no server and runs on tokio's clock. With `#[tokio::test(start_paused = true)]` an hour
//! of renewals takes no time, and a wait of two seconds is exactly two seconds: [`docs::testing`].
//!
//! # Metrics and spans
//!
//! Waits, holds, renewals and losses are reported to the recorder of the crate
//! [`metrics`](https://docs.rs/metrics), with descriptions, and as spans and events of
//! [`tracing`](https://docs.rs/tracing): [`docs::metrics`].
//!
//! # Choosing a store
//!
//! | URL | excludes | feature | choose it when |
//! |---|---|---|---|
//! | `mem://` | tasks of one process | `memory` | a test has no server |
//! | `file:///DIR` | processes of one machine | `file` | all programs run on one machine |
//! | `redis://HOST` | all clients of the server | `redis` | you have a Redis, and the resource checks the fencing token or double work is only a nuisance |
//! | `redlock://H1,H2,H3` | all clients of a majority | `redis` | locks must stay available while a Redis server is down |
//! | `zk://H1,H2,H3` | all clients of the ensemble | `zk` | the same, with permits and in order of arrival, or together with Curator |
//!
//! [`docs::choosing_a_store`] says when each of them fails. [`Locks::profile`] has the same as data, for
//! the store as it is configured.
//!
//! # Cargo features
//!
//! | feature | default | what it brings |
//! |---|---|---|
//! | `memory` | yes | `mem://` |
//! | `file` | yes | `file://` |
//! | `macros` | | the attribute [`locked`](macro@locked), which runs a function under a lock |
//! | `metrics` | yes | reports to the recorder of the crate `metrics` |
//! | `redis` | | `redis-single` and `redlock` |
//! | `postgres` | | `postgres://` |
//! | `redis-single` | | `redis://`, `redis+unix://`, `redis+sentinel://`, `redis-cluster://` |
//! | `redlock` | | `redlock://`, and the module `redlock` to administer its nodes |
//! | `zk` | | `zk://` |
//! | `tls` | | `rediss://` and the other encrypted schemes of Redis, by rustls; needs `redis` or a part of it |
//! | `zk-tls` | | the parameter `tls_ca=` of `zk://`; needs `zk`, whose transport brings a second library for encryption |
//! | `sasl` | | the parameter `auth=sasl-digest-md5:` of `zk://`; needs `zk` |
//!
//! # More
//!
//! [`docs`] has a page for each of these subjects, and on runtimes, connections, shutdown and upgrades.
//! Authors of stores find their part in [`backend`]. The command `fencelock` runs programs under the same
//! locks, and the repository's docs/guarantees.md states what each store guarantees.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
#[path = "features.rs"]
pub mod __features;

use std::time::Duration;

#[cfg(feature = "memory")]
pub use fencelock_core::memory::Memory;
pub use fencelock_core::{
    Error, ErrorKind, FencingToken, Guard, Lock, Locks, LostReason, Owner, Profile, Reach, Result,
    RwLock, Settings, Snapshot, Tick, all,
};
// A program may leave out `types`; the front page lists only what every program needs.
#[doc(hidden)]
pub use types::*;

#[cfg(feature = "memory")]
use fencelock_core::memory;
use fencelock_core::url::Scheme;

/// Runs an async function under a lock: it is acquired before the body and released after it, and a
/// loss drops the body, as [`Lock::with`] does.
///
/// | argument | |
/// |---|---|
/// | `by = LOCKS` | required: an expression of the type [`Locks`], a reference to it or a smart pointer, such as `self.locks` |
/// | `name = "stock/{item}"` | required: a format string over the function's arguments, or an expression of a string, such as `format!("stock/{}", self.item)` |
/// | `read`, `write` | a reader or the writer of [`Locks::rw_lock`]; by default [`Locks::lock`] |
/// | `try` | if the lock is not free, the function returns `Ok(None)` at once, or after `wait` |
/// | `as = guard` | the `&`[`Guard`] by this name in the body, for its fencing token |
/// | `wait = "3s"` | [`Lock::wait_at_most`]; without it the function waits for as long as it takes |
/// | `ttl = "10s"` | [`Lock::ttl`], `"100ms"` to `"24h"`; by default that of the store |
/// | `at_most = "1m"` | [`Lock::hold_at_most`], `"1ms"` to `"365days"`: the body is dropped at this limit |
/// | `local_handoffs = 16` | [`Lock::local_handoffs`], 1 to 1024: for a function that many tasks of this process call. Not with `read` or `write` |
/// | `owner = OWNER` | [`Lock::owned_by`]: an [`Owner`] or a reference to it, such as an argument of the function; a new one in each call would wait for the others |
///
/// Durations are in quotes, with their unit, as in the URL of a store: `"500ms"`, `"2s"`, `"1m30s"`. They and
/// the other literals are checked by the compiler. Other options of [`Lock`] and semaphores have no
/// argument: call [`Lock::with`] in the function.
///
/// The function returns a `Result<T, E>` with `E: From<`[`Error`]`>`; with `try`, a `Result<Option<T>, E>`. Its
/// own name is not part of the lock's: two functions with one `name` exclude each other, and one that
/// calls the other waits for itself, unless both have one `owner`. Expressions are evaluated before the
/// lock is acquired, and may use the function's arguments.
///
/// Arguments are put into the name as they are: of `"{a}/{b}"`, `("x/y", "z")` and `("x", "y/z")` are one lock, which
/// waits for what need not wait, and for itself if one calls the other. Separate them by what no argument contains. A
/// name of more than 512 bytes, such as of a long argument, is an [`ErrorKind::InvalidArgument`] of the call.
///
/// # Errors
/// Those of [`Lock::with`], converted by `From`, besides what the body returns:
/// - those of [`Lock::acquire`]: the body has not begun. With `try`, a lock that is not free is `Ok(None)`.
/// - [`ErrorKind::Lost`]: the lock was lost, or `at_most` ended, before the body did, which was dropped at
///   an await.
/// - [`ErrorKind::NotHeld`]: the body ended, but the store says that another client may have held the lock
///   meanwhile; what the body returned is dropped.
///
/// # Cancel safety
/// Dropped at any await, the function drops its body, and leaves neither a place in the queue nor a lock:
/// the clean-up runs in the background.
///
/// ```
/// use fencelock::{Locks, locked};
///
/// struct Shop {
///     locks: Locks,
/// }
///
/// impl Shop {
///     /// Buyers of one item wait for each other, those of different items do not.
///     #[locked(by = self.locks, name = "stock/{item}", wait = "3s", as = guard)]
///     async fn buy(&self, item: &str) -> fencelock::Result<i64> {
///         // UPDATE stock SET left = left - 1, token = $2 WHERE item = $1 AND token <= $2
///         Ok(i64::from(guard.fencing_token()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// let shop = Shop { locks: fencelock::connect("mem://").await? };
/// shop.buy("lamp").await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "macros")]
pub use fencelock_macros::locked;

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "locked.rs"]
pub mod __locked;
pub mod docs;

/// The stores this program was built with, those of the widest reach first.
pub const SCHEMES: &[Scheme] = &[
    #[cfg(feature = "redis-single")]
    fencelock_redis::SCHEME,
    #[cfg(feature = "redlock")]
    fencelock_redis::REDLOCK_SCHEME,
    #[cfg(feature = "postgres")]
    fencelock_postgres::SCHEME,
    #[cfg(feature = "zk")]
    fencelock_zk::SCHEME,
    #[cfg(feature = "file")]
    fencelock_file::SCHEME,
    #[cfg(feature = "memory")]
    memory::SCHEME,
];

/// The types of options, and of the parts of answers.
///
/// They are also at the root of the crate: `fencelock::Ttl` is `fencelock::types::Ttl`.
pub mod types {
    pub use fencelock_core::{
        All, Barrier, Cell, CellDurability, CellValue, CellVersion, CellWatch, Claimed, Counter,
        Election, Guards, Health, Ids, Label, Latch, Leader, Liveness, LockName, Mode, Modes,
        Moment, Observer, Once, Operation, Order, Participant, ParticipantId, Permits, RenewalPlan,
        Run, Term, TokenEpoch, TokenOrder, Trip, Ttl, parse_duration,
    };
}

/// For authors of stores, and of tools that work with store URLs: all of `fencelock-core`.
///
/// [`DistributedLock`](backend::DistributedLock) is what a store implements. The repository's
/// docs/writing-a-backend.md describes it step by step, and `conformance-tests/examples/own_store.rs` is a
/// whole store. A backend that is published depends on `fencelock-core` alone.
pub mod backend {
    #[doc(no_inline)]
    pub use fencelock_core::backend::*;
    #[doc(no_inline)]
    pub use fencelock_core::*;
}

/// The lock in the database of the data: what protects the data itself.
///
/// [`Guard::check`] of a `postgres://` lock gives the statement that a transaction runs first;
/// [`run_check`](postgres::run_check) runs it. [`run_fence`](postgres::run_fence) does the like for a lock
/// of any other store. `examples/guarded_stock.rs` shows both.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use fencelock_postgres::{fence_statement, run_check, run_fence, schema};
}

/// Administration of the nodes of a `redlock://` URL: declare them new, show their status, replace
/// the set. `fencelock redlock` does this on the command line.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// use fencelock::redlock;
/// redlock::init("redlock://H1,H2,H3").await?; // new servers: they take part at once
/// for node in redlock::status("redlock://H1,H2,H3", Some("orders/42")).await? {
///     println!("{node:?}, takes part: {}", node.takes_part());
/// }
/// let change = redlock::replace("redlock://H1,H2,H3", "redlock://H1,H2,H4?set_epoch=2").await?;
/// println!("{change:?}"); // when the new set takes part; no lock is granted until then
/// redlock::open_when_due("redlock://H1,H2,H4?set_epoch=2").await
/// # }
/// ```
#[cfg(feature = "redlock")]
pub mod redlock {
    pub use fencelock_redis::redlock::{
        Deployment, LockSeen, Membership, NodeSeen, NodeStatus, Replaced, init, open_when_due,
        replace, status,
    };
}

/// The environment variable that [`connect_from_env`] reads.
pub const URL_VARIABLE: &str = "FENCELOCK_URL";

/// Connects to the store that `url` names, on the current tokio runtime, which must go on running: renewals, replies
/// and the timers of limits are its tasks. One of a single thread runs only inside its `block_on`.
///
/// Every store takes the parameters `ttl` (30s), `prefix` (`lock:`), `unreachable_after` (30s),
/// `token_epoch` (0), `label` (none; it follows the host name and process id), `metrics_by_lock`
/// (false) and [`local_handoffs`](Settings::local_handoffs) (1); durations are written like `500ms`, `2s`,
/// `1m30s`. [`connect_with`] sets them in code.
///
/// An unreachable store, such as a server that is starting, is retried until `unreachable_after` has
/// passed: at first after 20 ms, later about once a second. [`connect_within`] takes a limit of its
/// own, and [`connect_lazy`] does not wait at all.
///
/// Network stores need real time. A paused tokio clock (`tokio::time::pause`) jumps to the end of
/// every bound before an answer arrives; tests with a paused clock use `mem://`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock::Result<()> {
/// let locks = fencelock::connect("mem://?ttl=10s&prefix=shop:").await?;
/// println!("excludes {}", locks.profile().reach);
/// // What this store cannot promise as it is configured, for the log at the start of a service.
/// for reason in &*locks.profile().exclusion_fails_when {
///     println!("exclusion fails when {reason}");
/// }
/// # locks.close().await }
/// ```
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
    __features::require(url)?;
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
    __features::require(url)?;
    fencelock_core::url::connect_with(SCHEMES, url, settings).await
}

/// As [`connect`], but until `limit` has passed, regardless of `unreachable_after`. Zero makes one
/// attempt, of at most 2.5 s.
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
    __features::require(url)?;
    fencelock_core::url::connect_within(SCHEMES, url, limit).await
}

/// Returns at once and connects in the background, on the current tokio runtime: for a service that
/// starts while its store is unreachable.
///
/// Until the store is connected, each acquisition waits for the connection as it waits for a store
/// that does not answer: up to its wait limit, or `unreachable_after` without one. So do
/// [`inspect`](Locks::inspect), [`evict`](Locks::evict) and [`until_connected`](Locks::until_connected), which waits for
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
    __features::require(url)?;
    fencelock_core::url::connect_lazy(SCHEMES, url)
}

/// As [`connect_lazy`], with settings made in code, as for [`connect_with`].
///
/// # Errors
/// As [`connect_lazy`].
pub fn connect_lazy_with(url: &str, settings: Settings) -> Result<Locks> {
    __features::require(url)?;
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
