//! Random numbers that no other process has, for prefixes and seeds.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Another number at each call: the standard library keys its hashers at random, each differently.
#[must_use]
pub fn fresh() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}
