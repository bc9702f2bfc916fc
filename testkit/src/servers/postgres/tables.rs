//! What the Postgres store has written, read and changed by SQL of our own, without the library: a backdoor
//! for tests.
//!
//! The library makes the tables when it first connects; before that they are empty. Keys are bytes, the
//! prefix and the name of a lock.

use std::io;
use std::time::Duration;

use super::TestPostgres;

/// The time of the tables: microseconds of the server's clock.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The SQLSTATE of a query for a table that is not there, or in no schema.
const NO_TABLE: &str = "42P01";

/// The SQLSTATE of a step that the server ended because it and another one waited for one another.
const DEADLOCK: &str = "40P01";

/// The tables of one schema.
#[derive(Clone, Copy, Debug)]
pub struct PostgresTables<'a> {
    server: &'a TestPostgres,
    schema: &'a str,
}

impl TestPostgres {
    /// The tables of the Postgres store in this schema, whose name needs no quotes.
    #[must_use]
    pub fn tables<'a>(&'a self, schema: &'a str) -> PostgresTables<'a> {
        PostgresTables { server: self, schema }
    }
}

impl PostgresTables<'_> {
    /// What holders and waiters have left under `prefix`. Ended holds, and waiters of dead processes, are
    /// left to the next step on their lock, and count no more.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn claims(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.rows(&self.query_of_claims(prefix)).await
    }

    /// The cells under `prefix` whose time has not ended.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn cells(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.rows(&self.query_of_cells(prefix)).await
    }

    /// All [`claims`](Self::claims) and [`cells`](Self::cells), in one session of the server.
    pub(crate) async fn leftovers(&self) -> io::Result<Vec<String>> {
        let (claims, cells) = (self.query_of_claims(""), self.query_of_cells(""));
        self.rows(&format!("{claims} UNION ALL {cells}")).await
    }

    fn query_of_claims(&self, prefix: &str) -> String {
        let (schema, is_under) = (self.schema, is_under(prefix));
        format!(
            "SELECT format('a claim on %s, state %s, of %s', encode(key, 'escape'), state, owner)
             FROM {schema}.claims c WHERE {is_under}
               AND NOT EXISTS (SELECT FROM {schema}.locks l WHERE l.key = c.key AND l.owner = c.owner)
               AND (coalesce(until, 0) >= {NOW}
               OR state IN ('w', 'l') AND EXISTS
                 (SELECT FROM {schema}.processes p WHERE p.proc = c.proc AND p.deadline >= {NOW}))
             UNION ALL
             SELECT format('the lock %s, held by %s', encode(key, 'escape'), owner)
             FROM {schema}.locks WHERE {is_under} AND owner IS NOT NULL AND until > {NOW}
             UNION ALL
             SELECT format('the lock %s, with a crowd that is not there', encode(key, 'escape'))
             FROM {schema}.locks l WHERE {is_under} AND (crowd OR grp IS NOT NULL)
               AND NOT EXISTS (SELECT FROM {schema}.claims c WHERE c.key = l.key)"
        )
    }

    fn query_of_cells(&self, prefix: &str) -> String {
        format!(
            "SELECT format('the cell %s', encode(key, 'escape')) FROM {}.cells
             WHERE {} AND (until IS NULL OR until > {NOW})",
            self.schema,
            is_under(prefix)
        )
    }

    /// Whether the lock of this key has a holder.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn is_locked(&self, key: &str) -> io::Result<bool> {
        let schema = self.schema;
        let key = bytes(key);
        let held = format!(
            "SELECT EXISTS (SELECT FROM {schema}.locks
                 WHERE key = {key} AND owner IS NOT NULL AND until > {NOW})
               OR EXISTS (SELECT FROM {schema}.claims
                 WHERE key = {key} AND state IN ('g', 'h') AND until > {NOW})"
        );
        Ok(self.rows(&held).await? == ["t"])
    }

    /// Ends the holds of the lock of this key without a word to their clients, as the end of their leases
    /// does. Waiters keep their places.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn expire(&self, key: &str) -> io::Result<()> {
        let schema = self.schema;
        let key = bytes(key);
        // The row first, as every step does it.
        self.server
            .sql(&format!(
                "SELECT FROM {schema}.locks WHERE key = {key} FOR UPDATE;
             DELETE FROM {schema}.claims WHERE key = {key} AND (state IN ('g', 'h')
               OR owner = (SELECT owner FROM {schema}.locks WHERE key = {key}));
             UPDATE {schema}.locks l SET owner = NULL, until = 0, grp = NULL, sum = 0,
               crowd = EXISTS (SELECT FROM {schema}.claims c WHERE c.key = l.key)
             WHERE key = {key}"
            ))
            .await
            .map(drop)
    }

    /// Deletes all data of the store.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn lose(&self) -> io::Result<()> {
        let schema = self.schema;
        let tables = format!(
            "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables
             WHERE schemaname = '{schema}'"
        );
        let tables = self.server.sql(&tables).await?;
        if tables.is_empty() {
            return Ok(());
        }
        // Steps lock the tables in orders of their own.
        let mut deadlocks = 0;
        loop {
            match self.server.sql(&format!("TRUNCATE {tables}")).await {
                Err(error) if error.to_string().starts_with(DEADLOCK) && deadlocks < 5 => {
                    deadlocks += 1;
                }
                truncated => return truncated.map(drop),
            }
        }
    }

    /// Holds back all steps of all locks for this long, as a migration or another program's lock on the
    /// table does; reading goes on.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub async fn hold_writes_back(&self, during: Duration) -> io::Result<()> {
        let schema = self.schema;
        let tables = self.server.sql(&format!("SELECT to_regclass('{schema}.locks')")).await?;
        if tables.is_empty() {
            tokio::time::sleep(during).await;
            return Ok(());
        }
        // Steps that are under way, and open guarded transactions, end before it begins.
        const BEGINS_WITHIN: Duration = Duration::from_secs(30);
        let statements = format!(
            "BEGIN; LOCK TABLE {schema}.locks IN EXCLUSIVE MODE; SELECT pg_sleep({}); COMMIT",
            during.as_secs_f64()
        );
        self.server.sql_within(&statements, during + BEGINS_WITHIN).await.map(drop)
    }

    /// None where the tables are not made yet.
    async fn rows(&self, query: &str) -> io::Result<Vec<String>> {
        match self.server.sql(query).await {
            Err(error) if error.to_string().starts_with(NO_TABLE) => Ok(Vec::new()),
            rows => Ok(rows?.lines().map(str::to_owned).collect()),
        }
    }
}

/// A condition on `key`.
fn is_under(prefix: &str) -> String {
    format!("substring(key FROM 1 FOR {}) = {}", prefix.len(), bytes(prefix))
}

/// A `bytea`, in which nothing has to be quoted.
fn bytes(text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{hex}'::bytea")
}
