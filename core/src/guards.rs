//! The guards of several locks that were acquired together.

use std::fmt;
use std::ops::Index;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::guard::{Guard, result_of_work, run_while};
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::types::name::LockName;

/// Several held locks. By index they are in the order in which they were given to [`all`](crate::all()); a lock
/// that was given twice has one guard.
///
/// Tokens of different locks cannot be compared: a resource that two locks protect checks both.
/// Dropping it releases the locks in the background.
#[must_use = "dropping the guards releases the locks"]
pub struct Guards {
    /// In the order of their acquisition.
    pub(crate) guards: Vec<Guard>,
    /// By the index of the given lock.
    pub(crate) order: Vec<usize>,
}

impl Guards {
    /// The number of locks that were given.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no lock was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether every lock is provably held at this moment; see [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// The least remaining validity; see [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or(Duration::MAX)
    }

    /// Completes when the first of the locks is lost.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> (LockName, LostReason) {
        let (guard, reason) = first_lost(&self.guards).await;
        (guard.name().clone(), reason)
    }

    /// Completes when at most `margin` of the validity of one of the locks is left; see
    /// [`Guard::expiring`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self, margin: Duration) {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.guards.iter().map(|guard| Box::pin(guard.expiring(margin)))).await;
    }

    /// Runs `work` while all locks are held, and drops it when one of them is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], naming the lock; see [`Guard::run`].
    ///
    /// # Cancel safety
    /// As cancel safe as `work`; the guards are not affected.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let lost = first_lost(&self.guards);
        let ran = run_while(|| self.is_held(), pin!(lost), pin!(work)).await;
        ran.map_err(|(guard, reason)| {
            guard.explain(Error::new(ErrorKind::Lost, reason.to_string()), Operation::Hold)
        })
    }

    /// Releases all locks at the same time, and waits until the stores have confirmed it.
    ///
    /// # Errors
    /// The first error of those of [`Guard::release`], in the order of the acquisition; each of the
    /// locks was released, or is in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, the releases continue in the background.
    pub async fn release(self) -> Result<()> {
        self.release_each().await.into_iter().collect()
    }

    async fn release_each(self) -> Vec<Result<()>> {
        join_all(self.guards.into_iter().map(Guard::release)).await
    }

    /// Runs `work` while all locks are held, and releases them; see [`All::with`](crate::All::with).
    pub(crate) async fn release_after<T>(self, work: impl AsyncFnOnce(&Guards) -> T) -> Result<T> {
        // Within a future, as in `Guard::start`.
        let done = self.run(async { work(&self).await }).await?;
        result_of_work(done, self.release_each().await)
    }

    /// The guards, each lock once, in the order of their acquisition.
    #[must_use]
    pub fn into_vec(self) -> Vec<Guard> {
        self.guards
    }
}

impl Index<usize> for Guards {
    type Output = Guard;

    /// The guard of the lock that was given at this index.
    fn index(&self, index: usize) -> &Guard {
        &self.guards[self.order[index]]
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}

/// The first loss among `guards`.
pub(crate) async fn first_lost(guards: &[Guard]) -> (&Guard, LostReason) {
    if guards.is_empty() {
        return std::future::pending().await;
    }
    let (reason, index, _) = select_all(guards.iter().map(|guard| Box::pin(guard.lost()))).await;
    (&guards[index], reason)
}
