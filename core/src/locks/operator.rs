//! What operators and tools ask of a store: who holds a lock, its end by force, and the removal of what is
//! of no use any more.

use std::time::Duration;

use super::Locks;
use crate::cells::{ExpiredCell, ExpiredCells, expired};
use crate::client::connection::Bound;
use crate::store::distributed_lock::{ParticipantId, ReleaseOutcome, Snapshot};
use crate::store::scratch::Scratch;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, Operation, Result};
use crate::types::name::LockName;
use crate::types::options::format_duration;

/// What [`Locks::health`] has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store had been connected before: not yet, with `connect_lazy`.
    pub connected: bool,
    /// How long the store took to answer; `None` if it did not.
    pub answered: Option<Duration>,
    /// Why it did not.
    pub error: Option<Error>,
}

impl Locks {
    /// The holders and waiters of `name`, as far as the store knows.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::InvalidArgument`] for an invalid name.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        self.connection.inspect(name.as_ref()).await
    }

    /// [`inspect`](Locks::inspect) without the waiters. It costs the store the same, however many wait, so that each
    /// of them can ask who holds; but ZooKeeper answers with the names of all, some 60 bytes each.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::InvalidArgument`] for an invalid name.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn inspect_holders(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        self.connection.inspect_holders(name.as_ref()).await
    }

    /// Whether the store answers now, within `limit`: for the readiness probe of a service. It costs the store one
    /// [`inspect`](Locks::inspect) of a lock that nobody has. A server that answers and cannot grant locks, such as a
    /// replica or a standby, counts as one that does not; the error says why.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use std::time::Duration;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let health = locks.health(Duration::from_millis(500)).await;
    /// assert!(health.connected && health.answered.is_some() && health.error.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn health(&self, limit: Duration) -> Health {
        let connected = self.connection.get().is_some();
        let asked = self.ask_for_health(limit).await;
        let (answered, error) = match asked {
            Ok(time) => (Some(time), None),
            Err(error) => (None, Some(self.connection.explain(error, Operation::Inspect))),
        };
        Health { connected, answered, error }
    }

    async fn ask_for_health(&self, limit: Duration) -> Result<Duration> {
        let began = std::time::Instant::now();
        let client = self.connection.wait(Bound::wait_limit(limit, limit)).await?;
        let name = LockName::with_prefix(&client.settings.prefix, "fencelock:health")?;
        let (asked, left) = (client.now(), limit.saturating_sub(began.elapsed()));
        let silent = || {
            let message = format!("the store did not answer within {}", format_duration(limit));
            Err(Error::new(ErrorKind::Unreachable, message))
        };
        let answer = client.until(asked + left, client.ask(client.store.inspect(&name))).await;
        answer.unwrap_or_else(silent)?;
        Ok(client.now().duration_since(asked))
    }

    /// Takes the lock, or the place in its queue, from `who` of an [`inspect`](Locks::inspect).
    /// The holder notices at its next renewal, or at once where the store notifies it. A waiter may queue again, at
    /// the end, as another participant. `false` when `who` was gone already.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Unreachable`] says that it may have happened.
    ///
    /// # On a quorum
    /// `true` says that a majority does not have it any more, and extends it no more; a holder that released it
    /// at the same moment, while a node is silent, counts as evicted. (Unless the holder's version or access rules
    /// do not know of evictions: docs/redlock.md.)
    ///
    /// # Cancel safety
    /// If the future is dropped, the eviction may or may not have happened.
    pub async fn evict(&self, name: impl AsRef<str>, who: &ParticipantId) -> Result<bool> {
        let (name, client) = self.connection.resolved(name.as_ref(), Operation::Evict).await?;
        let asked = client.ask(client.store.evict(&name, who)).await;
        let removal = asked.map_err(|error| {
            let error = match error.kind() {
                ErrorKind::Unreachable => error.adding("; it may or may not have been evicted"),
                _ => error,
            };
            client.explain(error, Operation::Evict, &name)
        })?;
        Ok(removal != ReleaseOutcome::Absent)
    }

    /// The cells that expired at least `grace` ago, by this machine's clock, and whose names
    /// begin with one of `beginnings`; with all of them if there are none. `None` when the store ends
    /// cells by itself, or has none. For operators.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// Cancel safe.
    #[doc(hidden)]
    pub async fn expired_cells(
        &self,
        beginnings: &[String],
        grace: Duration,
    ) -> Result<Option<ExpiredCells>> {
        let explain = |error| self.connection.explain(error, Operation::Read);
        let client = self.connection.connected().await.map_err(explain)?;
        expired::find(client, beginnings, grace).await.map_err(explain)
    }

    /// Removes a cell as it was found; `false` when it was changed or removed since.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be removed.
    #[doc(hidden)]
    pub async fn remove_expired(&self, cell: &ExpiredCell) -> Result<bool> {
        let explain = |error| self.connection.explain(error, Operation::Remove);
        let client = self.connection.connected().await.map_err(explain)?;
        let removed = expired::remove(client, cell).await;
        removed.map_err(|error| client.explain(error, Operation::Remove, cell.name()))
    }

    /// Removes what locks under the names of `scratch` have left in the store, within `limit`. Tools
    /// and tests call it at their end: all clients that used the names must have ended.
    ///
    /// # Errors
    /// Why something remains; [`ErrorKind::Unsupported`] where the store cannot clear.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    #[doc(hidden)]
    pub async fn clear(&self, scratch: &Scratch, limit: Duration) -> Result<()> {
        let explain = |error| self.connection.explain(error, Operation::Clear);
        let client = self.connection.connected().await.map_err(explain)?;
        let mut last_error = None;
        let clearing = async {
            let mut backoff = Backoff::start();
            loop {
                match client.store.clear(scratch).await {
                    Err(error) if error.is_retryable() => last_error = Some(error),
                    cleared => return cleared,
                }
                let pause = backoff.next(client.settings.seed());
                client.store.clock().sleep_until(client.now() + pause).await;
            }
        };
        let cleared = client.until(client.now() + limit, clearing).await;
        let cleared = cleared.unwrap_or_else(|| {
            let message = format!("not everything was removed within {}", format_duration(limit));
            Err(Error::new(ErrorKind::Unreachable, message).with_cause(last_error))
        });
        cleared.map_err(explain)
    }
}
