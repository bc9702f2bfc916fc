//! The tables and functions in the server.
//!
//! Each is a file of its own in `sql/`, with `:"schema"` for the name of their schema, as in
//! `psql`. Clients call functions only, which run with the rights of the schema's owner: a role
//! that uses locks can read no owner and change no row. A role that takes locks from others, or
//! clears them, needs rights of its own.

use fencelock_core::Result;
use fencelock_core::backend::invalid;

/// The schema of a URL without the parameter `schema=`.
pub const DEFAULT: &str = "fencelock";

/// The length to which Postgres shortens names.
const LONGEST_NAME: usize = 63;

/// The version that [`script`] creates, and `version()` reports. It rises with each change of a function, or none
/// reaches the databases that are there: a client compares this number only.
pub const VERSION: i32 = 2;

/// What must be so before anything is created in the schema.
const OWNER: &str = include_str!("../sql/owner.sql");

/// What must not be so afterwards.
const RIGHTS: &str = include_str!("../sql/rights.sql");

/// What programs call, with the checks of their users' transactions.
pub(crate) const FOR_PROGRAMS: [&str; 14] = [
    "version",
    "attempt_1",
    "release_1",
    "downgrade_1",
    "renew_1",
    "batch_1",
    "look_1",
    "inspect_1",
    "holders_1",
    "read_cell_1",
    "swap_cell_1",
    "tidy_1",
    "check_token",
    "fence",
];

/// What breaks the locks of others.
const FOR_OPERATORS: [&str; 2] = ["evict_1", "clear_1"];

const FILES: [&str; 27] = [
    include_str!("../sql/tables.sql"),
    include_str!("../sql/version.sql"),
    include_str!("../sql/us.sql"),
    include_str!("../sql/settle.sql"),
    include_str!("../sql/is_crowd.sql"),
    include_str!("../sql/may_grant.sql"),
    include_str!("../sql/remove_dead.sql"),
    include_str!("../sql/hand_off.sql"),
    include_str!("../sql/next_look.sql"),
    include_str!("../sql/contend.sql"),
    include_str!("../sql/acquire.sql"),
    include_str!("../sql/attempt.sql"),
    include_str!("../sql/remove_claim.sql"),
    include_str!("../sql/release.sql"),
    include_str!("../sql/downgrade.sql"),
    include_str!("../sql/renew.sql"),
    include_str!("../sql/batch.sql"),
    include_str!("../sql/look.sql"),
    include_str!("../sql/holders.sql"),
    include_str!("../sql/inspect.sql"),
    include_str!("../sql/evict.sql"),
    include_str!("../sql/read_cell.sql"),
    include_str!("../sql/swap_cell.sql"),
    include_str!("../sql/clear.sql"),
    include_str!("../sql/tidy.sql"),
    include_str!("../sql/check_token.sql"),
    include_str!("../sql/fence.sql"),
];

/// The statements that create or update `schema`, to be run in one transaction, by the role that owns it, or one with
/// the right CREATE on the database, which then owns it. They change nothing that is there already, and refuse a
/// schema of another program or role, and one of a newer release. They take an advisory lock, so that two sessions
/// run them one after the other, and need the isolation level READ COMMITTED.
///
/// The comment at their beginning has the rights that a program's role needs to use locks, and an operator's.
///
/// `schema` is a name that [`check_name`] accepts.
///
/// ```
/// let script = fencelock_postgres::schema::script("fencelock");
/// assert!(script.contains(r#"CREATE TABLE IF NOT EXISTS "fencelock".locks"#));
/// ```
#[must_use]
pub fn script(schema: &str) -> String {
    let name = quoted(schema);
    let files: Vec<_> = FILES.iter().map(|file| file.replace(":\"schema\"", &name)).collect();
    let owner = OWNER.replace(":version", &VERSION.to_string());
    let owner = owner.replace(":'schema'", &literal(schema));
    let lock = lock(schema);
    // The role may have a schema in its search_path in which others create functions and operators: one that fits
    // the arguments better than PostgreSQL's own of the same name would be called, with the rights of this role.
    format!(
        "-- fencelock, version {VERSION} of the schema. Run this in one transaction, as the role that owns it\n\
         -- (psql -1 -v ON_ERROR_STOP=1 -f FILE).\n\
         --\n\
         -- Programs trust themselves, superusers and, unless they are one, the database's owner. If this role is none\n\
         -- of them, their URLs name it: owner=ROLE.\n\
         --\n\
         -- The role of a program that uses locks needs these rights, and none to a table:\n\
         {}\
         -- An operator, who takes locks from their holders, and clears the names of tests, needs in addition:\n\
         {}\
         \n\
         SELECT pg_catalog.set_config('fencelock.search_path', pg_catalog.current_setting('search_path'), true),\n  \
           pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);\n\
         {lock}\n\
         {owner}\
         -- The names in a function's body are resolved where it is called.\n\
         SET check_function_bodies = off;\n\
         \n\
         {}\n\
         RESET check_function_bodies;\n\
         {RIGHTS}\
         SELECT set_config('search_path', current_setting('fencelock.search_path'), true);\n",
        comment(&format!(
            "GRANT USAGE ON SCHEMA {name} TO PROGRAM;\n{}",
            executes(&name, &FOR_PROGRAMS, "PROGRAM")
        )),
        comment(&executes(&name, &FOR_OPERATORS, "OPERATOR")),
        files.join("\n"),
    )
}

