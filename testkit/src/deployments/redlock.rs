//! A quorum of independent Redis servers, each behind a line of its own.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::deployment::{Deployment, Library, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_redis};
use super::redis;
use crate::proxy::{NetworkFault, framing};
use crate::servers::{RedisOptions, ServerClock, TestRedis, redis_program};

/// How long a node that lost its data takes no part. Longer than the longest TTL of the clients.
const RESTART_DELAY: Duration = Duration::from_secs(5);

pub(super) struct Quorum {
    nodes: Vec<TestRedis>,
    lines: Lines,
    /// Those of a minority.
    clocks: Vec<ServerClock>,
}

impl Quorum {
    pub(super) async fn start(
        nodes: usize,
        library: Library,
        wiring: Wiring,
    ) -> io::Result<Quorum> {
        let clocks = wiring.clocks(nodes / 2, &redis_program())?;
        let options = (0..nodes).map(|node| match clocks.get(node) {
            Some(clock) => RedisOptions::new().program(clock.program()),
            None => RedisOptions::new(),
        });
        let nodes = try_join_all(options.map(RedisOptions::start));
        let nodes = nodes.await.map_err(io::Error::other)?;
        let lines = nodes.iter().map(|node| node.addr().to_string());
        let lines = Lines::to(lines, framing::resp, wiring).await?;
        let quorum = Quorum { nodes, lines, clocks };
        (library.declare_new)(&quorum.url()).await.map_err(io::Error::other)?;
        Ok(quorum)
    }

    /// The most that may fail.
    fn minority(&self) -> &[TestRedis] {
        &self.nodes[..self.nodes.len() / 2]
    }
}

#[async_trait(?Send)]
impl Deployment for Quorum {
    fn url(&self) -> String {
        let delay = RESTART_DELAY.as_secs();
        let hosts = self.lines.hosts();
        format!(
            "redlock://{hosts}/0?restart_delay={delay}s&clock_tolerance=1s&node_timeout=500ms&ttl=2s"
        )
    }

    fn settings(&self) -> String {
        let (nodes, delay) = (self.nodes.len(), RESTART_DELAY.as_secs());
        format!("{nodes} servers, no persistence, restart_delay={delay}s, clock_tolerance=1s")
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_redis(&self.nodes[0]).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_redis(&self.nodes, &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_nodes = [Fault::MinorityFrozen, Fault::MinorityRestarted, Fault::MajorityCutOff];
        self.lines.faults().chain(of_nodes).collect()
    }

    fn clocks(&self) -> &[ServerClock] {
        &self.clocks
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        fault == Fault::ServerClockStepped
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        match fault {
            Fault::MinorityFrozen => {
                for node in self.minority() {
                    node.freeze().await.map_err(io::Error::other)?;
                }
                sleep(during).await;
                self.minority().iter().try_for_each(|node| node.thaw()).map_err(io::Error::other)
            }
            // One minority after the other, with the time that each needs until it counts again.
            Fault::MinorityRestarted => {
                let end = Instant::now() + during;
                for some in self.nodes.chunks(self.minority().len()).cycle() {
                    for node in some {
                        node.kill().map_err(io::Error::other)?;
                        node.restart().await.map_err(io::Error::other)?;
                    }
                    sleep(RESTART_DELAY + Duration::from_secs(1)).await;
                    if Instant::now() >= end {
                        break;
                    }
                }
                Ok(())
            }
            Fault::MajorityCutOff => {
                let majority = self.nodes.len() / 2 + 1;
                self.lines.inflict_on(majority, NetworkFault::CutOff, during).await
            }
            fault => match Lines::fault(fault) {
                Some(fault) => self.lines.inflict(fault, during).await,
                None => Err(unknown(fault)),
            },
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.extend(redis::leftovers(node).await?);
        }
        Ok(all)
    }
}
