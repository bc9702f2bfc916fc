//! One cell of a client, by its name: what a latch, a counter and the others have of the store.

use std::sync::Arc;
use std::time::Duration;

use crate::cells::combining::{Key, Step, View, change};
use crate::cells::record::Kind;
use crate::cells::settled::{Access, Patience, Seen};
use crate::cells::watching::{Watchers, Watching};
use crate::client::ClientInner;
use crate::client::connection::Connection;
use crate::store::cell_store::{Cells, Keep, Stamp};
use crate::types::error::{Error, ErrorKind, Operation, Result, closed};
use crate::types::name::LockName;
use crate::types::options::kept;

/// A cell of some kind. No request is sent before the first call.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    connection: Connection,
    /// An invalid argument is reported by the first call.
    key: Result<Key>,
}

impl Handle {
    pub(crate) fn new(connection: &Connection, name: &str, kind: Kind, keep: Keep) -> Handle {
        let name = LockName::with_prefix(&connection.settings().prefix, name);
        let key = name.map(|name| Key { name, kind, keep });
        Handle { connection: connection.clone(), key }
    }

    /// Keeps it for `time` after the last change.
    pub(crate) fn keep_for(mut self, time: Duration) -> Handle {
        self.key = self.key.and_then(|key| match kept(time) {
            Ok(time) => Ok(Key { keep: Keep::For(time), ..key }),
            Err(error) => Err(error.on(key.name.as_str())),
        });
        self
    }

    /// Reports `error`, if there is one, in place of the first one of this handle.
    pub(crate) fn checked<T>(mut self, valid: Result<T>) -> Handle {
        self.key = self.key.and_then(|key| match valid {
            Ok(_) => Ok(key),
            Err(error) => Err(error.on(key.name.as_str())),
        });
        self
    }

    /// What is there now.
    pub(crate) async fn read<T>(
        &self,
        doing: Operation,
        read: impl FnOnce(Option<View<'_>>) -> Result<T>,
    ) -> Result<T> {
        let (client, cells, key) = self.resolved(doing).await?;
        let access = Access { client, cells, name: &key.name, kind: key.kind };
        let read = access.read().await.and_then(|seen| read(seen.view()));
        read.map_err(|error| client.explain(error, doing, &key.name))
    }

    /// Applies `change` to what is there, as often as others are faster.
    ///
    /// # Cancel safety
    /// Dropped, the change may or may not be made.
    pub(crate) async fn change<A: Send + 'static>(
        &self,
        doing: Operation,
        by: impl FnMut(Option<View<'_>>) -> Result<(Step, A)> + Send + 'static,
    ) -> Result<A> {
        self.resolved(doing).await?;
        self.change_also_when_closing(doing, by).await
    }

    /// As [`change`](Handle::change), also while the client is being closed: for what must not be left.
    pub(crate) async fn change_also_when_closing<A: Send + 'static>(
        &self,
        doing: Operation,
        by: impl FnMut(Option<View<'_>>) -> Result<(Step, A)> + Send + 'static,
    ) -> Result<A> {
        let (client, cells, key) = self.connected(doing).await?;
        let changed = change(client, cells, key, by).await;
        changed.map_err(|error| client.explain(error, doing, &key.name))
    }

    /// Takes the space that a later change needs.
    pub(crate) async fn reserve(&self, doing: Operation) -> Result<()> {
        let (client, cells, key) = self.resolved(doing).await?;
        let reserved = Patience::start(client).repeat(|| cells.0.reserve(&key.name)).await;
        reserved.map_err(|error| client.explain(error, doing, &key.name))
    }

    pub(crate) async fn remove(&self) -> Result<()> {
        self.change(Operation::Remove, |_| Ok((Step::Remove, ()))).await
    }

    /// The client, once it is connected.
    pub(crate) async fn client(&self, doing: Operation) -> Result<&Arc<ClientInner>> {
        self.resolved(doing).await.map(|(client, ..)| client)
    }

    /// A watch on the cell; what it says is to be [explained](Handle::explain).
    pub(crate) async fn watch(&self, doing: Operation) -> Result<Watching> {
        let (client, cells, key) = self.resolved(doing).await?;
        Ok(client.registry::<Watchers>().watch(client, cells, &key.name, key.kind))
    }

    /// Adds the operation, the name and the store to an error.
    pub(crate) fn explain(&self, error: Error, doing: Operation) -> Error {
        let error = self.connection.explain(error, doing);
        match &self.key {
            Ok(key) => error.on(key.name.as_str()),
            Err(_) => error,
        }
    }

    async fn resolved(&self, doing: Operation) -> Result<(&Arc<ClientInner>, &Cells, &Key)> {
        let (client, cells, key) = self.connected(doing).await?;
        if client.closing.is_cancelled() {
            Err(client.explain(closed(), doing, &key.name))
        } else {
            Ok((client, cells, key))
        }
    }

    /// The client, once it is connected, and its cells.
    async fn connected(&self, doing: Operation) -> Result<(&Arc<ClientInner>, &Cells, &Key)> {
        let key = self.key.as_ref();
        let key = key.map_err(|error| self.connection.explain(error.clone(), doing))?;
        let client = self.connection.connected().await;
        let client =
            client.map_err(|error| self.connection.not_connected(error, doing, &key.name))?;
        let cells = client.required_cells();
        let cells = cells.map_err(|error| client.explain(error, doing, &key.name))?;
        Ok((client, cells, key))
    }
}

/// The body of a cell is not what a cell of its kind has.
pub(crate) fn not_ours() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the content of the cell was not written by this version of the library",
    )
}

impl Seen {
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let record = self.record.as_ref()?;
        Some(View { stamp: self.stamp, fence: record.fence, body: &record.body })
    }

    /// Identifies the cell that is there: one that was removed and written anew is another.
    pub(crate) fn born(&self) -> Option<Stamp> {
        self.record.as_ref().map(|record| record.born)
    }
}
