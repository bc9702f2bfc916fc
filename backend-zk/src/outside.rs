//! What comes from outside, read without a server: for the property tests and the fuzz targets in
//! `fuzz/`, which feed it garbage. No part of this crate's interface.

use fencelock_core::url::StoreUrl;
use fencelock_core::{Result, Snapshot};

use crate::names;
use crate::order::{Listing, Standing};
use crate::path;
use crate::snapshot::{LockContents, QueuedNode};
use crate::{ZkStore, path::below};

/// The path of the lock `key`.
///
/// # Errors
/// For one that is too long.
pub fn lock(key: &str) -> Result<String> {
    path::of_lock("/", key)
}

/// Reads a URL of this crate's schemes, as connecting does first.
///
/// # Errors
/// As connecting.
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

/// What people are shown of a lock whose nodes have these names, and each this data and stat.
#[must_use]
pub fn snapshot(names: &[String], data: &[u8], czxid: i64, ctime: i64) -> Snapshot {
    let entry = |(name, mode, holds): (&str, _, _)| {
        QueuedNode::read(below("/lock", name), mode, holds, data, czxid, ctime)
    };
    LockContents(Listing::new(names.to_vec()).in_order().map(entry).collect()).into_snapshot()
}