/// The statements that let one session at a time create `schema`, until its transaction ends.
pub(crate) fn lock(schema: &str) -> String {
    let name = literal(&format!("fencelock schema {schema}"));
    format!(
        "-- Two sessions at once would meet in the catalogue.\n\
         SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended({name}, 0));\n\
         -- A lock shows no new catalogue to the statements after it, with what another session has created\n\
         -- meanwhile; to open a table does.\n\
         SELECT FROM pg_catalog.pg_namespace LIMIT 0;"
    )
}

/// Whether Postgres takes `schema` as the name of a schema, and keeps all of it.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) if not.
pub fn check_name(schema: &str) -> Result<()> {
    let problem = match schema {
        "" => "it is empty",
        name if name.contains('\0') => "it contains NUL",
        name if name.len() > LONGEST_NAME => "it is longer than 63 bytes",
        // Also in quotes.
        "$user" => "in the search_path of a function it stands for the name of the current user",
        name if name.starts_with("pg_") => "names that begin with pg_ are PostgreSQL's own",
        _ => return Ok(()),
    };
    Err(invalid(format!("{schema:?} is not a valid name for a schema: {problem}")))
}

/// The statement that lets `role` call these functions of the schema.
fn executes(schema: &str, functions: &[&str], role: &str) -> String {
    let functions: Vec<_> = functions.iter().map(|name| format!("{schema}.{name}")).collect();
    format!("GRANT EXECUTE ON FUNCTION {} TO {role};", functions.join(", "))
}

/// The statement of [`Guard::check`](fencelock_core::Guard::check).
pub(crate) fn check_statement(schema: &str) -> String {
    format!("SELECT {}.check_token($1, $2, $3)", quoted(schema))
}

/// `text` as a string constant, whatever `standard_conforming_strings` is.
pub(crate) fn literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\\', r"\\").replace('\'', "''"))
}

/// As an identifier.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Every line of `text` behind dashes; a name can contain the end of a line.
fn comment(text: &str) -> String {
    text.split(['\n', '\r']).map(|line| format!("--   {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another role's names, and plans for small tables: see `tables.sql`.
    #[test]
    fn every_function_with_the_rights_of_its_owner_has_its_settings() {
        let settings = "SECURITY DEFINER\nSET search_path = \"a b\", pg_catalog, pg_temp\n\
                        SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off ";
        let script = script("a b");
        let functions = script.matches("SECURITY DEFINER").count();
        assert!(functions > 10);
        assert_eq!(script.matches(settings).count(), functions);
    }

    #[test]
    fn a_name_that_postgres_refuses_or_shortens_is_an_error() {
        for good in ["fencelock", "a\"b;\n", "ä", "$users", &"x".repeat(63)] {
            check_name(good).unwrap();
        }
        for (bad, says) in [
            (String::new(), "empty"),
            ("a\0b".to_owned(), "NUL"),
            ("x".repeat(64), "63 bytes"),
            ("ä".repeat(32), "63 bytes"),
            ("pg_locks".to_owned(), "PostgreSQL's own"),
            ("$user".to_owned(), "name of the current user"),
        ] {
            let error = check_name(&bad).unwrap_err();
            assert_eq!(error.kind(), fencelock_core::ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    /// The bodies of functions are read with the settings of their callers, such as
    /// `standard_conforming_strings`.
    #[test]
    fn no_function_has_a_backslash() {
        for file in FILES {
            assert!(!file.contains('\\'), "{file}");
        }
    }

    /// Without comments, which no program runs.
    #[test]
    fn a_changed_function_has_a_new_version() {
        let code = FILES.iter().flat_map(|file| file.lines());
        let code = code.map(|line| line.split("--").next().unwrap_or_default().trim());
        // FNV-1a.
        let hash = code.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let raise =
            "raise VERSION, here and in version.sql, unless it has risen since the last release";
        assert_eq!((VERSION, format!("{hash:x}").as_str()), (2, "1c4d4e760ecffe10"), "{raise}");
    }

    #[test]
    fn every_function_is_in_the_named_schema() {
        let script = script("elsewhere");
        assert!(!script.contains(":\"schema\""));
        let created = script.lines().filter(|line| line.starts_with("CREATE OR REPLACE FUNCTION "));
        assert_eq!(created.clone().count(), FILES.len() - 1);
        for line in created {
            assert!(line.starts_with("CREATE OR REPLACE FUNCTION \"elsewhere\"."), "{line}");
        }
    }
}
