//! What each error of the server and of the connection means: one table.

use fencelock_core::{Error, ErrorKind};
use redis::RedisError;

/// What the connection should do about an error, besides telling the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing: the server is there, and said what it had to say.
    None,
    /// Replace the connection: this one is dead, or is with a server that is not the right one any
    /// more. Asking Sentinel or the cluster again comes with it.
    Reconnect,
    /// Count it: after several in a row without an answer between them the connection is replaced.
    CountSilence,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: ErrorKind,
    pub(crate) retryable: bool,
    pub(crate) remedy: Remedy,
    /// What to say besides the server's own words.
    advice: &'static str,
}

const fn meaning(
    kind: ErrorKind,
    retryable: bool,
    remedy: Remedy,
    advice: &'static str,
) -> Meaning {
    Meaning { kind, retryable, remedy, advice }
}

const WRONG_PASSWORD: Meaning =
    meaning(ErrorKind::Refused, false, Remedy::None, "check the URL's user and password");

const LOADING: &str = "the server loads its data";

/// Whether the server is there, and will serve soon.
pub(crate) fn is_loading(error: &Error) -> bool {
    error.to_string().contains(LOADING)
}

/// The server's error codes. `Unreachable` and retryable means: later, perhaps elsewhere.
const TABLE: &[(&str, Meaning)] = {
    use ErrorKind::{Foreign, Refused, Unreachable};
    use Remedy::{None, Reconnect};
    &[
        ("LOADING", meaning(Unreachable, true, None, LOADING)),
        ("BUSY", meaning(Unreachable, true, None, "the server is stopped by a long script")),
        ("READONLY", meaning(Unreachable, true, Reconnect, "the server became a replica")),
        ("MASTERDOWN", meaning(Unreachable, true, Reconnect, "a replica has lost its master")),
        ("MISCONF", meaning(Unreachable, true, None, "the server cannot save and takes no writes")),
        ("OOM", meaning(Unreachable, true, None, "the server is at its maxmemory")),
        (
            "NOREPLICAS",
            meaning(Unreachable, true, None, "fewer replicas than min-replicas-to-write"),
        ),
        ("CLUSTERDOWN", meaning(Unreachable, true, Reconnect, "the cluster does not serve")),
        ("MOVED", meaning(Unreachable, true, None, "the slot has moved")),
        ("ASK", meaning(Unreachable, true, None, "the slot is moving")),
        ("TRYAGAIN", meaning(Unreachable, true, None, "the slot is moving")),
        ("NOSCRIPT", meaning(Unreachable, true, None, "the script is not loaded")),
        ("UNBLOCKED", meaning(Unreachable, true, Reconnect, "the server became a replica")),
        ("UNKILLABLE", meaning(Unreachable, true, None, "the server is stopped by a long script")),
        ("NOAUTH", meaning(Refused, false, None, "give a password: redis://:PASSWORD@host")),
        ("WRONGPASS", WRONG_PASSWORD),
        (
            "NOPERM",
            meaning(
                Refused,
                false,
                None,
                "the ACL denies it; docs/redis.md has the rules it needs, docs/redlock.md a quorum's",
            ),
        ),
        ("DENIED", meaning(Refused, false, None, "the server is in protected mode")),
        ("WRONGTYPE", meaning(Foreign, false, None, "a key of the lock has another type")),
        ("CROSSSLOT", meaning(Refused, false, None, "is it a cluster? use redis-cluster://")),
    ]
};

/// How a server says inside a script that the ACL denies something, with the plain code ERR.
const DENIED: [&str; 4] = [
    "can't run this command",
    "can't access at least one of the keys",
    "can't publish to the channel",
    // From 7.2 on.
    "ACL failure in script",
];

/// The scripts say this of keys that another program wrote.
const FOREIGN: &str = "fencelock: ";

/// What `error` means.
pub(crate) fn meaning_of(error: &RedisError) -> Meaning {
    if foreign(error).is_some() {
        return meaning(ErrorKind::Foreign, false, Remedy::None, "");
    }
    // `maxclients` has the plain code ERR, and the connection is closed behind it.
    if error.detail().is_some_and(|text| text.contains("max number of clients")) {
        let advice = "the server has no room for another client";
        return meaning(ErrorKind::Unreachable, true, Remedy::Reconnect, advice);
    }
    let code = code_of(error);
    if let Some((_, known)) = TABLE.iter().find(|(known, _)| *known == code) {
        return *known;
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => WRONG_PASSWORD,
        redis::ErrorKind::RESP3NotSupported => {
            meaning(ErrorKind::Refused, false, Remedy::None, "Redis 6.2 or newer is needed")
        }
        redis::ErrorKind::InvalidClientConfig => {
            meaning(ErrorKind::InvalidArgument, false, Remedy::None, "")
        }
        // An error that the server is sure of and this table does not know: asking again gives
        // the same.
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            meaning(ErrorKind::Refused, false, Remedy::None, "")
        }
        _ if error.is_timeout() => {
            meaning(ErrorKind::Unreachable, true, Remedy::CountSilence, "no answer in time")
        }
        // Whatever else went wrong on the way, this connection is no use any more: it is closed,
        // or what comes from it is no RESP.
        _ => meaning(ErrorKind::Unreachable, true, Remedy::Reconnect, "the connection failed"),
    }
}

