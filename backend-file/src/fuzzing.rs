//! What comes from outside, read without a directory: for the property tests and the fuzz targets in
//! `fuzz/`, which feed it garbage. No part of this crate's interface.

use fencelock_core::Result;
use fencelock_core::url::StoreUrl;

use crate::directory::lock_name;
use crate::{FileStore, settings_of};

/// The directory of the lock `key`, below the store's.
#[must_use]
pub fn directory(key: &str) -> String {
    lock_name::encode(key)
}

/// Reads a URL of this crate's scheme, as connecting does first.
///
/// # Errors
/// As connecting.
pub fn url(url: &StoreUrl) -> Result<()> {
    settings_of(url)?;
    FileStore::from_url(url).map(drop)
}
