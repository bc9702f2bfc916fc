//! A master and its replicas under sentinels.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::deployment::Deployment;
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_redis};
use super::redis::{self, ON_A_SERVER, may_fail_over};
use crate::proxy::framing;
use crate::servers::TestSentinel;

pub(super) struct Sentinel {
    servers: TestSentinel,
    lines: Lines,
}

impl Sentinel {
    pub(super) async fn start(wiring: Wiring) -> io::Result<Sentinel> {
        let servers = TestSentinel::start().await.map_err(io::Error::other)?;
        let entrances = servers.sentinels().len();
        let all = servers.sentinels().iter().chain(servers.nodes()).map(|node| node.addr());
        let lines = Lines::to_servers_that_name_each_other(all, entrances, framing::resp, wiring);
        let lines = lines.await?;
        Ok(Sentinel { servers, lines })
    }
}

#[async_trait(?Send)]
impl Deployment for Sentinel {
    fn url(&self) -> String {
        format!("redis+sentinel://{}/{}/0", self.lines.hosts(), self.servers.service())
    }

    fn settings(&self) -> String {
        "a master and two replicas that follow asynchronously, three sentinels, no persistence"
            .to_owned()
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_redis(&self.servers.nodes()[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_redis(self.servers.nodes(), &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_the_master = [Fault::MasterKilled, Fault::MasterFrozen, Fault::MasterReplaced];
        let of_servers = of_the_master.into_iter().chain(ON_A_SERVER).chain([Fault::DataLost]);
        self.lines.faults().chain(of_servers).collect()
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        may_fail_over(fault)
    }

    async fn masters(&self) -> io::Result<Vec<u16>> {
        Ok(vec![self.servers.master().await.map_err(io::Error::other)?.port()])
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        if let Some(fault) = Lines::fault(fault) {
            return self.lines.inflict(fault, during).await;
        }
        let master = self.servers.master().await.map_err(io::Error::other)?;
        match fault {
            Fault::MasterKilled => {
                self.servers.kill_master().await.map_err(io::Error::other)?;
                sleep(during).await;
                master.restart().await.map_err(io::Error::other)?;
            }
            Fault::MasterFrozen => {
                master.freeze().await.map_err(io::Error::other)?;
                self.servers.next_master(master).await.map_err(io::Error::other)?;
                sleep(during).await;
                master.thaw().map_err(io::Error::other)?;
            }
            Fault::MasterReplaced => {
                self.servers.failover().await.map_err(io::Error::other)?;
                sleep(during).await;
            }
            // A failover can come of it: the sentinels' own PUBLISH is a write that may be paused.
            other => redis::on_a_server(master, other, during).await?,
        }
        self.servers.settled().await.map_err(io::Error::other)
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        redis::leftovers(self.servers.master().await.map_err(io::Error::other)?).await
    }
}
