//! The meaning of each error of the server and of the connection: one table.

use std::borrow::Borrow;
use std::fmt::Display;

pub(crate) use fencelock_core::backend::{closed, unreachable};
use fencelock_core::{Error, ErrorKind};
pub(crate) use fencelock_net::Remedy;
use fencelock_net::{Meaning, elsewhere, later, meaning, refused, words_of_server};
use redis::RedisError;

const WRONG_PASSWORD: Meaning = refused("check the URL's user and password");
const NO_PERMISSION: &str =
    "the ACL denies it; docs/redis.md has the rules it needs, docs/redlock.md a quorum's";
const LOADING: &str = "the server is loading its data";

/// Whether the server is up, and will serve soon.
pub(crate) fn is_loading(error: &Error) -> bool {
    error.to_string().contains(LOADING)
}

/// The server's error codes.
const TABLE: &[(&str, Meaning)] = &[
    ("LOADING", later(LOADING)),
    ("BUSY", later("the server is blocked by a long script")),
    ("READONLY", elsewhere("the server became a replica")),
    ("MASTERDOWN", elsewhere("a replica has lost its master")),
    ("MISCONF", later("the server cannot save and rejects writes")),
    ("OOM", later("the server is at its maxmemory")),
    ("NOREPLICAS", later("fewer replicas than min-replicas-to-write")),
    ("CLUSTERDOWN", elsewhere("the cluster does not serve")),
    ("MOVED", later("the slot has moved")),
    ("ASK", later("the slot is moving")),
    ("TRYAGAIN", later("the slot is moving")),
    ("NOSCRIPT", later("the script is not loaded")),
    ("UNBLOCKED", elsewhere("the server became a replica")),
    ("UNKILLABLE", later("the server is blocked by a long script")),
    ("NOAUTH", refused("give a password: redis://:PASSWORD@host")),
    ("WRONGPASS", WRONG_PASSWORD),
    ("NOPERM", refused(NO_PERMISSION)),
    ("DENIED", refused("the server is in protected mode")),
    ("WRONGTYPE", meaning(ErrorKind::Foreign, Remedy::None, "the key has another type")),
    ("CROSSSLOT", refused("is it a cluster? use redis-cluster://")),
];

/// Texts of errors inside a script that the ACL causes; their code is a plain ERR.
const DENIED: [&str; 4] = [
    "can't run this command",
    "can't access at least one of the keys",
    "can't publish to the channel",
    // From 7.2 on.
    "ACL failure in script",
];

/// Prefix of the scripts' errors about keys that another program wrote.
const FOREIGN: &str = "fencelock: ";

/// The meaning of `error`.
pub(crate) fn meaning_of(error: &RedisError) -> Meaning {
    if foreign(error).is_some() {
        return meaning(ErrorKind::Foreign, Remedy::None, "");
    }
    // `maxclients` has the plain code ERR, and the server closes the connection after it.
    if error.detail().is_some_and(|text| text.contains("max number of clients")) {
        return elsewhere("the server accepts no more clients");
    }
    if error.detail().is_some_and(|text| text.starts_with("unknown command")) {
        return refused("renamed away (rename-command), or unknown to a proxy before the server");
    }
    let code = code_of(error);
    if let Some((_, known)) = TABLE.iter().find(|(known, _)| *known == code) {
        return *known;
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => WRONG_PASSWORD,
        redis::ErrorKind::RESP3NotSupported => refused("Redis 6.2 or newer is needed"),
        redis::ErrorKind::InvalidClientConfig => {
            meaning(ErrorKind::InvalidArgument, Remedy::None, "")
        }
        // A definite error that is not in the table.
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => refused(""),
        _ if error.is_timeout() => {
            meaning(ErrorKind::Unreachable, Remedy::CountTimeout, "no answer in time")
        }
        // Any other failure: the connection is closed, or what arrives is not RESP.
        _ => elsewhere("the connection failed"),
    }
}

/// The code of an error, also where a script that passes it on puts other text before it.
pub(crate) fn code_of(error: &RedisError) -> &str {
    let code = error.code().unwrap_or_default();
    let words = error.detail().unwrap_or_default();
    let is_passed_on = code == "ERR" || code.starts_with(SCRIPT);
    if !is_passed_on {
        return code;
    }
    if DENIED.iter().any(|denied| words.contains(denied)) {
        return "NOPERM";
    }
    // What a script gets for a key that has moved, or was removed, while its slot moves.
    if words.contains("access a non local key") {
        return "ASK";
    }
    let inner = own_words(words).split(' ').next().unwrap_or_default();
    if TABLE.iter().any(|(known, _)| *known == inner) { inner } else { code }
}

