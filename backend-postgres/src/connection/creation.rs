//! The schema of the locks at connect: whether it is there, and its creation.

use fencelock_core::backend::program;
use fencelock_core::{Error, ErrorKind, Result};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::options::ConnectOptions;
use super::session::{Session, patient};
use crate::error::{MAKE_SCHEMA, explain, meaning_of, read_setting, unreachable, words_of_error};
use crate::schema;

/// The SQLSTATEs of a creation that met another one: the wait for its lock was too long (`lock_timeout`), or a
/// session that does not take the lock made the same (unique_violation in the catalogue, duplicate_schema,
/// duplicate_table).
const MET_ANOTHER: [&str; 4] = ["55P03", "23505", "42P06", "42P07"];

/// What the catalogue says of the schema $1: whether it has the function `version`, and what of it belongs to a role
/// that this session does not trust, with that role. Asked in every session, and before anything of the schema is
/// called: what another role has made would run with the rights of this one, which may be a superuser's.
///
/// Trusted is who can do whatever this session can: this user, superusers and, unless this is one, the database's
/// owner; and $2.
pub(super) const OF_SCHEMA: &str = "\
    EXISTS (SELECT FROM pg_catalog.pg_proc p \
      JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace \
      WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND p.proname OPERATOR(pg_catalog.=) 'version' \
      AND p.pronargs OPERATOR(pg_catalog.=) 0), \
    (SELECT ARRAY[o.what, r.rolname::pg_catalog.text] FROM ( \
        SELECT 'it'::pg_catalog.text, n.nspowner FROM pg_catalog.pg_namespace n \
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 \
        UNION ALL \
        SELECT pg_catalog.concat('its function ', p.proname), p.proowner FROM pg_catalog.pg_proc p \
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace \
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 \
        UNION ALL \
        SELECT pg_catalog.concat('its operator ', p.oprname), p.oprowner FROM pg_catalog.pg_operator p \
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.oprnamespace \
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 \
        UNION ALL \
        SELECT pg_catalog.concat('its table ', c.relname), c.relowner FROM pg_catalog.pg_class c \
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 \
      ) o (what, owner) JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) o.owner \
      WHERE NOT r.rolsuper AND r.rolname OPERATOR(pg_catalog.<>) ALL ( \
        ARRAY[current_user::pg_catalog.text, session_user::pg_catalog.text, $2]) \
      AND (EXISTS (SELECT FROM pg_catalog.pg_roles me WHERE me.rolsuper AND me.rolname OPERATOR(pg_catalog.=) ANY ( \
          ARRAY[current_user::pg_catalog.text, session_user::pg_catalog.text])) \
        OR r.rolname OPERATOR(pg_catalog.<>) 'pg_database_owner' \
        AND r.oid OPERATOR(pg_catalog.<>) ALL (SELECT d.datdba FROM pg_catalog.pg_database d \
          WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) \
      ORDER BY o.what LIMIT 1)";

/// The answer.
pub(super) struct Found {
    has_version: bool,
    /// What it is, and its owner.
    strange: Option<Vec<String>>,
}

impl Found {
    /// Reads it from this column on.
    pub(super) fn read(row: &Row, at: usize) -> Result<Found> {
        Ok(Found { has_version: read_setting(row, at)?, strange: read_setting(row, at + 1)? })
    }

    /// There, and of roles that are trusted.
    pub(super) fn is_trusted(&self) -> bool {
        self.has_version && self.strange.is_none()
    }
}

impl ConnectOptions {
    /// Creates or completes the schema, if that is allowed.
    pub(super) async fn require_schema(&self, session: &Session, found: Found) -> Result<()> {
        match self.lacks(session, &found).await? {
            None => Ok(()),
            Some(missing) if !self.creates => Err(missing),
            Some(missing) => self.create(session, &missing).await,
        }
    }

    /// What is wrong with the schema, which its owner can mend.
    async fn lacks(&self, session: &Session, found: &Found) -> Result<Option<Error>> {
        let schema = schema::quoted(&self.schema);
        if let Some([what, owner]) = found.strange.as_deref() {
            let message = format!(
                "the schema {schema} is not trusted: {what} belongs to the role {owner}, whose functions would run \
                 with the rights of this login; name that role in the URL if it is the right one \
                 (owner={owner}), or another schema (schema=NAME)"
            );
            return Err(Error::new(ErrorKind::Refused, message));
        }
        if !found.has_version {
            let message = format!("{MAKE_SCHEMA} (there is no {schema}.version())");
            return Ok(Some(Error::new(ErrorKind::Refused, message)));
        }
        let asked = session.client.query_typed(&format!("SELECT {schema}.version()"), &[]).await;
        let rows = match asked {
            Ok(rows) => rows,
            Err(error) => {
                let state = error.as_db_error().map(|error| error.code().code().to_owned());
                return match state.as_deref() {
                    // It was dropped just now.
                    Some("3F000" | "42883") => Ok(Some(explain(&error))),
                    _ => session.state.observe(Err(error), &session.host),
                };
            }
        };
        let version = rows.first().map_or(Ok(0), |row| row.try_get::<_, i32>(0));
        let version = version.map_err(|cause| {
            let message = format!(
                "{schema}.version() does not answer with a number ({cause}), so the schema {schema} is \
                 another program's: name another one in the URL (schema=NAME)"
            );
            Error::new(ErrorKind::Refused, message)
        })?;
        let message = || format!("{MAKE_SCHEMA} (schema {schema} has version {version})");
        let is_older = version < schema::VERSION;
        Ok(is_older.then(|| Error::new(ErrorKind::Refused, message())))
    }

