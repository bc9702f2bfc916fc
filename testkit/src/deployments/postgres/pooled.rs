//! A PostgreSQL server behind pgbouncer in transaction mode, where no notification arrives and no statement
//! can be prepared.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::super::deployment::Deployment;
use super::super::fault::Fault;
use super::super::lines::{Lines, Wiring};
use super::super::meter::{Meter, version_of_postgres};
use super::super::redis::repeat;
use super::{ON_A_SERVER, SCHEMA, SQL_ANSWER, on_a_server};
use crate::proxy::framing;
use crate::servers::{PgBouncerOptions, PostgresOptions, TestPgBouncer, TestPostgres};

/// The sessions that all clients share.
const SESSIONS: usize = 4;

pub(crate) struct Pooled {
    server: TestPostgres,
    pooler: TestPgBouncer,
    lines: Lines,
}

impl Pooled {
    pub(crate) async fn start(wiring: Wiring) -> io::Result<Pooled> {
        let server = PostgresOptions::new().durable().start().await.map_err(io::Error::other)?;
        let pooler = PgBouncerOptions::new().pool_size(SESSIONS).start(server.addr()).await;
        let pooler = pooler.map_err(io::Error::other)?;
        let lines = Lines::to([pooler.addr().to_string()], framing::postgres, wiring).await?;
        Ok(Pooled { server, pooler, lines })
    }
}

#[async_trait(?Send)]
impl Deployment for Pooled {
    fn url(&self) -> String {
        self.server.url_through(&self.lines.hosts())
    }

    fn settings(&self) -> String {
        format!(
            "one server, fsync on, behind pgbouncer in transaction mode with {SESSIONS} sessions"
        )
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        let pooler = self.pooler.console("SHOW VERSION").await?;
        Ok(vec![version_of_postgres(&self.server).await?, pooler])
    }

    async fn meter(&self) -> io::Result<Meter> {
        let mut meter = Meter::of_postgres([&self.server], &self.lines).await?;
        let of_pooler = super::super::meter::cpu_of(self.pooler.pid())?;
        meter.cpu_s = meter.cpu_s.map(|of_server| of_server + of_pooler);
        Ok(meter)
    }

    fn faults(&self) -> Vec<Fault> {
        self.lines.faults().chain(ON_A_SERVER).collect()
    }

    async fn sql(&self, statements: &str) -> io::Result<Option<String>> {
        self.server.sql_within(statements, SQL_ANSWER).await.map(Some)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        match (fault, Lines::fault(fault)) {
            (_, Some(fault)) => self.lines.inflict(fault, during).await,
            // Of the clients', and of those of the pooler.
            (Fault::ConnectionsKilled, _) => {
                repeat(during, Duration::from_secs(1), async || {
                    self.pooler.restart().await.map_err(io::Error::other)?;
                    sleep(Duration::from_millis(500)).await;
                    self.server.end_sessions().await
                })
                .await
            }
            (Fault::WritesPaused, _) => {
                // It answers when all transactions have ended.
                self.pooler.console("PAUSE").await?;
                sleep(during).await;
                self.pooler.console("RESUME").await.map(drop)
            }
            _ => on_a_server(&self.server, fault, during).await,
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        self.server.tables(SCHEMA).claims("").await
    }
}
