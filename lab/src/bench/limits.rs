//! What a Postgres database does without this library: the round trips of a pair with nothing in them, and the
//! locks of the server's own. These have neither a lease nor a fencing token, and take a connection for each
//! client.

use std::sync::Arc;

use fencelock::{Error, ErrorKind, Result};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use crate::postgres_client::{PostgresClient, connect};

/// What is done in place of acquire and release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Twice `SELECT 1`, all clients on one connection, as this library has it.
    RoundTrips,
    /// `pg_advisory_lock` and `pg_advisory_unlock`.
    AdvisoryLock,
    /// `BEGIN; SELECT … FOR UPDATE`, and `COMMIT`.
    ForUpdate,
}

impl Limit {
    pub(super) const ALL: [Limit; 3] = [Limit::RoundTrips, Limit::AdvisoryLock, Limit::ForUpdate];

    pub(super) fn name(self) -> &'static str {
        match self {
            Limit::RoundTrips => "limit: two SELECT 1",
            Limit::AdvisoryLock => "limit: pg_advisory_lock",
            Limit::ForUpdate => "limit: SELECT FOR UPDATE",
        }
    }

    /// The statement of the acquire, and of the release.
    fn statements(self) -> [&'static str; 2] {
        match self {
            Limit::RoundTrips => ["SELECT 1"; 2],
            Limit::AdvisoryLock => ["SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"],
            Limit::ForUpdate => {
                ["SELECT FROM fencelock_bench_limits WHERE n = $1 FOR UPDATE", "COMMIT"]
            }
        }
    }
}

/// The connections of all clients.
pub(crate) struct Limits {
    limit: Limit,
    connections: Vec<Arc<Connection>>,
}

struct Connection {
    postgres: PostgresClient,
    statements: [Statement; 2],
}

/// One client, with a lock of its own.
pub(super) struct LimitClient {
    limit: Limit,
    connection: Arc<Connection>,
    number: i64,
}

impl Limits {
    pub(super) async fn connect(limit: Limit, url: &str, clients: u32) -> Result<Limits> {
        let several = if limit == Limit::RoundTrips { 1 } else { clients };
        let mut connections = Vec::new();
        for number in 0..several {
            let postgres = connect(url).await?;
            if number == 0 && limit == Limit::ForUpdate {
                let table = format!(
                    "DROP TABLE IF EXISTS fencelock_bench_limits;
                     CREATE TABLE fencelock_bench_limits (n bigint PRIMARY KEY);
                     INSERT INTO fencelock_bench_limits SELECT generate_series(0, {clients});
                     ANALYZE fencelock_bench_limits"
                );
                postgres.client.batch_execute(&table).await.map_err(failed)?;
            }
            let [acquire, release] = limit.statements();
            let acquire = postgres.client.prepare(acquire).await.map_err(failed)?;
            let release = postgres.client.prepare(release).await.map_err(failed)?;
            connections.push(Arc::new(Connection { postgres, statements: [acquire, release] }));
        }
        Ok(Limits { limit, connections })
    }

    pub(super) fn client(&self, number: u32) -> LimitClient {
        let connection = self.connections[number as usize % self.connections.len()].clone();
        LimitClient { limit: self.limit, connection, number: i64::from(number) }
    }

    /// Leaves nothing in the database.
    pub(super) async fn close(&self) -> Result<()> {
        match (self.limit, self.connections.first()) {
            (Limit::ForUpdate, Some(first)) => {
                let drop = "DROP TABLE fencelock_bench_limits";
                first.postgres.client.batch_execute(drop).await.map_err(failed)
            }
            _ => Ok(()),
        }
    }
}

impl LimitClient {
    /// One round trip.
    pub(super) async fn acquire(&self) -> Result<()> {
        let acquired = self.execute(0);
        if self.limit != Limit::ForUpdate {
            return acquired.await;
        }
        let begun =
            async { self.connection.postgres.client.batch_execute("BEGIN").await.map_err(failed) };
        // Both are sent before the first is answered.
        tokio::try_join!(begun, acquired).map(drop)
    }

    /// Another.
    pub(super) async fn release(&self) -> Result<()> {
        self.execute(1).await
    }

    async fn execute(&self, which: usize) -> Result<()> {
        let Connection { postgres, statements } = &*self.connection;
        let number: [&(dyn ToSql + Sync); 1] = [&self.number];
        let statement = &statements[which];
        let arguments = &number[..statement.params().len()];
        postgres.client.query(statement, arguments).await.map(drop).map_err(failed)
    }
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Refused, "the limit of the database could not be measured")
        .caused_by(error)
}