    /// Creates what is `missing`. What fails leaves its transaction open, and the session with it is dropped.
    async fn create(&self, session: &Session, missing: &Error) -> Result<()> {
        // The server ends the wait for another client by itself: it does not notice that this one has given up,
        // and has left its next attempt to wait too.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; {} SET LOCAL lock_timeout = {}; {}",
            patient("SET LOCAL"),
            (self.timeouts.connect / 2).as_millis().max(1),
            schema::lock(&self.schema),
        );
        let begun = session.client.batch_execute(&begin).await;
        begun.map_err(|error| self.not_created(session, missing, &error))?;
        // Again, since another may have created it meanwhile.
        let found = self.find(session).await?;
        let is_complete = self.lacks(session, &found).await?.is_none();
        let rest = if is_complete { String::new() } else { schema::script(&self.schema) };
        let created = session.client.batch_execute(&format!("{rest}; COMMIT")).await;
        created.map_err(|error| self.not_created(session, missing, &error))
    }

    /// Warns of functions that this user may not call. Not an error: who only looks needs few of them.
    pub(super) async fn warn_of_missing_rights(&self, session: &Session) -> Result<()> {
        let sql = "SELECT pg_catalog.string_agg(p.proname, ', ' ORDER BY p.proname) FROM pg_catalog.pg_proc p \
                   JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace \
                   WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND p.proname OPERATOR(pg_catalog.=) ANY ($2) \
                   AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')";
        let functions = schema::FOR_PROGRAMS.as_slice();
        let asked = session
            .client
            .query_typed(sql, &[(&self.schema, Type::TEXT), (&functions, Type::TEXT_ARRAY)])
            .await;
        let rows = session.state.observe(asked, &session.host)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let missing: Option<String> = read_setting(row, 0)?;
        if let Some(functions) = missing {
            program::call(|| {
                tracing::warn!(
                    host = %session.host,
                    %functions,
                    "this user may not call all functions for programs: locks that need them are refused, or \
                     are lost at their first renewal; the GRANT statements are in the first lines of what \
                     `fencelock postgres schema` prints"
                );
            });
        }
        Ok(())
    }

    async fn find(&self, session: &Session) -> Result<Found> {
        Found::read(&self.ask_of_schema(session, &format!("SELECT {OF_SCHEMA}")).await?, 0)
    }

    /// The row of a statement with the arguments of [`OF_SCHEMA`].
    pub(super) async fn ask_of_schema(&self, session: &Session, sql: &str) -> Result<Row> {
        let arguments: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.schema, Type::TEXT), (&self.owner, Type::TEXT)];
        let asked = session.client.query_typed(sql, &arguments).await;
        if let Err(error) = &asked
            && error.code() == Some(&SqlState::UNTRANSLATABLE_CHARACTER)
        {
            let message = format!(
                "the schema {} or its owner has a character that the database's encoding lacks: name another one \
                 in the URL (schema=NAME, owner=ROLE)",
                schema::quoted(&self.schema)
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let rows = session.state.observe(asked, &session.host)?;
        rows.into_iter().next().ok_or_else(|| unreachable("no answer about the server"))
    }

    fn not_created(
        &self,
        session: &Session,
        missing: &Error,
        error: &tokio_postgres::Error,
    ) -> Error {
        let missing = missing.message();
        match error.as_db_error() {
            Some(late) if MET_ANOTHER.contains(&late.code().code()) => unreachable(format!(
                "another session creates the schema {}, or has locked a part of it ({})",
                schema::quoted(&self.schema),
                words_of_error(late)
            )),
            // No role can create it: the script refuses the schema.
            Some(refusal) if refusal.code() == &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
                let advice = "name one for the locks alone in the URL, such as schema=fencelock";
                let message = format!("{}; {advice}", words_of_error(refusal));
                Error::new(ErrorKind::Refused, message)
            }
            // Its owner can help.
            Some(refusal) if meaning_of(error).kind == ErrorKind::Refused => {
                let why = words_of_error(refusal);
                let message = format!("{missing}; this user cannot create it: {why}");
                Error::new(ErrorKind::Refused, message)
            }
            _ => session.state.failed(error, &session.host),
        }
    }
}
