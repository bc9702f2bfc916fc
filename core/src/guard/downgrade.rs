//! The downgrade of a writer to a reader.
//!
//! Other readers may hold the lock as soon as the request is sent, whatever becomes of the answer.
//! So the hold is a reader's from then on, and stays one: a repeated request finds it in either form.

use std::pin::pin;

use crate::claim::hold::{Ending, Hold};
use crate::client::{ClientInner, silent};
use crate::guard::{Guard, run_while};
use crate::store::claim::LockKind;
use crate::store::distributed_lock::RenewOutcome;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result, invalid};
use crate::types::mode::Mode;

impl Guard {
    /// Makes the guard of [`rw_lock(…).write()`](crate::RwLock::write) a reader's, with no moment in
    /// which it is neither: after the writing, others may read what this guard continues to read.
    /// The token stays. Readers that are next in line are granted the lock; a writer ahead of them
    /// stops them, as ever. There is no way back: a reader that became a writer would wait for the
    /// other readers, and two of them for each other for ever; release it and acquire `write()`.
    ///
    /// A reader's guard stays as it is. From the call on [`mode`](Guard::mode) is shared, answered or
    /// not: other readers may be in, so count on no more than reading.
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`]: the lock was lost.
    /// - [`ErrorKind::Unreachable`]: the store did not confirm within `unreachable_after`. The guard
    ///   still holds the lock at least as a reader; call it again.
    /// - [`ErrorKind::Unsupported`]: the store has no downgrade
    ///   ([`Profile::downgrade`](crate::Profile::downgrade)).
    /// - [`ErrorKind::InvalidArgument`]: a guard of [`lock`](crate::Locks::lock) or of permits, or
    ///   other guards of its [`Owner`](crate::Owner) may still write.
    ///
    /// # Cancel safety
    /// If the future is dropped, the guard is held at least as a reader: whether the store had the
    /// request is unknown until the next call.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// use fencelock::Mode;
    /// let prices = locks.rw_lock("prices").write().acquire().await?;
    /// // … write them …
    /// prices.downgrade().await?;
    /// assert_eq!(prices.mode(), Mode::Shared);
    /// let other = locks.rw_lock("prices").read().try_acquire().await?;
    /// assert!(other.is_some(), "others read them as well, and no writer came between");
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(&self) -> Result<()> {
        let downgraded = downgrade(self).await;
        downgraded.map_err(|error| self.explain(error, Operation::Downgrade))
    }
}

/// Downgrades `guard`, unless it is a reader's.
async fn downgrade(guard: &Guard) -> Result<()> {
    let (client, hold) = (guard.client(), guard.hold());
    require(guard)?;
    if !guard.is_held() {
        return Err(lost(guard.lost().await));
    }
    if hold.claim().mode() == Mode::Shared || hold.downgrade().is_confirmed() {
        return Ok(());
    }
    hold.downgrade().begin(|| guard.is_sole())?;
    let asking = pin!(ask(client, hold));
    run_while(|| guard.is_held(), pin!(guard.lost()), asking).await.map_err(lost)?
}

fn require(guard: &Guard) -> Result<()> {
    let claim = guard.hold().claim();
    if claim.kind() != LockKind::ReadWrite {
        return Err(invalid(
            "only a writer of rw_lock() becomes a reader; acquire it by rw_lock(name).write()",
        ));
    }
    let profile = guard.client().store.profile();
    if !profile.downgrade {
        let store = profile.store;
        let message = format!(
            "the {store} store cannot make a writer a reader; release it and acquire read(), or see \
             docs/guarantees.md for the stores that can"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}

fn lost(reason: LostReason) -> Error {
    Error::new(ErrorKind::Lost, reason.to_string())
}

/// Asks the store until it answers.
async fn ask(client: &ClientInner, hold: &Hold) -> Result<()> {
    let limit = client.settings.unreachable_after;
    let bound = client.now() + limit;
    let mut backoff = Backoff::start();
    let mut last_error = None;
    loop {
        let answer = client.until(bound, hold.cleanup.acquisition.downgrade()).await;
        match answer {
            Some(Ok(RenewOutcome::Renewed { valid_until })) => {
                hold.downgrade().confirm();
                // Too late means that the hold has ended, which the caller finds.
                if hold.extend(valid_until, client.now()) {
                    hold.was_extended();
                }
                return Ok(());
            }
            Some(Ok(RenewOutcome::Lost)) => {
                hold.end(Ending::Lost(LostReason::TakenAway), client.now());
                client.worker.remove(hold.claim().id);
                return Err(lost(LostReason::TakenAway));
            }
            Some(Err(error)) if !error.is_retryable() => return Err(error),
            Some(Err(error)) => last_error = Some(error),
            None => return Err(silent(limit, last_error.or_else(|| unanswered(hold)))),
        }
        let again = client.now() + backoff.next(hold.claim().seed());
        client.store.clock().sleep_until(again.min(bound)).await;
        if client.now() < again {
            return Err(silent(limit, last_error));
        }
    }
}

fn unanswered(hold: &Hold) -> Option<Error> {
    hold.cleanup.acquisition.unanswered()
}