/// Lua's name of every script.
const SCRIPT: &str = "@user_script:";

/// The text of an error without its position in a script. From 7.0 on the position follows the text;
/// earlier servers prepend one at each level, and only its line number is left where its beginning
/// was taken for the code.
fn own_words(mut words: &str) -> &str {
    if let Some((_, inner)) =
        words.strip_prefix("Error running script").and_then(|words| words.split_once("): "))
    {
        words = inner;
    }
    loop {
        let rest = words.strip_prefix('@').unwrap_or(words);
        let rest = rest.strip_prefix("user_script:").unwrap_or(rest).trim_start();
        let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        match rest.strip_prefix(": ").or_else(|| words.strip_prefix("ERR ")) {
            Some(rest) => words = rest.strip_prefix('-').unwrap_or(rest),
            None => return words,
        }
    }
}

/// The error for the caller.
pub(crate) fn explain(error: impl Borrow<RedisError>) -> Error {
    let error = error.borrow();
    let Meaning { kind, advice, .. } = meaning_of(error);
    if let Some(what) = foreign(error) {
        return Error::new(kind, format!("{}; it was left as it is", words_of_server(what)));
    }
    let words = words_of(error);
    let message = if advice.is_empty() { words } else { format!("{advice} ({words})") };
    Error::new(kind, message)
}

/// As [`explain`], for an error of the connection to `address`.
pub(crate) fn explain_from(error: &RedisError, address: &impl Display) -> Error {
    let Meaning { kind, remedy, .. } = meaning_of(error);
    let words = words_of(error);
    match remedy {
        Remedy::CountTimeout => Error::new(kind, format!("no answer from {address} in time")),
        Remedy::Reconnect => {
            Error::new(kind, format!("the connection to {address} failed ({words})"))
        }
        Remedy::None | Remedy::Unnamed => explain(error),
    }
}

/// The text of an error: a server's code and words, or the client crate's words without the name of
/// its type.
fn words_of(error: &RedisError) -> String {
    let words = match (code_of(error), error.detail()) {
        // The advice says it all; the server describes the commands of its protocol.
        ("NOAUTH", _) => "NOAUTH".to_owned(),
        ("", _) | (_, None) => error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1),
        _ => {
            let code = error.code().unwrap_or_default();
            format!("{code} {}", error.detail().unwrap_or_default())
        }
    };
    // A server repeats the arguments of an unknown command: a password, or an identity.
    words_of_server(words.split(", with args beginning with").next().unwrap_or_default())
}

/// A script's message about a foreign key. Servers wrap it in text that depends on their version.
fn foreign(error: &RedisError) -> Option<&str> {
    let text = error.detail()?;
    let what = &text[text.find(FOREIGN)? + FOREIGN.len()..];
    let end = what.find(" of another program")? + " of another program".len();
    Some(&what[..end])
}

/// The error that a cell's key has a text which this library did not write.
pub(crate) fn foreign_text(key: &str) -> Error {
    let message = format!("{key} is the text of another program; it was left as it is");
    Error::new(ErrorKind::Foreign, message)
}

