//! ZooKeeper, one server or an ensemble. Its clients go through proxies, and so do its servers
//! among themselves.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::deployment::{Deployment, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_zookeeper};
use super::redis::freeze;
use crate::proxy::{NetworkFault, framing};
use crate::servers::{ServerClock, TestZooKeeper, ZooKeeperOptions, ZooKeeperServer};

pub(super) struct Ensemble {
    servers: TestZooKeeper,
    lines: Lines,
    clocks: Vec<ServerClock>,
}

impl Ensemble {
    pub(super) async fn start(servers: usize, wiring: Wiring) -> io::Result<Ensemble> {
        let options = match (servers, wiring) {
            (1, _) | (_, Wiring::Direct) => ZooKeeperOptions::new(),
            _ => ZooKeeperOptions::new().peers_through_proxies(),
        };
        let clocks = wiring.clocks(servers, "java".as_ref())?;
        // Its ticks are short: without it no client would get the session timeout that is the default.
        let options = options.config("maxSessionTimeout=40000");
        let options = options.java_of_each(clocks.iter().map(ServerClock::program));
        let servers = options.ensemble(servers).await.map_err(io::Error::other)?;
        // Any two servers are as far apart as a server and a client.
        let places = 0..servers.servers().len();
        wiring.set_up(places.flat_map(|server| servers.peer_links_of(server)))?;
        let lines = servers.servers().iter().map(ZooKeeperServer::connect_string);
        let lines = Lines::to(lines, framing::zookeeper, wiring).await?;
        Ok(Ensemble { servers, lines, clocks })
    }

    fn all(&self) -> &[ZooKeeperServer] {
        self.servers.servers()
    }

    async fn leader(&self) -> io::Result<usize> {
        let leader = self.servers.leader().await.ok_or_else(|| io::Error::other("no leader"))?;
        let at = self.all().iter().position(|server| server.port() == leader.port());
        at.ok_or_else(|| io::Error::other("the leader is none of the servers"))
    }

    async fn restart(&self, servers: &[usize], during: Duration) -> io::Result<()> {
        for &server in servers {
            self.all()[server].kill().map_err(io::Error::other)?;
        }
        sleep(during).await;
        for &server in servers {
            self.all()[server].restart().await.map_err(io::Error::other)?;
        }
        self.has_leader().await
    }

    async fn has_leader(&self) -> io::Result<()> {
        self.servers.elected().await.map(drop).map_err(io::Error::other)
    }
}

#[async_trait(?Send)]
impl Deployment for Ensemble {
    fn url(&self) -> String {
        format!("zk://{}/torture?session=2s", self.lines.hosts())
    }

    fn settings(&self) -> String {
        match self.all().len() {
            1 => "one server, session=2s".to_owned(),
            servers => format!("an ensemble of {servers}, session=2s"),
        }
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_zookeeper(&self.all()[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_zookeeper(self.all(), &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_servers: &[Fault] = match self.all().len() {
            1 => &[Fault::ServerFrozen, Fault::ServerRestarted],
            _ => &[
                Fault::LeaderKilled,
                Fault::FollowerKilled,
                Fault::LeaderFrozen,
                Fault::LeaderIsolated,
                Fault::QuorumLost,
            ],
        };
        self.lines.faults().chain(of_servers.iter().copied()).collect()
    }

    fn clocks(&self) -> &[ServerClock] {
        &self.clocks
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        if let Some(fault) = Lines::fault(fault) {
            return self.lines.inflict(fault, during).await;
        }
        let leader = self.leader().await?;
        let others: Vec<usize> = (0..self.all().len()).filter(|at| *at != leader).collect();
        match fault {
            Fault::ServerRestarted | Fault::LeaderKilled => self.restart(&[leader], during).await,
            Fault::FollowerKilled => self.restart(&others[..1], during).await,
            Fault::QuorumLost => self.restart(&others, during).await,
            Fault::ServerFrozen | Fault::LeaderFrozen => {
                freeze(&self.all()[leader], during).await?;
                self.has_leader().await
            }
            Fault::LeaderIsolated => {
                for wire in self.servers.peer_links_of(leader) {
                    wire.apply(NetworkFault::CutOff).await?;
                }
                sleep(during).await;
                for wire in self.servers.peer_links_of(leader) {
                    wire.heal().await?;
                }
                self.has_leader().await
            }
            other => Err(unknown(other)),
        }
    }

    /// Sessions' nodes and watches, as the servers count them. A closed client has neither.
    async fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for server in self.all() {
            let counts = server.four_letter("mntr").await?;
            for line in counts.lines() {
                let counted = line.split_once('\t').is_some_and(|(name, count)| {
                    ["zk_ephemerals_count", "zk_watch_count"].contains(&name) && count != "0"
                });
                if counted {
                    all.push(format!("{}: {}", server.connect_string(), line.replace('\t', " ")));
                }
            }
        }
        Ok(all)
    }
}
