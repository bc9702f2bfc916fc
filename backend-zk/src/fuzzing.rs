//! The parsers of external input, without a server: for the property tests and the fuzz targets in
//! `fuzz/`, which feed them garbage. Not part of this crate's public interface.

use fencelock_core::url::StoreUrl;
use fencelock_core::{Result, Snapshot};

use crate::ZkStore;
use crate::nodes::snapshot::{self, QueuedNode};
use crate::queue::names;
use crate::queue::order::{Listing, Standing};
use crate::queue::path::{self, below};

/// The path of the lock `key`.
///
/// # Errors
/// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) for a path that is too long.
pub fn lock(key: &str) -> Result<String> {
    path::of_lock("/", key)
}

/// Parses a URL of this crate's schemes, as connecting does first.
///
/// # Errors
/// Those of connecting.
pub fn url(url: &StoreUrl) -> Result<()> {
    ZkStore::from_url(url)?.0.check()
}

/// Whether the claim of the node `own` holds the lock whose nodes have these names.
#[must_use]
pub fn is_granted(names: &[String], own: &str) -> bool {
    let parsed = names::read(own);
    let all = Listing::new(names.to_vec());
    parsed.is_some_and(|parsed| all.standing(own, parsed) == Standing::Free)
}

/// The snapshot of a lock whose nodes have these names, and each this data and stat.
#[must_use]
pub fn snapshot(names: &[String], data: &[u8], czxid: i64, ctime: i64) -> Snapshot {
    let node = |(name, mode, is_granted): (&str, _, _)| {
        QueuedNode::new(below("/lock", name), mode, is_granted, data, czxid, ctime)
    };
    snapshot::of_nodes(Listing::new(names.to_vec()).in_order().map(node).collect())
}
