//! The names of claims' nodes: `_c_<uuid>-`, the mode, and the server's sequence number.
//!
//! `lock-` is the mode of Apache Curator's `InterProcessMutex`, `__READ__` and `__WRIT__` are those
//! of its `InterProcessReadWriteLock`, so that each excludes ours on the same path. Curator sorts
//! names that it does not know after its own, so no name serves both. Permits exist only here.

use fencelock_core::{Claim, LockKind, Mode, Permits};
use uuid::Uuid;

const LOCK: &str = "lock-";
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const PERMITS: &str = "permits-";

/// The length of the longest sequence number.
pub(crate) const LONGEST_SEQUENCE: usize = "-2147483648".len();

/// What precedes the mode: no other claim's node begins with it.
pub(crate) fn owner_prefix(owner: Uuid) -> String {
    format!("_c_{}-", owner.as_hyphenated())
}

/// The name of `claim`'s node up to its sequence number.
pub(crate) fn prefix(claim: &Claim) -> String {
    let mut name = owner_prefix(claim.owner().reveal());
    match (claim.mode(), claim.kind()) {
        (Mode::Exclusive, LockKind::ReadWrite) => name.push_str(WRITE),
        (Mode::Exclusive, LockKind::Lock | LockKind::Semaphore) => name.push_str(LOCK),
        (Mode::Shared, _) => name.push_str(READ),
        (Mode::Permits(permits), _) => {
            name.push_str(&format!("{PERMITS}{}-{}-", permits.n(), permits.limit()));
        }
    }
    name
}

/// What the name of a node encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeName {
    pub(crate) mode: Mode,
    /// Negative after 2^31 nodes: only [`is_before`] compares them.
    pub(crate) sequence: i32,
}

/// Whether the number `one` was given before `other`, both among the last 2^31.
pub(crate) fn is_before(one: i32, other: i32) -> bool {
    one.wrapping_sub(other) < 0
}

/// Whether several nodes of one lock may have this number, so that two of them could both be first.
///
/// The servers document that numbers continue below zero after the largest. ZooKeeper 3.8.0 gives
/// the largest to any number of nodes; and numbers below zero, also repeatedly, to nodes that are
/// requested before the previous one exists.
pub(crate) fn is_exhausted(sequence: i32) -> bool {
    sequence == i32::MAX || sequence < 0
}

/// Parses a node's name. A name that does not end in a sequence number is not in the queue; any other
/// unknown name counts as exclusive, whatever library has created it.
pub(crate) fn read(name: &str) -> Option<NodeName> {
    let modes = [(LOCK, Mode::Exclusive), (READ, Mode::Shared), (WRITE, Mode::Exclusive)];
    for (marker, mode) in modes {
        if let Some(sequence) = after_marker(name, marker).and_then(number) {
            return Some(NodeName { mode, sequence });
        }
    }
    if let Some(parsed) = after_marker(name, PERMITS).and_then(permits) {
        return Some(parsed);
    }
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let sequence = match digits {
        10.. => number(&name[name.len() - 10..]),
        // `%010d` of a number below zero that is not as long as the smallest.
        // The character before the digits may be of any length.
        9 => number(name.get(name.len().checked_sub(10)?..)?),
        _ => None,
    }?;
    Some(NodeName { mode: Mode::Exclusive, sequence })
}

fn after_marker<'a>(name: &'a str, marker: &str) -> Option<&'a str> {
    name.rfind(marker).map(|at| &name[at + marker.len()..])
}

/// A sequence number as the server writes it, with `%010d`.
fn number(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = text.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn permits(text: &str) -> Option<NodeName> {
    let (n, rest) = text.split_once('-')?;
    let (limit, sequence) = rest.split_once('-')?;
    let permits = Permits::new(n.parse().ok()?, limit.parse().ok()?).ok()?;
    Some(NodeName { mode: Mode::Permits(permits), sequence: number(sequence)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: &str = "_c_67e55044-10b1-426f-9247-bb680e5fe0c8-";

    #[test]
    fn every_kind_of_name_is_read() {
        let permits = |n, limit| Mode::Permits(Permits::new(n, limit).unwrap());
        for (name, mode, sequence) in [
            ("lock-0000000007", Mode::Exclusive, 7),
            ("__READ__0000000008", Mode::Shared, 8),
            ("__WRIT__0000000009", Mode::Exclusive, 9),
            ("permits-2-5-0000000010", permits(2, 5), 10),
            ("lock-2147483647", Mode::Exclusive, i32::MAX),
            ("lock--2147483648", Mode::Exclusive, i32::MIN),
            ("__READ__-000000005", Mode::Shared, -5),
            ("permits-1-1--2147483648", permits(1, 1), i32::MIN),
            // Of other libraries.
            ("__lock__0000000003", Mode::Exclusive, 3),
            ("n_0000000003", Mode::Exclusive, 3),
            ("n_-000000003", Mode::Exclusive, -3),
        ] {
            let expected = Some(NodeName { mode, sequence });
            assert_eq!(read(&format!("{OWNER}{name}")), expected, "{name}");
            assert_eq!(read(name), expected, "{name}");
        }
        for strange in
            ["", "leases", "lock-", "lock-12", "-0000", "permits-2-1-x", "000000001", "é000000001"]
        {
            assert_eq!(read(strange), None, "{strange:?}");
        }
    }

    #[test]
    fn numbers_continue_below_zero_after_the_largest() {
        assert!(is_before(1, 2) && !is_before(2, 1) && !is_before(1, 1));
        assert!(is_before(i32::MAX, i32::MIN) && !is_before(i32::MIN, i32::MAX));
        assert!(is_before(-1, 0) && is_before(i32::MAX - 5, i32::MIN + 5));
    }

    proptest! {
        #[test]
        fn nothing_panics(name in ".{0,30}", digits in "[-0-9]{0,12}") {
            let _ = read(&format!("{name}{digits}"));
        }

        #[test]
        fn later_numbers_are_later(first: i32, by in 1i32..i32::MAX) {
            let later = first.wrapping_add(by);
            prop_assert!(is_before(first, later) && !is_before(later, first));
            let name = format!("{OWNER}lock-{first:010}");
            prop_assert_eq!(read(&name).map(|parsed| parsed.sequence), Some(first));
        }
    }
}
