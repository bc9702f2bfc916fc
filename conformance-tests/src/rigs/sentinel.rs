//! A master and its replicas under sentinels. Clients reach each server at its own address, so that
//! nothing can be done to their lines.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::redis::{self, ON_A_SERVER};
use super::{Fault, Rig};
use crate::servers::TestSentinel;

pub(super) struct Sentinel(TestSentinel);

impl Sentinel {
    pub(super) async fn start() -> io::Result<Sentinel> {
        Ok(Sentinel(TestSentinel::start().await.map_err(io::Error::other)?))
    }
}

#[async_trait(?Send)]
impl Rig for Sentinel {
    fn url(&self) -> String {
        let sentinels = self.0.sentinels().iter().map(|server| server.addr().to_string());
        let sentinels = sentinels.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{sentinels}/{}/0", self.0.service())
    }

    fn settings(&self) -> String {
        "a master and two replicas that follow asynchronously, three sentinels, no persistence"
            .to_owned()
    }

    fn faults(&self) -> Vec<Fault> {
        let of_the_master = [Fault::MasterKilled, Fault::MasterFrozen, Fault::MasterReplaced];
        of_the_master.into_iter().chain(ON_A_SERVER).chain([Fault::DataLost]).collect()
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        !ON_A_SERVER.contains(&fault)
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        let master = self.0.master().await.map_err(io::Error::other)?;
        match fault {
            Fault::MasterKilled => {
                self.0.kill_master().await.map_err(io::Error::other)?;
                sleep(during).await;
                master.restart().await.map_err(io::Error::other)?;
            }
            Fault::MasterFrozen => {
                master.freeze().await.map_err(io::Error::other)?;
                self.0.next_master(master).await.map_err(io::Error::other)?;
                sleep(during).await;
                master.thaw().map_err(io::Error::other)?;
            }
            Fault::MasterReplaced => {
                self.0.failover().await.map_err(io::Error::other)?;
                sleep(during).await;
            }
            other => return redis::on_a_server(master, other, during).await,
        }
        self.0.settled().await.map_err(io::Error::other)
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        redis::leftovers(self.0.master().await.map_err(io::Error::other)?).await
    }
}