/// The code of an error, which a script that passes it on hides behind other words.
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
    let inner = own_words(words).split(' ').next().unwrap_or_default();
    if TABLE.iter().any(|(known, _)| *known == inner) { inner } else { code }
}

/// What Lua calls every script.
const SCRIPT: &str = "@user_script:";

/// The words of an error without those that say where in a script it came up: from 7.0 on they follow
/// it; before, each level puts its own in front, and a line's number may be all that is left of them
/// where their beginning was taken for the code.
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

/// As the caller sees it.
pub(crate) fn explain(error: &RedisError) -> Error {
    let meaning = meaning_of(error);
    if let Some(what) = foreign(error) {
        let message = format!("{what}; it was left as it is");
        return Error::new(ErrorKind::Foreign, message).retryable(false);
    }
    let words = error.to_string();
    // What a server does not know it repeats: a password, or an identity.
    let words = words.split(", with args beginning with").next().unwrap_or_default();
    let message = match meaning.advice {
        "" => words.to_owned(),
        advice => format!("{advice} ({words})"),
    };
    Error::new(meaning.kind, message).retryable(meaning.retryable)
}

/// What a script said of a foreign key. Servers wrap it in words of their own, by version.
fn foreign(error: &RedisError) -> Option<&str> {
    let text = error.detail()?;
    let what = &text[text.find(FOREIGN)? + FOREIGN.len()..];
    let end = what.find(" of another program")? + " of another program".len();
    Some(&what[..end])
}

/// An answer that no script of ours gives: the connection is out of step, or not with a Redis.
pub(crate) fn protocol_error(to: &str) -> Error {
    let message = format!("the server gave {to} an answer that cannot be; is it a Redis?");
    Error::new(ErrorKind::Unreachable, message)
}

/// After [`close`](fencelock_core::Locks::close).
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, words: &str) -> RedisError {
        redis::make_extension_error(code.to_owned(), Some(words.to_owned()))
    }

    #[test]
    fn what_may_pass_is_asked_again_and_the_rest_is_final() {
        for code in ["LOADING", "BUSY", "READONLY", "OOM", "NOREPLICAS", "CLUSTERDOWN", "MISCONF"] {
            let explained = explain(&error(code, "words"));
            assert!(explained.is_retryable(), "{code}");
            assert_eq!(explained.kind(), ErrorKind::Unreachable, "{code}");
        }
        for code in ["NOAUTH", "WRONGPASS", "NOPERM", "SOMETHINGNEW"] {
            let explained = explain(&error(code, "words"));
            assert!(!explained.is_retryable(), "{code}");
            assert_eq!(explained.kind(), ErrorKind::Refused, "{code}");
            assert!(explained.to_string().contains("words"), "{explained}");
        }
        assert_eq!(meaning_of(&error("READONLY", "")).remedy, Remedy::Reconnect);
        assert!(is_loading(&explain(&error("LOADING", ""))));
        assert!(!is_loading(&explain(&error("BUSY", ""))));
    }

    /// As servers from 6.2 to 9.1 put it, whether a script fails with it, catches it and raises it
    /// again, or answers it; alone or in a batch.
    #[test]
    fn a_code_is_found_wherever_a_script_leaves_it() {
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
    fn a_code_among_other_words_is_none() {
        let words = "wrong number of arguments for OOM: -READONLY";
        assert_eq!(code_of(&error("ERR", words)), "ERR");
    }

    #[test]
    fn what_the_acl_denies_inside_a_script_is_a_missing_permission() {
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
    fn what_a_server_repeats_is_not_repeated() {
        let words = "unknown command 'hello', with args beginning with: '3' 'auth' 'me' 'hunter2'";
        assert!(!explain(&error("ERR", words)).to_string().contains("hunter2"));
    }

    #[test]
    fn every_code_stands_in_the_table_once() {
        for (index, (code, _)) in TABLE.iter().enumerate() {
            assert!(TABLE[..index].iter().all(|(other, _)| other != code), "{code}");
        }
    }

    #[test]
    fn a_foreign_key_is_named_whatever_the_server_adds() {
        for words in [
            "user_script:12: fencelock: lock:a is a list of another program script: 0a, on @x:1.",
            "Error running script (call to f_0): @user_script:9: user_script:9: fencelock: lock:a \
             is a list of another program",
        ] {
            let explained = explain(&error("ERR", words));
            assert_eq!(explained.kind(), ErrorKind::Foreign);
            let text = explained.to_string();
            assert!(text.ends_with(": lock:a is a list of another program; it was left as it is"));
        }
    }
}
