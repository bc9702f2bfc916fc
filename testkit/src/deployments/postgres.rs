//! PostgreSQL: one server, and what all kinds of its deployments have in common.

use std::io;
use std::time::Duration;

use async_trait::async_trait;

use super::deployment::{Deployment, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_postgres};
use super::redis::{freeze, repeat};
use crate::proxy::framing;
use crate::servers::{PostgresOptions, ServerClock, TestPostgres, postgres_program};

mod pooled;
mod replicated;

pub(super) use pooled::Pooled;
pub(super) use replicated::{Commits, Replicated};

/// The schema of stores whose URL names none.
const SCHEMA: &str = "fencelock";

/// Statements of a run may wait for open transactions, and for a standby.
const SQL_ANSWER: Duration = Duration::from_secs(30);

pub(super) struct OneServer {
    server: TestPostgres,
    lines: Lines,
    clocks: Vec<ServerClock>,
}

impl OneServer {
    pub(super) async fn start(wiring: Wiring) -> io::Result<OneServer> {
        let clocks = match wiring {
            Wiring::Direct => Vec::new(),
            _ => wiring.clocks(1, &postgres_program().map_err(io::Error::other)?)?,
        };
        let options = PostgresOptions::new().durable();
        let options = clocks.iter().fold(options, |it, clock| it.server(clock.program()));
        let server = options.start().await.map_err(io::Error::other)?;
        let lines = Lines::to([server.addr().to_string()], framing::postgres, wiring).await?;
        Ok(OneServer { server, lines, clocks })
    }
}

#[async_trait(?Send)]
impl Deployment for OneServer {
    fn url(&self) -> String {
        self.server.url_through(&self.lines.hosts())
    }

    fn settings(&self) -> String {
        "one server, fsync on".to_owned()
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_postgres(&self.server).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_postgres([&self.server], &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_the_server = [Fault::DataLost].into_iter().chain(ON_A_SERVER);
        self.lines.faults().chain(of_the_server).collect()
    }

    fn clocks(&self) -> &[ServerClock] {
        &self.clocks
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        self.may_lose_data(fault) || fault == Fault::ServerClockStepped
    }

    fn may_lose_data(&self, fault: Fault) -> bool {
        fault == Fault::DataLost
    }

    async fn sql(&self, statements: &str) -> io::Result<Option<String>> {
        self.server.sql_within(statements, SQL_ANSWER).await.map(Some)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        match Lines::fault(fault) {
            Some(fault) => self.lines.inflict(fault, during).await,
            None => on_a_server(&self.server, fault, during).await,
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        self.server.tables(SCHEMA).claims("").await
    }
}

/// What any server that keeps its data suffers without losing it.
const ON_A_SERVER: [Fault; 5] = [
    Fault::ServerFrozen,
    Fault::ServerRestarted,
    Fault::BackendKilled,
    Fault::ConnectionsKilled,
    Fault::WritesPaused,
];

async fn on_a_server(server: &TestPostgres, fault: Fault, during: Duration) -> io::Result<()> {
    let second = Duration::from_secs(1);
    match fault {
        Fault::ServerFrozen => freeze(server, during).await,
        Fault::ServerRestarted => {
            repeat(during, second, async || {
                server.kill().map_err(io::Error::other)?;
                server.restart().await.map_err(io::Error::other)
            })
            .await
        }
        Fault::BackendKilled => {
            repeat(during, second, async || server.kill_backend().await.map_err(io::Error::other))
                .await
        }
        Fault::ConnectionsKilled => {
            repeat(during, Duration::from_millis(200), async || server.end_sessions().await).await
        }
        Fault::WritesPaused => server.tables(SCHEMA).hold_writes_back(during).await,
        Fault::DataLost => {
            repeat(during, second, async || server.tables(SCHEMA).lose().await).await
        }
        other => Err(unknown(other)),
    }
}
