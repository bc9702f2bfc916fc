//! Numbers for people.

use std::fmt;

/// A number with its noun, in singular or plural: `1 lock`, `2 locks`.
pub fn counted<N: TryInto<u64> + fmt::Display + Copy>(n: N, one: &str, several: &str) -> String {
    let is_one = n.try_into().is_ok_and(|n| n == 1);
    format!("{n} {}", if is_one { one } else { several })
}
