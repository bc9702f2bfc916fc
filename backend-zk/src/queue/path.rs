//! The path of a lock's or a cell's node, from its name: no two of them share one.
//!
//! A lock is one child of the root, and so is a cell. Everything but `A-Z a-z 0-9 _ . : -` is written
//! `%XX`, so that no name can choose a path, contain a character that ZooKeeper refuses, or collide
//! with `.`, `..` or the server's own `/zookeeper`.

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use percent_encoding::percent_decode_str;

/// The longest path of a lock. A server answers a request that is too large by closing the
/// connection, which looks like a temporary failure.
const MAX_PATH: usize = 8 * 1024;

/// The end of a cell's node, which no lock's has: `~` is written `%7E` there.
const CELL: &str = "~c";

/// The path of the lock `key` under `root`, which is `/` or has no `/` at its end.
///
/// # Errors
/// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) for a path that is too long, by its
/// prefix.
pub(crate) fn of_lock(root: &str, key: &str) -> Result<String> {
    let mut path = String::with_capacity(root.len() + key.len() + 1);
    path.push_str(root);
    if root != "/" {
        path.push('/');
    }
    let is_reserved = key == "zookeeper";
    for (at, byte) in key.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        if plain && !(at == 0 && (byte == b'.' || is_reserved)) {
            path.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            path.push('%');
            path.push(char::from(DIGITS[usize::from(byte >> 4)]));
            path.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    if path.len() > MAX_PATH {
        return Err(invalid(format!(
            "the lock's path, with its prefix, is {} bytes long; at most {MAX_PATH} are allowed",
            path.len()
        )));
    }
    Ok(path)
}

/// The path of the cell `key` under `root`.
///
/// # Errors
/// Those of [`of_lock`].
pub(crate) fn of_cell(root: &str, key: &str) -> Result<String> {
    Ok(of_lock(root, key)? + CELL)
}

/// The name of the cell whose node is `node`, a child of the root; `None` of another node.
pub(crate) fn cell_of(node: &str) -> Option<String> {
    let key = percent_decode_str(node.strip_suffix(CELL)?).decode_utf8().ok()?;
    // Another program's node may be named in another way.
    let is_ours = of_cell("/", &key).is_ok_and(|path| path.strip_prefix('/') == Some(node));
    is_ours.then(|| key.into_owned())
}

/// The path of `child`.
pub(crate) fn below(parent: &str, child: &str) -> String {
    [parent, "/", child].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::ErrorKind;
    use proptest::prelude::*;

    fn encode(name: &str) -> String {
        of_lock("/", name).unwrap().split_off(1)
    }

    #[test]
    fn odd_names_are_plain_node_names() {
        for (name, node) in [
            ("lock:orders-42_x.y", "lock:orders-42_x.y"),
            ("orders/42", "orders%2F42"),
            (".", "%2E"),
            ("..", "%2E."),
            ("zookeeper", "%7Aookeeper"),
            ("\0", "%00"),
            ("%41", "%2541"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(encode(name), node);
        }
        assert_eq!(of_lock("/app/locks", "a").unwrap(), "/app/locks/a");
    }

    #[test]
    fn a_huge_prefix_is_refused() {
        let error = of_lock("/", &"x".repeat(10_000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(of_lock("/", &"\0".repeat(512)).is_ok());
    }

    proptest! {
        #[test]
        fn near_names_have_different_nodes(one in "[zA./%~\0]{1,5}", two in "[zA./%~\0]{1,5}") {
            prop_assert_eq!(one == two, encode(&one) == encode(&two));
        }

        #[test]
        fn a_cell_has_the_node_of_no_lock_and_of_no_other_cell(
            one in "[a.%~c]{1,5}(~c)?", two in "[a.%~c]{1,5}(~c)?"
        ) {
            let (of_one, of_two) = (of_cell("/", &one).unwrap(), of_cell("/", &two).unwrap());
            prop_assert_eq!(one == two, of_one == of_two);
            prop_assert!(of_one != of_lock("/", &two).unwrap());
        }

        #[test]
        fn the_name_of_a_cell_comes_back_from_its_node(key in ".{1,60}") {
            let node = of_cell("/", &key).unwrap().split_off(1);
            prop_assert_eq!(cell_of(&node), Some(key.clone()));
            prop_assert_eq!(cell_of(&encode(&key)), None);
        }

        #[test]
        fn no_other_node_is_taken_for_a_cell(node in "[a.%~c0-9A-F]{1,9}(~c)?") {
            let key = cell_of(&node);
            prop_assert!(key.is_none_or(|key| of_cell("/", &key).unwrap()[1..] == node));
        }

        #[test]
        fn every_name_is_one_node_that_a_server_accepts(name in ".{1,170}") {
            let node = encode(&name);
            prop_assert!(!["", ".", "..", "zookeeper"].contains(&node.as_str()));
            prop_assert!(node.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-%".contains(&b)));
        }
    }
}
