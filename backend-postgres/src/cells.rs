//! Cells: a row each, compared and swapped by a function, and watched by notifications.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{CellStore, Content, Keep, LockName, Notifier, Result, Stamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::error::protocol_error;
use crate::requests::{column, micros, read};
use crate::statements::Function;
use crate::store::Store;

/// How often a cell is read whose changes no notification tells of.
const UNWATCHED_CHECK: Duration = Duration::from_secs(1);

impl CellStore for Store {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        let session = self.server.session.active().await?;
        if let Some(notifier) = notifier {
            // Every session listens to the channel from its beginning on.
            self.notifications.cells.insert(&payload(cell), notifier);
            if !session.is_direct() {
                notifier.notify_when(tokio::time::sleep(UNWATCHED_CHECK));
            }
        }
        let rows = self.call_apart(Function::ReadCell, cell).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (stamp, bytes): (Uuid, Vec<u8>) =
            (read(row, 0, "read_cell_1")?, read(row, 1, "read_cell_1")?);
        if bytes.len() > Content::MAX_BYTES {
            return Err(protocol_error("read_cell_1"));
        }
        Ok(Some(Content { stamp: Stamp::from_bytes(stamp.into_bytes()), bytes }))
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        let key = cell.key().as_bytes();
        let uuid = |stamp: Stamp| Uuid::from_bytes(*stamp.as_bytes());
        let (from, stamp) = (from.map(uuid), to.map(|to| uuid(to.stamp)));
        let bytes = to.map(|to| to.bytes.as_slice());
        let keep = match keep {
            Keep::For(time) => micros(time).max(1),
            Keep::Forever => 0,
        };
        let session = self.server.session.active().await?;
        let options = &self.server.options;
        let arguments: [&(dyn ToSql + Sync); 5] = [&key, &from, &stamp, &bytes, &keep];
        let rows = session.call(options, Function::SwapCell, &arguments).await?;
        let is_swapped: bool = column(&rows, 0, "swap_cell_1")?;
        if is_swapped {
            // In a transaction of its own: a notification takes a lock on the whole server until its
            // transaction has ended, and the swap waits for the disk. Of a swap that is repeated too:
            // the client that made it may have died before this.
            let arguments: [&(dyn ToSql + Sync); 2] = [&options.cells_channel, &payload(cell)];
            let sent = session.call(options, Function::Notify, &arguments).await;
            // The change is made, and who watches looks at it all the same, though later.
            sent.inspect_err(|error| tracing::debug!(%error, "no notification of a cell")).ok();
        }
        Ok(is_swapped)
    }

    /// By the server's clock; `tidy_1` removes the rows.
    fn ends_by_time(&self) -> bool {
        true
    }
}

/// How a notification names the cell: in fewer bytes than it takes.
fn payload(cell: &LockName) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, cell.key().as_bytes()).to_string()
}