/// The error for a reply that none of our scripts gives: the connection is out of step, or its
/// server is not Redis.
pub(crate) fn protocol_error(to: &str) -> Error {
    unreachable(format!("unexpected reply to {to}; is this a Redis server?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, words: &str) -> RedisError {
        redis::make_extension_error(code.to_owned(), Some(words.to_owned()))
    }

    #[test]
    fn temporary_errors_are_retryable_and_others_final() {
        for code in ["LOADING", "BUSY", "READONLY", "OOM", "NOREPLICAS", "CLUSTERDOWN", "MISCONF"] {
            let explained = explain(error(code, "words"));
            assert!(explained.is_retryable(), "{code}");
            assert_eq!(explained.kind(), ErrorKind::Unreachable, "{code}");
        }
        for code in ["NOAUTH", "WRONGPASS", "NOPERM", "SOMETHINGNEW"] {
            let explained = explain(error(code, "words"));
            assert!(!explained.is_retryable(), "{code}");
            assert_eq!(explained.kind(), ErrorKind::Refused, "{code}");
            // The server's words about a missing password describe its protocol.
            assert_eq!(explained.message().contains("words"), code != "NOAUTH", "{explained}");
        }
        assert_eq!(meaning_of(&error("READONLY", "")).remedy, Remedy::Reconnect);
        assert!(is_loading(&explain(error("LOADING", ""))));
        assert!(!is_loading(&explain(error("BUSY", ""))));
    }

    #[test]
    fn the_words_are_those_of_the_server_and_name_no_type_of_the_client() {
        let client = |kind, words| RedisError::from((kind, words));
        for (error, says) in [
            (
                error("NOAUTH", "HELLO must be called"),
                "give a password: redis://:PASSWORD@host (NOAUTH)",
            ),
            (
                error("WRONGPASS", "invalid user"),
                "check the URL's user and password (WRONGPASS invalid user)",
            ),
            (error("ERR", "syntax error"), "ERR syntax error"),
            (error("ERR", "in \u{1b}[31mred\n"), "ERR in  [31mred "),
            (
                client(redis::ErrorKind::AuthenticationFailed, "Password authentication failed"),
                "check the URL's user and password (Password authentication failed)",
            ),
            (
                client(redis::ErrorKind::UnexpectedReturnType, "not a string"),
                "the connection failed (not a string)",
            ),
        ] {
            assert_eq!(explain(&error).message(), says);
        }
        let closed = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let explained = explain_from(&closed, &"h:1");
        assert_eq!(explained.message(), "the connection to h:1 failed (broken pipe)");
        let late = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(explain_from(&late, &"h:1").message(), "no answer from h:1 in time");
    }

    /// The texts of servers from 6.2 to 9.1, whether a script fails with the error, catches and
    /// raises it again, or returns it; alone or in a batch.
    #[test]
    fn a_code_is_found_wherever_a_script_puts_it() {
        for code in ["READONLY", "OOM", "MISCONF", "NOREPLICAS", "WRONGTYPE"] {
            let alone = meaning_of(&error(code, "You can't."));
            for (first, words) in [
                (code, "You can't. script: 3c44b7, on @user_script:1.".to_owned()),
                ("ERR", format!("{code} You can't. script: on @user_script:1.")),
                ("ERR", format!("@user_script: 89: -{code} You can't.")),
                ("ERR", format!("ERR @user_script: 89: -{code} You can't.")),
                ("ERR", format!("Error running script (call to f_3c): @user_script:1: {code} You")),
                (
                    "ERR",
                    format!(
                        "Error running script (call to f_3c): @user_script:12: @user_script: 12: \
                         -{code} You can't."
                    ),
                ),
                ("@user_script:", format!("1: -{code} You can't.")),
            ] {
                assert_eq!(meaning_of(&error(first, &words)), alone, "{first} {words}");
            }
        }
    }

    #[test]
    fn a_code_inside_other_text_is_ignored() {
        let words = "wrong number of arguments for OOM: -READONLY";
        assert_eq!(code_of(&error("ERR", words)), "ERR");
        assert_eq!(code_of(&error("ERR", "Attempted to access a non local key in")), "ASK");
    }

    #[test]
    fn an_acl_error_inside_a_script_is_a_missing_permission() {
        for words in [
            "The user executing the script can't run this command or subcommand",
            "ACL failure in script: User u has no permissions to run the 'get' command",
            "@user_script: 1: The user executing the script can't access at least one of the keys",
        ] {
            assert_eq!(code_of(&error("ERR", words)), "NOPERM", "{words}");
        }
        let in_6_2 =
            error("@user_script:", "1: The user executing the script can't run this command");
        assert_eq!(code_of(&in_6_2), "NOPERM");
    }

    #[test]
    fn arguments_that_a_server_repeats_are_not_shown() {
        let words = "unknown command 'hello', with args beginning with: '3' 'auth' 'me' 'hunter2'";
        assert!(!explain(error("ERR", words)).to_string().contains("hunter2"));
    }

    #[test]
    fn every_code_is_in_the_table_once() {
        for (index, (code, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[..index].iter().all(|(other, _)| other != code), "{code}");
        }
    }

    #[test]
    fn a_foreign_key_is_reported_whatever_the_server_adds() {
        for words in [
            "user_script:12: fencelock: lock:a is a list of another program script: 0a, on @x:1.",
            "Error running script (call to f_0): @user_script:9: user_script:9: fencelock: lock:a \
             is a list of another program",
        ] {
            let explained = explain(error("ERR", words));
            assert_eq!(explained.kind(), ErrorKind::Foreign);
            let text = explained.to_string();
            assert!(text.ends_with(": lock:a is a list of another program; it was left as it is"));
        }
    }
}
