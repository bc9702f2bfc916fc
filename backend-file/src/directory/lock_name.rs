//! The encoding of a lock's name as the name of its directory, different for any two locks.
//!
//! All bytes but `A-Z a-z 0-9 _ . -` are written `%XX`, and so is a dot at the beginning: a lock
//! name cannot contain a path, or collide with the store's own files, which begin with a dot. A
//! name that would be too long is truncated, and its SHA-256 is appended after a `~`, which no
//! short name contains.

use std::fmt::Write;

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::queue::entry::array;

/// The longest encoded name that is not truncated; file names have 255 bytes at most.
const WHOLE: usize = 200;
/// How much of a longer name is kept, for readability.
const PREFIX: usize = 120;

/// The directory name for the lock `key`.
pub(crate) fn encode(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for (at, byte) in key.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if plain && !(at == 0 && byte == b'.') {
            name.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    if name.len() > WHOLE {
        name.truncate(PREFIX);
        name.push('~');
        for byte in Sha256::digest(key.as_bytes()) {
            let _ = write!(name, "{byte:02x}");
        }
    }
    name
}

/// Whether the directory `name` is of a name that was too long, and is not the whole of it.
pub(crate) fn is_truncated(name: &str) -> bool {
    name.contains('~')
}

/// The lock whose directory is `name`; `None` of a directory of no lock, and of a truncated name.
pub(crate) fn decode(name: &str) -> Option<String> {
    let key = percent_decode_str(name).decode_utf8().ok()?;
    (encode(&key) == name).then(|| key.into_owned())
}

/// A hash of the lock `key`, the same in every process.
pub(crate) fn hash(key: &str) -> u64 {
    u64::from_be_bytes(array(&Sha256::digest(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_names_are_plain_file_names() {
        for (name, file) in [
            ("orders-42_x.y", "orders-42_x.y"),
            ("lock:orders/42", "lock%3Aorders%2F42"),
            (".", "%2E"),
            ("..", "%2E."),
            (".doors", "%2Edoors"),
            ("\0", "%00"),
            ("%41", "%2541"),
            ("~", "%7E"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(encode(name), file);
        }
    }

    proptest! {
        #[test]
        fn near_names_have_different_files(one in "[aA./%~\0]{1,5}", two in "[aA./%~\0]{1,5}") {
            prop_assert_eq!(one == two, encode(&one) == encode(&two));
        }

        #[test]
        fn a_name_that_is_whole_comes_back(key in ".{1,90}") {
            let name = encode(&key);
            let expected = (!is_truncated(&name)).then_some(key);
            prop_assert_eq!(decode(&name), expected);
        }

        #[test]
        fn no_other_directory_is_taken_for_a_lock(name in "[a.%~0-9A-F]{1,9}") {
            prop_assert!(decode(&name).is_none_or(|key| encode(&key) == name));
        }

        #[test]
        fn every_name_is_one_component(name in "\\PC{1,512}") {
            let file = encode(&name);
            prop_assert!(!file.is_empty() && file.len() <= WHOLE);
            prop_assert!(!file.starts_with('.'));
            prop_assert!(file.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-%~".contains(&b)));
        }

        #[test]
        fn long_names_differ_where_they_were_cut(tail in "[a-z]{1,9}", other in "[a-z]{1,9}") {
            let long = "x".repeat(300);
            let (one, two) = (format!("{long}{tail}"), format!("{long}{other}"));
            prop_assert_eq!(one == two, encode(&one) == encode(&two));
        }
    }
}
