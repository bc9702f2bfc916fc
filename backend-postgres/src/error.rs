//! The meaning of each error of the server and of the connection: one table.

use fencelock_core::backend::io_message;
pub(crate) use fencelock_core::backend::{closed, unreachable};
use fencelock_core::{Error, ErrorKind, Result};
pub(crate) use fencelock_net::Remedy;
use fencelock_net::{Meaning, elsewhere, later, meaning, refused, words_of_server};
use tokio_postgres::Row;
use tokio_postgres::error::DbError;
use tokio_postgres::types::FromSql;

const A_POOLER: Meaning =
    meaning(ErrorKind::Unreachable, Remedy::Unnamed, "a pooler between, which mixes sessions");

/// Also of a schema that is older than this library.
pub(crate) const MAKE_SCHEMA: &str = "the schema of the locks is missing, older or incomplete; have its \
     owner run the script that `fencelock postgres schema [--schema NAME]` prints";

const NO_SCHEMA: Meaning = refused(MAKE_SCHEMA);

/// The beginning of the message of an error that only the end of another transaction mends.
pub(crate) const ROW_IS_TAKEN: &str = "another transaction has the row";

/// SQLSTATEs by their beginnings, the longest first
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
const TABLE: &[(&str, Meaning)] = &[
    ("FL001", meaning(ErrorKind::Lost, Remedy::None, "")),
    ("0A000", elsewhere("the functions were replaced")),
    ("22021", meaning(ErrorKind::InvalidArgument, Remedy::None, "")),
    ("22P05", meaning(ErrorKind::InvalidArgument, Remedy::None, "")),
    // By an old snapshot, such as that of a pooler's session, a request does not see an earlier one's row.
    ("23505", later("another request has made the row")),
    ("25006", elsewhere("the server is a standby, or read-only")),
    // Only a check in the user's own transaction meets it.
    (
        "25P02",
        meaning(
            ErrorKind::Refused,
            Remedy::Reconnect,
            "the transaction has failed already, by the error of an earlier statement: roll it back, and run \
             the check first in a new one",
        ),
    ),
    (
        "25P04",
        elsewhere(
            "the server ended the session: is its transaction_timeout, of the role or the database, too short?",
        ),
    ),
    ("26000", A_POOLER),
    ("28000", refused("the login is refused: check the URL's user, and pg_hba.conf")),
    ("28P01", refused("check the URL's user and password")),
    ("3D000", refused("the URL names a database that does not exist")),
    ("3F000", NO_SCHEMA),
    ("40001", later("a conflict with another transaction")),
    ("40P01", later("a deadlock with another transaction")),
    (
        "42501",
        refused(
            "a right is missing; have the owner of the schema run the GRANT statements, a program's or an \
             operator's, in the first lines of what `fencelock postgres schema [--schema NAME]` prints",
        ),
    ),
    ("42883", NO_SCHEMA),
    ("42P01", NO_SCHEMA),
    ("42P05", A_POOLER),
    ("53100", later("the server's disk is full")),
    ("53200", later("the server's memory is full")),
    (
        "53300",
        elsewhere(
            "the server accepts no more connections: see its max_connections and reserved_connections, and the \
             CONNECTION LIMIT of the role and the database",
        ),
    ),
    ("55P03", later(ROW_IS_TAKEN)),
    (
        "57014",
        later(
            "the server cancelled the statement: is the statement_timeout, of the role or the database, too short?",
        ),
    ),
    ("57P03", elsewhere("the server is starting or stopping")),
    ("08", elsewhere("the connection failed")),
    ("25P", elsewhere("the session was ended")),
    ("53", later("the server is short of resources")),
    ("54", later("a limit of the server")),
    ("57P", elsewhere("the server ended the session")),
    ("58", elsewhere("the server's system failed")),
    ("XX", elsewhere("an internal error of the server")),
];

/// The meaning of a server's error.
fn meaning_of_state(state: &str) -> Meaning {
    let known = TABLE.iter().find(|(begins, _)| state.starts_with(begins));
    // A definite error that is not in the table.
    known.map_or(refused(""), |(_, meaning)| *meaning)
}

/// The meaning of `error`.
pub(crate) fn meaning_of(error: &tokio_postgres::Error) -> Meaning {
    match error.as_db_error() {
        Some(error) => meaning_of_state(error.code().code()),
        None => elsewhere("the connection failed"),
    }
}

