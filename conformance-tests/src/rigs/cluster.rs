//! A cluster of three masters with a replica each. Faults hit the master of one slot, which about a
//! third of the locks are on.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::redis::{self, ON_A_SERVER};
use super::{Fault, Rig};
use crate::servers::{ServerError, TestCluster};
use crate::torture::{PREFIX, lock_name};

pub(super) struct Cluster(TestCluster);

/// Any slot; that of a lock that the clients use, so that what is done to it is felt.
fn slot() -> u16 {
    TestCluster::slot_of(&format!("{PREFIX}{}", lock_name(0)))
}

impl Cluster {
    pub(super) async fn start() -> io::Result<Cluster> {
        Ok(Cluster(TestCluster::start().await.map_err(io::Error::other)?))
    }

    /// To a master that has another one, of which there is one in each third.
    async fn move_slot(&self) -> Result<(), ServerError> {
        let from = self.0.master_of(slot()).await?;
        for third in [0, 8_000, 16_000] {
            let to = self.0.master_of(third).await?;
            if to.port() != from.port() {
                return self.0.migrate_slot(slot(), to).await;
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Rig for Cluster {
    fn url(&self) -> String {
        let nodes = self.0.nodes().iter().map(|server| server.addr().to_string());
        format!("redis-cluster://{}", nodes.collect::<Vec<_>>().join(","))
    }

    fn settings(&self) -> String {
        "three masters with a replica each that follows asynchronously, no persistence".to_owned()
    }

    fn faults(&self) -> Vec<Fault> {
        let moves = [Fault::MasterKilled, Fault::MasterReplaced, Fault::SlotMoved, Fault::DataLost];
        moves.into_iter().chain(ON_A_SERVER).collect()
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        !ON_A_SERVER.contains(&fault) && fault != Fault::SlotMoved
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        let master = self.0.master_of(slot()).await.map_err(io::Error::other)?;
        match fault {
            Fault::MasterKilled => {
                self.0.kill_master_of(slot()).await.map_err(io::Error::other)?;
                sleep(during).await;
                master.restart().await.map_err(io::Error::other)?;
            }
            Fault::MasterReplaced => {
                self.0.failover(slot()).await.map_err(io::Error::other)?;
                sleep(during).await;
            }
            Fault::SlotMoved => {
                for _ in 0..2 {
                    self.move_slot().await.map_err(io::Error::other)?;
                    sleep(during / 2).await;
                }
                return Ok(());
            }
            other => return redis::on_a_server(master, other, during).await,
        }
        self.0.settled().await.map_err(io::Error::other)
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.0.nodes() {
            all.extend(redis::leftovers(node).await?);
        }
        Ok(all)
    }
}
