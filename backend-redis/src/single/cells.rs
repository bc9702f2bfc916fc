//! Cells: a string each, compared and swapped by a script, and watched by the server's own tracking of
//! keys.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{CellStore, Content, Keep, LockName, Notifier, Result, Stamp};
use redis::Value;

use super::store::Store;
use crate::protocol::call::ScriptCall;
use crate::protocol::error::foreign_text;
use crate::protocol::identity::cell_key;
use crate::protocol::script::SCRIPTS;
use crate::server::node::Request;

/// How often a cell is read that the server does not watch: the ACL denies it, or the slot is moving.
const UNWATCHED_CHECK: Duration = Duration::from_secs(1);

/// The longest time to keep a cell, in ms. With the server's own time added, a larger one would not fit
/// its number.
const LONGEST_KEEP: u128 = (i64::MAX / 2) as u128;

impl CellStore for Store {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        let key = cell_key(cell.key());
        let value = match notifier {
            Some(notifier) => self.watch_cell(&key, notifier).await?,
            // What became of a write whose replicas were silent.
            None if self.unconfirmed.lock().contains(&key) => {
                let value = self.rewrite(&key).await?;
                self.unconfirmed.lock().remove(&key);
                value
            }
            None => self.server.send(Request::Read(&key)).await?,
        };
        let content = read_content(value, &key);
        content.unwrap_or_else(|| Err(self.server.protocol_error(&key, "GET")))
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        let key = cell_key(cell.key());
        let from = from.as_ref().map_or(&[][..], |stamp| stamp.as_bytes());
        let to = to.map(|to| [to.stamp.as_bytes(), to.bytes.as_slice()].concat());
        let keep = keep_ms(keep).to_string();
        let values = [from, to.as_deref().unwrap_or_default(), keep.as_bytes()];
        let call = ScriptCall { script: &SCRIPTS.swap, keys: &[&key], values: &values };
        if self.replicas == 0 {
            let answer = self.server.call(call).await?;
            return self.read_yes(&answer, &key, "swap");
        }
        // Also when this is dropped.
        let is_first = self.unconfirmed.lock().insert(key.clone());
        let swapped = self.swap_and_confirm(call, is_first).await;
        let mut unconfirmed = self.unconfirmed.lock();
        match &swapped {
            Err(error) if error.is_retryable() => drop(unconfirmed.insert(key)),
            // Nothing was written.
            Err(_) if !is_first => {}
            _ => drop(unconfirmed.remove(&key)),
        }
        swapped
    }

    fn ends_by_time(&self) -> bool {
        true
    }
}

impl Store {
    /// The value at `key`. Has `notifier` notified when it changes.
    async fn watch_cell(&self, key: &str, notifier: &Arc<Notifier>) -> Result<Value> {
        self.notifications.cells.insert(key, notifier);
        if let Ok(value) = self.server.send(Request::Watch(key)).await {
            return Ok(value);
        }
        notifier.notify_when(tokio::time::sleep(UNWATCHED_CHECK));
        self.server.send(Request::Read(key)).await
    }

    /// A swap, once the replicas have it.
    async fn swap_and_confirm(&self, swap: ScriptCall<'_>, is_first: bool) -> Result<bool> {
        let answer = self.server.send(Request::Confirm(swap)).await?;
        let swapped = self.read_yes(&answer, swap.keys[0], "swap")?;
        if !is_first {
            // If it was made before, it has written nothing now that a `WAIT` would cover.
            self.rewrite(swap.keys[0]).await?;
        }
        Ok(swapped)
    }

    /// The value at `key`, once the replicas have it.
    async fn rewrite(&self, key: &str) -> Result<Value> {
        let call = ScriptCall { script: &SCRIPTS.rewrite, keys: &[key], values: &[] };
        self.server.send(Request::Confirm(call)).await
    }
}

/// The content of the cell at `key`, by its `value`; `None` for a reply that no server gives.
pub(crate) fn read_content(value: Value, key: &str) -> Option<Result<Option<Content>>> {
    let text = match value {
        Value::Nil => return Some(Ok(None)),
        Value::BulkString(text) => text,
        _ => return None,
    };
    Some(match text.split_first_chunk() {
        Some((stamp, bytes)) if bytes.len() <= Content::MAX_BYTES => {
            let stamp = Stamp::from_bytes(*stamp);
            Ok(Some(Content { stamp, bytes: bytes.to_vec() }))
        }
        _ => Err(foreign_text(key)),
    })
}

/// How long to keep a cell, in ms; 0 without an end.
fn keep_ms(keep: Keep) -> u128 {
    match keep {
        Keep::For(time) => time.as_nanos().div_ceil(1_000_000).clamp(1, LONGEST_KEEP),
        Keep::Forever => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_kept_for_as_long_as_redis_can() {
        for (keep, ms) in [
            (Keep::Forever, 0),
            (Keep::For(Duration::ZERO), 1),
            (Keep::For(Duration::from_micros(1)), 1),
            (Keep::For(Duration::from_micros(1001)), 2),
            (Keep::For(Duration::from_secs(60)), 60_000),
            (Keep::For(Duration::MAX), LONGEST_KEEP),
        ] {
            assert_eq!(keep_ms(keep), ms, "{keep:?}");
        }
    }
}
