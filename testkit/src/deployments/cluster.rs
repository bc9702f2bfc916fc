//! A cluster of three masters with a replica each. Faults hit the master of one slot, which about a
//! third of the locks are on.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_conformance::workload::lock_name;
use tokio::time::sleep;

use super::deployment::{Deployment, PREFIX};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_redis};
use super::redis::{self, ON_A_SERVER, may_fail_over};
use crate::proxy::framing;
use crate::servers::{ServerError, TestCluster};

pub(super) struct Cluster {
    servers: TestCluster,
    lines: Lines,
}

/// Any slot; that of a lock that the clients use, so that what is done to it is felt.
fn slot() -> u16 {
    TestCluster::slot_of(&format!("{PREFIX}{}", lock_name(0)))
}

impl Cluster {
    pub(super) async fn start(wiring: Wiring) -> io::Result<Cluster> {
        let servers = TestCluster::start().await.map_err(io::Error::other)?;
        let all: Vec<_> = servers.nodes().iter().map(|node| node.addr()).collect();
        let entrances = all.len();
        let lines = Lines::to_servers_that_name_each_other(all, entrances, framing::resp, wiring);
        let lines = lines.await?;
        Ok(Cluster { servers, lines })
    }

    /// To a master that has another one, of which there is one in each third.
    async fn move_slot(&self) -> Result<(), ServerError> {
        let from = self.servers.master_of(slot()).await?;
        for third in [0, 8_000, 16_000] {
            let to = self.servers.master_of(third).await?;
            if to.port() != from.port() {
                return self.servers.migrate_slot(slot(), to).await;
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Deployment for Cluster {
    fn url(&self) -> String {
        format!("redis-cluster://{}", self.lines.hosts())
    }

    fn settings(&self) -> String {
        "three masters with a replica each that follows asynchronously, no persistence".to_owned()
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_redis(&self.servers.nodes()[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_redis(self.servers.nodes(), &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let moves = [Fault::MasterKilled, Fault::MasterReplaced, Fault::SlotMoved, Fault::DataLost];
        let of_servers = moves.into_iter().chain(ON_A_SERVER);
        self.lines.faults().chain(of_servers).collect()
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        may_fail_over(fault)
    }

    async fn masters(&self) -> io::Result<Vec<u16>> {
        let mut ports: Vec<_> = self.servers.masters().await?.iter().map(|it| it.port()).collect();
        ports.sort_unstable();
        Ok(ports)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        if let Some(fault) = Lines::fault(fault) {
            return self.lines.inflict(fault, during).await;
        }
        let master = self.servers.master_of(slot()).await.map_err(io::Error::other)?;
        match fault {
            Fault::MasterKilled => {
                self.servers.kill_master_of(slot()).await.map_err(io::Error::other)?;
                sleep(during).await;
                master.restart().await.map_err(io::Error::other)?;
            }
            Fault::MasterReplaced => {
                self.servers.failover(slot()).await.map_err(io::Error::other)?;
                sleep(during).await;
            }
            Fault::SlotMoved => {
                for _ in 0..2 {
                    self.move_slot().await.map_err(io::Error::other)?;
                    sleep(during / 2).await;
                }
                return Ok(());
            }
            other => redis::on_a_server(master, other, during).await?,
        }
        self.servers.settled().await.map_err(io::Error::other)
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.servers.nodes() {
            all.extend(redis::leftovers(node).await?);
        }
        Ok(all)
    }
}
