//! A PostgreSQL server with a standby, which takes over. Clients know both, and use the one that accepts
//! writes. With an asynchronous standby, commits that it has not got yet are lost.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::super::deployment::Deployment;
use super::super::fault::Fault;
use super::super::lines::{Lines, Wiring};
use super::super::meter::{Meter, version_of_postgres};
use super::{ON_A_SERVER, SCHEMA, SQL_ANSWER, on_a_server};
use crate::proxy::{Direction, Proxy, framing};
use crate::servers::{PostgresOptions, TestPostgres};

/// How far the standby is behind when it takes over, as in the failover of Redis.
const BEHIND: Duration = Duration::from_millis(500);

/// Whether a commit waits for the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commits {
    Asynchronous,
    Synchronous,
}

pub(crate) struct Replicated {
    servers: [TestPostgres; 2],
    lines: Lines,
    /// The way of the other's replication to each server.
    replication: [Proxy; 2],
    primary: AtomicUsize,
    commits: Commits,
}

impl Replicated {
    pub(crate) async fn start(commits: Commits, wiring: Wiring) -> io::Result<Replicated> {
        let start =
            async || PostgresOptions::new().durable().start().await.map_err(io::Error::other);
        let servers = [start().await?, start().await?];
        let hosts = servers.iter().map(|server| server.addr().to_string());
        let lines = Lines::to(hosts, framing::postgres, wiring).await?;
        let replication =
            [Proxy::start(servers[0].addr()).await?, Proxy::start(servers[1].addr()).await?];
        wiring.set_up(&replication)?;
        let primary = AtomicUsize::new(0);
        let deployment = Replicated { servers, lines, replication, primary, commits };
        deployment.follow(1).await?;
        Ok(deployment)
    }

    fn primary(&self) -> usize {
        self.primary.load(Ordering::SeqCst)
    }

    /// Makes this server the standby of the other.
    async fn follow(&self, standby: usize) -> io::Result<()> {
        let primary = self.replication[1 - standby].addr();
        self.servers[standby].follow(primary).await.map_err(io::Error::other)?;
        self.protects(1 - standby).await
    }

    /// Has the primary's commits wait for its standby, if that is so here.
    async fn protects(&self, primary: usize) -> io::Result<()> {
        match self.commits {
            Commits::Asynchronous => Ok(()),
            Commits::Synchronous => {
                let waits = self.servers[primary].wait_for_standby_at_commits().await;
                waits.map_err(io::Error::other)
            }
        }
    }

    /// Has the standby take over from a primary that has ended, and the old primary come back as its standby.
    async fn take_over(&self, during: Duration) -> io::Result<()> {
        let (old, new) = (self.primary(), 1 - self.primary());
        self.servers[new].promote().await.map_err(io::Error::other)?;
        self.primary.store(new, Ordering::SeqCst);
        sleep(during).await;
        self.replication[old].heal().await?;
        self.follow(old).await
    }
}

#[async_trait(?Send)]
impl Deployment for Replicated {
    fn url(&self) -> String {
        self.servers[0].url_through(&self.lines.hosts())
    }

    fn settings(&self) -> String {
        match self.commits {
            Commits::Asynchronous => format!(
                "a primary and a standby that follows asynchronously, fsync on; a failover loses \
                 the last {} ms",
                BEHIND.as_millis()
            ),
            Commits::Synchronous => {
                "a primary and a standby for which commits wait, fsync on".to_owned()
            }
        }
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_postgres(&self.servers[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_postgres(&self.servers, &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_servers = [Fault::MasterKilled, Fault::MasterReplaced, Fault::FollowerKilled];
        self.lines.faults().chain(of_servers).chain(ON_A_SERVER).collect()
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        self.commits == Commits::Asynchronous && fault == Fault::MasterKilled
    }

    async fn sql(&self, statements: &str) -> io::Result<Option<String>> {
        self.servers[self.primary()].sql_within(statements, SQL_ANSWER).await.map(Some)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        let primary = self.primary();
        match (fault, Lines::fault(fault)) {
            (_, Some(fault)) => self.lines.inflict(fault, during).await,
            (Fault::MasterKilled, _) => {
                self.replication[primary].black_hole(Direction::ToClient);
                sleep(BEHIND).await;
                self.servers[primary].kill().map_err(io::Error::other)?;
                self.take_over(during).await
            }
            (Fault::MasterReplaced, _) => {
                // The standby has all its writes then.
                self.servers[primary].stop().await.map_err(io::Error::other)?;
                self.take_over(during).await
            }
            (Fault::FollowerKilled, _) => {
                let standby = &self.servers[1 - primary];
                standby.kill().map_err(io::Error::other)?;
                sleep(during).await;
                standby.restart().await.map_err(io::Error::other)?;
                standby.replicates().await.map_err(io::Error::other)?;
                self.protects(primary).await
            }
            _ => on_a_server(&self.servers[primary], fault, during).await,
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        self.servers[self.primary()].tables(SCHEMA).claims("").await
    }
}
