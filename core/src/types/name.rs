//! Lock names, parsed once at the edge.
//!
//! A name is arbitrary text; every store encodes it injectively, so braces or slashes in it never
//! choose a hash slot or a path.

use std::fmt;
use std::sync::Arc;

use crate::types::error::{Error, Result, invalid};

/// The name of a lock: 1 to 512 bytes of UTF-8, any characters.
///
/// Within a store the [`key`](LockName::key), the store's prefix and the name, is what
/// identifies the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// assert_eq!(guard.name().as_str(), "orders/42");
/// assert_eq!(guard.name().key(), "lock:orders/42"); // in the store, with the prefix
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockName {
    key: Arc<str>,
    prefix: usize,
}

impl LockName {
    /// The longest name, in bytes: every store accepts it with its own additions.
    pub const MAX_BYTES: usize = 512;

    /// Parses `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when it is empty or longer than 512 bytes.
    pub fn new(name: &str) -> Result<LockName> {
        LockName::with_prefix("", name)
    }

    /// `name` in a store whose keys begin with `prefix`.
    ///
    /// # Errors
    /// As [`LockName::new`]; the prefix does not count towards the length.
    pub fn with_prefix(prefix: &str, name: &str) -> Result<LockName> {
        if !(1..=LockName::MAX_BYTES).contains(&name.len()) {
            return Err(invalid_name(name));
        }
        let key = match prefix {
            "" => Arc::from(name),
            _ => Arc::from(format!("{prefix}{name}")),
        };
        Ok(LockName { key, prefix: prefix.len() })
    }

    /// The name as the user gave it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.key[self.prefix..]
    }

    /// The store's prefix and the name: the text that a backend encodes.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// [`key`](LockName::key), shared.
    #[must_use]
    pub fn shared_key(&self) -> &Arc<str> {
        &self.key
    }
}

/// How much of a name that is too long an error shows, in bytes.
const SHOWN: usize = 60;

fn invalid_name(name: &str) -> Error {
    let is = match name.len() {
        0 => "empty".to_owned(),
        length => format!("{length} bytes long"),
    };
    let error = invalid(format!("the lock name is {is}; it must be 1 to 512 bytes of UTF-8"));
    match name.floor_char_boundary(SHOWN) {
        end if end < name.len() => error.on(&format!("{}…", &name[..end])),
        _ => error.on(name),
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &LockName) -> bool {
        self.key == other.key
    }
}

impl Eq for LockName {}

impl std::hash::Hash for LockName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_length_decides() {
        assert_eq!(LockName::new("").unwrap_err().lock(), Some(""));
        assert!(LockName::new(&"ü".repeat(256)).is_ok());
        let error = LockName::new(&"ü".repeat(257)).unwrap_err();
        assert_eq!(error.lock().unwrap(), "ü".repeat(30) + "…");
        assert!(LockName::with_prefix(&"p".repeat(600), "n").is_ok());
        for odd in ["/", "..", "\0", "{}", " ", "a\nb"] {
            assert_eq!(LockName::new(odd).unwrap().as_str(), odd);
        }
    }

    proptest! {
        #[test]
        fn prefix_and_name_come_back(prefix in ".{0,20}", name in ".{1,40}") {
            let full = LockName::with_prefix(&prefix, &name).unwrap();
            prop_assert_eq!(full.as_str(), name.as_str());
            prop_assert_eq!(full.key(), format!("{prefix}{name}"));
        }
    }
}
