//! The readers of untrusted input, usable without a directory, for the property tests and the fuzz
//! targets in `fuzz/`. Not part of this crate's interface.

use fencelock_core::Result;
use fencelock_core::url::StoreUrl;

use crate::directory::lock_name;
use crate::{FileStore, settings_of};

/// The name of the directory of the lock `key`, inside the store's directory.
#[must_use]
pub fn directory(key: &str) -> String {
    lock_name::encode(key)
}

/// Parses a URL of this crate's scheme, like the first step of a connect.
///
/// # Errors
/// The same as those of a connect.
pub fn url(url: &StoreUrl) -> Result<()> {
    settings_of(url)?;
    FileStore::from_url(url).map(drop)
}
