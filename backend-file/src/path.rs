//! From a lock's name to the name of its directory, so that two locks never share one.
//!
//! Everything but `A-Z a-z 0-9 _ . -` is written `%XX`, and so is a dot at the beginning: no name
//! chooses a path, or meets the store's own files, which begin with a dot. What gets too long for
//! a file name is cut and told apart by its SHA-256, behind a `~`, which no short one contains.

use sha2::{Digest, Sha256};

/// The longest encoded name that is kept whole; file names have 255 bytes at most.
const WHOLE: usize = 200;
/// How much of a longer one is kept, for people.
const PREFIX: usize = 120;

/// The directory name for the lock `key`.
pub(crate) fn encode(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for (at, byte) in key.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if plain && !(at == 0 && byte == b'.') {
            name.push(char::from(byte));
        } else {
            push_hex(&mut name, "%", byte, b"0123456789ABCDEF");
        }
    }
    if name.len() > WHOLE {
        name.truncate(PREFIX);
        name.push('~');
        for byte in Sha256::digest(key.as_bytes()) {
            push_hex(&mut name, "", byte, b"0123456789abcdef");
        }
    }
    name
}

/// A number of the lock `key`, the same in every process.
pub(crate) fn hash(key: &str) -> u64 {
    let digest = Sha256::digest(key.as_bytes());
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

fn push_hex(name: &mut String, before: &str, byte: u8, digits: &[u8; 16]) {
    name.push_str(before);
    for digit in [byte >> 4, byte & 15] {
        name.push(char::from(digits[usize::from(digit)]));
    }
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
        fn different_names_have_different_files(one in ".{1,90}", two in ".{1,90}") {
            prop_assert_eq!(one == two, encode(&one) == encode(&two));
        }

        #[test]
        fn near_names_have_different_files(one in "[aA./%~\0]{1,5}", two in "[aA./%~\0]{1,5}") {
            prop_assert_eq!(one == two, encode(&one) == encode(&two));
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
