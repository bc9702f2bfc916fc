//! Tests of a service on real lock servers, and on broken ones.
//!
//! [`#[fencelock_testkit::test]`](macro@test) runs an async test once for each store that it names,
//! starts the servers and ends them; a [`TestStore`] breaks the test's own connections. The
//! repository's docs/testing-your-service.md has a service with its tests.
//!
//! ```
//! # use fencelock_core as fencelock;
//! use fencelock::Locks;
//!
//! #[fencelock_testkit::test(mem, file, redis, zk)]
//! async fn a_job_runs_once(locks: Locks) {
//!     let first = locks.lock("nightly").acquire().await.unwrap();
//!     assert!(locks.lock("nightly").try_acquire().await.unwrap().is_none());
//!     first.release().await.unwrap();
//! }
//! ```
//!
//! Below it, for tests that need more: [`servers`] are real servers on demand, and [`proxy`] breaks
//! the connections to them.
//!
//! The cargo feature `stores` adds what the tests of a store need, and its crates: whole deployments
//! and their faults, the steps of fault tests, long runs, Linux namespaces.

pub mod attribute;
mod port;
pub mod proxy;
pub mod servers;
mod test_store;

/// Runs an async test once for each store that it names: `mem`, `file`, `postgres`, `redis` and `zk`.
///
/// The function takes `(locks: Locks)`, a client of the store; `(store: TestStore)`, the store with
/// its [faults](TestStore), or both; it returns what a test returns. The tests are named after the
/// function and the store: `buys_once::redis`. `#[ignore]` and `#[should_panic]` apply to all of
/// them. The crate needs `fencelock` as a dependency, with the features of the stores.
///
/// ```
/// # use fencelock_core as fencelock;
/// use fencelock::{Locks, Result};
/// use fencelock_testkit::TestStore;
///
/// #[fencelock_testkit::test(redis, zk, ttl = "2s")]
/// async fn a_cut_off_holder_loses_the_lock(locks: Locks, store: TestStore) -> Result<()> {
///     let guard = locks.lock("nightly").acquire().await?;
///     store.cut_off().await?;
///     guard.lost().await;
///     store.heal().await?;
///     locks.lock("nightly").acquire().await?.release().await
/// }
/// ```
///
/// # Options
/// - `own_server`: a server for each test, so that the test may [freeze](TestStore::freeze) and
///   [restart](TestStore::restart) it.
/// - `ttl = "2s"`: the default lease of the store's clients, in ZooKeeper their session, so that a
///   loss shows soon.
/// - `start_paused = true`: a paused clock, for `mem` alone.
/// - `flavor = "multi_thread"`: a runtime of several threads; else, as for `tokio::test`, of one.
///
/// # Where the stores come from
/// - `mem` is the process's memory, `file` a directory that is deleted after the test.
/// - `postgres`, `redis` and `zk` use the servers that `FENCELOCK_TEST_POSTGRES_URL`,
///   `FENCELOCK_TEST_REDIS_URL` and `FENCELOCK_TEST_ZK_URL` name. Without these variables, the first
///   test starts a server from the programs on this machine, which all tests of the run share, also
///   those of other test programs; it ends two seconds after the last of them, also if they were
///   killed.
/// - `FENCELOCK_TEST_FILE_URL` names a directory on the file system to test on.
/// - A server that is not installed fails the test, with what to install; with
///   `FENCELOCK_TEST_MISSING=ignore` the test passes and says on standard error that it was ignored.
///
/// Each test works under a fresh prefix, and what it made is removed at its end.
pub use fencelock_testkit_macros::test;
pub use test_store::{StoreKind, TestStore};

#[cfg(feature = "stores")]
pub mod clocks;
#[cfg(feature = "stores")]
pub mod deployments;
#[cfg(feature = "stores")]
pub mod fuzzing;
#[cfg(feature = "stores")]
pub mod helpers;
#[cfg(feature = "stores")]
pub mod netns;
#[cfg(feature = "stores")]
pub mod postgres_harness;
#[cfg(feature = "stores")]
pub mod proxied;
#[cfg(feature = "stores")]
pub mod scenes;
#[cfg(feature = "stores")]
pub mod torture;