/// The error for the caller.
pub(crate) fn explain(error: &tokio_postgres::Error) -> Error {
    let Meaning { kind, advice, .. } = meaning_of(error);
    let words = words_of(error);
    let message = if advice.is_empty() { words } else { format!("{advice} ({words})") };
    Error::new(kind, message)
}

/// Without the detail, which may show the values of a row.
pub(crate) fn words_of_error(error: &DbError) -> String {
    format!(
        "{}, SQLSTATE {}",
        words_of_server(error.message()),
        words_of_server(error.code().code())
    )
}

pub(crate) fn words_of(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return words_of_error(error);
    }
    let Some(cause) = std::error::Error::source(error) else { return error.to_string() };
    match cause.downcast_ref::<std::io::Error>() {
        Some(cause) => io_message(cause),
        None => format!("{error}: {cause}"),
    }
}

/// The error for a login that failed at `host`.
pub(crate) fn no_login(error: &tokio_postgres::Error, host: &impl std::fmt::Display) -> Error {
    let refused = |message| Error::new(ErrorKind::Refused, message);
    if let Some(refusal) = error.as_db_error() {
        let words = words_of_error(refusal);
        return match refusal.code().code() {
            "42501" => refused(format!(
                "GRANT CONNECT ON DATABASE … TO the URL's user is missing ({words})"
            )),
            // pgbouncer has this one state for all of its errors.
            "08P01" if is_final(refusal.message()) => refused(format!(
                "a pooler refuses the login: check the URL's user, password and database ({words})"
            )),
            _ => explain(error),
        };
    }
    let words = words_of(error);
    // Kinds that only the client library's words show.
    if words.starts_with("invalid configuration") {
        return refused(format!(
            "the login at {host} is refused ({words}): check the URL's user and password \
             (postgres://USER:PASSWORD@HOST/DATABASE, or password_file=FILE)"
        ));
    }
    if words.starts_with("authentication error") {
        let advice = "have the server ask for a password (pg_hba.conf)";
        return refused(format!(
            "{host} asks for a login that is not supported ({words}); {advice}"
        ));
    }
    unreachable(format!("no login at {host} ({words}); is a PostgreSQL server listening there?"))
}

/// Whether a pooler's refusal of a login is not for its own state.
fn is_final(message: &str) -> bool {
    ["password authentication failed", "SASL authentication failed", "does not exist", "no such "]
        .iter()
        .any(|part| message.contains(part))
}

/// A column of an answer about the server, which is not of the type that PostgreSQL gives it, or missing.
pub(crate) fn read_setting<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(|cause| {
        let message = format!(
            "the server describes itself unlike PostgreSQL ({cause}): connect to a PostgreSQL server, and \
             check that no schema in the search_path of the URL's user hides pg_catalog"
        );
        Error::new(ErrorKind::Refused, message)
    })
}

/// The server answered what the function `name` never does.
pub(crate) fn protocol_error(name: &str) -> Error {
    unreachable(format!(
        "an unexpected answer to {name}: is this another version of the functions?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_of_a_state_counts() {
        for (state, kind, remedy) in [
            ("FL001", ErrorKind::Lost, Remedy::None),
            ("08006", ErrorKind::Unreachable, Remedy::Reconnect),
            // All of pgbouncer's own errors, in session mode too.
            ("08P01", ErrorKind::Unreachable, Remedy::Reconnect),
            ("25P02", ErrorKind::Refused, Remedy::Reconnect),
            ("25P03", ErrorKind::Unreachable, Remedy::Reconnect),
            ("26000", ErrorKind::Unreachable, Remedy::Unnamed),
            ("42P05", ErrorKind::Unreachable, Remedy::Unnamed),
            ("57P01", ErrorKind::Unreachable, Remedy::Reconnect),
            ("57014", ErrorKind::Unreachable, Remedy::None),
            ("53100", ErrorKind::Unreachable, Remedy::None),
            ("53300", ErrorKind::Unreachable, Remedy::Reconnect),
            ("28P01", ErrorKind::Refused, Remedy::None),
            ("42883", ErrorKind::Refused, Remedy::None),
            ("22P05", ErrorKind::InvalidArgument, Remedy::None),
            ("23505", ErrorKind::Unreachable, Remedy::None),
            ("23514", ErrorKind::Refused, Remedy::None),
        ] {
            let meaning = meaning_of_state(state);
            assert_eq!((meaning.kind, meaning.remedy), (kind, remedy), "{state}");
        }
    }
}
