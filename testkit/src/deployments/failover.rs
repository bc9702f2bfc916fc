//! Two Redis servers behind one address, one the replica of the other: a failover as in many
//! services and scripts. Writes that were not replicated yet are lost.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::deployment::{Deployment, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_redis};
use crate::proxy::{Direction, Proxy, framing};
use crate::servers::{RedisOptions, TestRedis};

/// How far the replica is behind when it takes over. Replication is asynchronous, so any time is
/// possible; this is what a burst of writes, or a slow line, makes of it.
const BEHIND: Duration = Duration::from_millis(500);

pub(super) struct Failover {
    servers: [TestRedis; 2],
    /// Clients' way to the master. It moves, where it is proxied.
    address: Lines,
    /// The way of the other's replication to each server.
    replication: [Proxy; 2],
    master: AtomicUsize,
}

impl Failover {
    pub(super) async fn start(wiring: Wiring) -> io::Result<Failover> {
        // A replica that is back gets the data at once.
        let options = RedisOptions::new().config("repl-diskless-sync-delay 0");
        let start = async || options.clone().start().await.map_err(io::Error::other);
        let servers = [start().await?, start().await?];
        let to_master = [servers[0].addr().to_string()];
        let address = Lines::to(to_master, framing::resp, wiring).await?;
        let replication =
            [Proxy::start(servers[0].addr()).await?, Proxy::start(servers[1].addr()).await?];
        wiring.set_up(&replication)?;
        let deployment = Failover { servers, address, replication, master: AtomicUsize::new(0) };
        deployment.follow(1).await?;
        Ok(deployment)
    }

    /// Has this server follow the other one, and waits until it has its data.
    async fn follow(&self, replica: usize) -> io::Result<()> {
        let master = self.replication[1 - replica].addr();
        self.servers[replica].follow(master).await.map_err(io::Error::other)
    }

    async fn fail_over(&self, during: Duration) -> io::Result<()> {
        let old = self.master.load(Ordering::SeqCst);
        let new = 1 - old;
        self.replication[old].black_hole(Direction::ToClient);
        sleep(BEHIND).await;
        self.servers[old].kill().map_err(io::Error::other)?;
        self.servers[new].command(&["REPLICAOF", "NO", "ONE"]).await?;
        self.master.store(new, Ordering::SeqCst);
        self.address.lead_to(self.servers[new].addr()).await;
        sleep(during).await;
        self.replication[old].heal().await?;
        self.servers[old].restart().await.map_err(io::Error::other)?;
        self.follow(old).await
    }
}

#[async_trait(?Send)]
impl Deployment for Failover {
    fn url(&self) -> String {
        format!("redis://{}/0", self.address.hosts())
    }

    fn settings(&self) -> String {
        format!(
            "a master and a replica that follows asynchronously, behind one address, no \
             persistence; a failover loses the last {} ms",
            BEHIND.as_millis()
        )
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_redis(&self.servers[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_redis(&self.servers, &self.address).await
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.address.faults().collect();
        // Only an address with a proxy can move.
        faults.extend((!faults.is_empty()).then_some(Fault::MasterKilled));
        faults
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        fault == Fault::MasterKilled
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        match fault {
            Fault::MasterKilled => self.fail_over(during).await,
            fault => match Lines::fault(fault) {
                Some(fault) => self.address.inflict(fault, during).await,
                None => Err(unknown(fault)),
            },
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        super::redis::leftovers(&self.servers[self.master.load(Ordering::SeqCst)]).await
    }
}
