//! Expired cells, in a store that cannot end data by time: there they stay until they are
//! written again, or removed by an operator.
//!
//! A cell is removed by the stamp that it had when its time was seen to be over, so one that was written
//! meanwhile stays.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::cells::record::{Kind, Record};
use crate::cells::settled::Patience;
use crate::client::ClientInner;
use crate::store::cell_store::{Cells, Keep, Stamp};
use crate::types::error::{Error, Operation, Result};
use crate::types::name::LockName;

/// How many cells are read at the same time.
const CONCURRENCY: usize = 32;

/// What a search for expired cells has found.
#[derive(Debug)]
#[non_exhaustive]
pub struct ExpiredCells {
    /// Those that are expired, in the order of their names.
    pub expired: Vec<ExpiredCell>,
    /// How many cells there are besides.
    pub others: usize,
    /// Why some could not be read, such as one that another program wrote. They count as others.
    pub unread: Vec<Error>,
}

/// A cell whose time was over when it was read.
#[derive(Clone, Debug)]
pub struct ExpiredCell {
    name: LockName,
    stamp: Stamp,
    kind: Kind,
    expired_for: Duration,
}

impl ExpiredCell {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// What it is, such as `latch`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind.as_str()
    }

    /// For how long its time has been over, by this machine's clock.
    #[must_use]
    pub fn expired_for(&self) -> Duration {
        self.expired_for
    }
}

/// The cells that expired at least `grace` ago, and whose names begin with one of
/// `beginnings`, if there are any. `None` when the store ends cells by itself, or has none.
pub(crate) async fn find(
    client: &ClientInner,
    beginnings: &[String],
    grace: Duration,
) -> Result<Option<ExpiredCells>> {
    let Some(cells) = &client.cells else { return Ok(None) };
    let prefix = &*client.settings.prefix;
    let Some(keys) = Patience::start(client).repeat(|| cells.0.list(prefix)).await? else {
        return Ok(None);
    };
    let is_wanted = |name: &str| {
        beginnings.is_empty() || beginnings.iter().any(|beginning| name.starts_with(beginning))
    };
    let names = keys.iter().filter_map(|key| key.strip_prefix(prefix));
    let names = names.filter(|name| is_wanted(name));
    // A name that is too long is of no cell of ours.
    let names = names.filter_map(|name| LockName::with_prefix(prefix, name).ok());
    let reading = stream::iter(names)
        .map(async |name| (read(client, cells, &name).await, name))
        .buffer_unordered(CONCURRENCY);
    let mut found = ExpiredCells { expired: Vec::new(), others: 0, unread: Vec::new() };
    let mut reading = std::pin::pin!(reading);
    while let Some((answer, name)) = reading.next().await {
        match answer {
            Ok(None) => {}
            Ok(Some((stamp, Some((kind, expired_for))))) if expired_for >= grace => {
                found.expired.push(ExpiredCell { name, stamp, kind, expired_for });
            }
            Ok(Some(_)) => found.others += 1,
            Err(error) if error.is_retryable() => return Err(error.on(name.as_str())),
            Err(error) => {
                found.others += 1;
                found.unread.push(client.explain(error, Operation::Read, &name));
            }
        }
    }
    found.expired.sort_by(|one, two| one.name.as_str().cmp(two.name.as_str()));
    Ok(Some(found))
}

/// Removes the cell as it was found; `false` when it was changed or removed since.
pub(crate) async fn remove(client: &ClientInner, cell: &ExpiredCell) -> Result<bool> {
    let cells = client.required_cells()?;
    let mut requests = 0_u32;
    let swap = || {
        requests += 1;
        cells.0.swap(&cell.name, Some(cell.stamp), None, Keep::Forever)
    };
    let mut patience = Patience::start(client);
    if patience.repeat(swap).await? {
        return Ok(true);
    }
    // An earlier request without an answer may have removed it, unless it is still there, or written anew.
    Ok(requests > 1 && patience.repeat(|| cells.0.read(&cell.name, None)).await?.is_none())
}

/// The stamp of the cell `name`, and its kind and for how long its time has been over, if it is.
async fn read(
    client: &ClientInner,
    cells: &Cells,
    name: &LockName,
) -> Result<Option<(Stamp, Option<(Kind, Duration)>)>> {
    let content = Patience::start(client).repeat(|| cells.0.read(name, None)).await?;
    let Some(content) = content else { return Ok(None) };
    Ok(Some((content.stamp, Record::expired_for(&content)?)))
}
