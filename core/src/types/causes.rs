//! An error and its causes as one line, for people.
//!
//! An error of the operating system is repeated by most errors that it causes, and an attempt's
//! error is of the kind of the error that gives up after it; a reader wants each of them once.

use std::error::Error as _;
use std::fmt;

use crate::types::error::Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.write_str(&with_causes(self))
        } else {
            fmt::Display::fmt(&self.inner, f)
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))
    }
}

/// The error and its causes, without those that the text before them contains.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut kind = error.kind();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = match cause.downcast_ref::<Error>() {
            // Its kind is said already.
            Some(error) if error.kind() == kind && error.operation().is_none() => {
                error.message().to_owned()
            }
            Some(error) => {
                kind = error.kind();
                error.to_string()
            }
            None => cause.to_string(),
        };
        if !says(&text, &words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// Whether `text` contains `words`, regardless of upper case and of the number that the standard
/// library adds to an error of the operating system.
fn says(text: &str, words: &str) -> bool {
    let (text, words) = (text.to_lowercase(), words.to_lowercase());
    let words = without_number(&words);
    let continues = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    words.is_empty()
        || text.match_indices(words).any(|(at, _)| {
            !continues(text[..at].chars().next_back())
                && !continues(text[at + words.len()..].chars().next())
        })
}

/// The text of an error without ` (os error 2)` at its end.
fn without_number(text: &str) -> &str {
    text.rfind(" (os error ").map_or(text, |end| &text[..end])
}

/// The text of an operating system's error as part of a message: without its number, and in lower
/// case, such as `connection refused`.
#[must_use]
pub fn io_message(error: &std::io::Error) -> String {
    let text = error.to_string();
    let mut letters = without_number(&text).chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::{ErrorKind, invalid};

    #[test]
    fn main_prints_the_error_with_its_causes_and_says_nothing_twice() {
        let refused = || std::io::Error::from_raw_os_error(111);
        let unreachable = |message: &str| Error::new(ErrorKind::Unreachable, message);
        for (error, says) in [
            (invalid("no lock"), "invalid argument: no lock"),
            (
                unreachable("cannot connect to h:1").caused_by(refused()),
                "store unreachable: cannot connect to h:1: Connection refused (os error 111)",
            ),
            (
                unreachable("cannot connect to h:1: connection refused").caused_by(refused()),
                "store unreachable: cannot connect to h:1: connection refused",
            ),
            (
                unreachable("no connection within 3s").caused_by(
                    unreachable("cannot connect to h:1: connection refused").caused_by(refused()),
                ),
                "store unreachable: no connection within 3s: cannot connect to h:1: connection \
                 refused",
            ),
            (
                unreachable("no connection").caused_by(invalid("no host")),
                "store unreachable: no connection: invalid argument: no host",
            ),
            // Only whole words count as said.
            (unreachable("no connection").caused_by("io"), "store unreachable: no connection: io"),
        ] {
            assert_eq!(format!("{error:?}"), says);
            assert_eq!(format!("{error:#}"), says);
            assert_eq!(format!("{error:#?}"), says);
        }
    }

    #[test]
    fn an_error_of_the_system_is_part_of_a_sentence() {
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(io_message(&error), "no such file or directory");
        assert_eq!(io_message(&std::io::Error::other("")), "");
    }
}
