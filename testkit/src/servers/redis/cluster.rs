//! A cluster of three masters, each with a replica.
//!
//! It is put together by the commands that an operator's tool would send, and is asked node by
//! node, as each has a view of its own: what a method waits for is that all of them agree.

use std::io;
use std::time::Duration;

use super::{RedisOptions, SERVER, TestRedis, hosts};
use crate::port::Port;
use crate::servers::eventually::{PATIENCE, eventually, not_yet};
use crate::servers::{ServerError, failed};

use self::slot::SLOTS;
use self::view::View;

pub(in crate::servers) mod migration;
mod slot;
mod view;

const MASTERS: usize = 3;
/// How long a busy machine may stay silent without being taken for dead.
const NODE_TIMEOUT_MS: &str = "1500";

impl RedisOptions {
    /// Starts a [`TestCluster`] whose nodes are started like this.
    ///
    /// # Errors
    /// When Redis is not installed, or does not get ready.
    pub async fn cluster(self) -> Result<TestCluster, ServerError> {
        let node = self.cluster_node()?;
        let mut cluster = TestCluster { nodes: Vec::new() };
        for _ in 0..2 * MASTERS {
            cluster.nodes.push(node.clone().start().await?);
        }
        let started = async {
            cluster.join().await.map_err(failed(SERVER, "joining"))?;
            cluster.replicate().await?;
            cluster.settled().await
        }
        .await;
        if started.is_err() {
            cluster.keep();
        }
        started.map(|()| cluster)
    }

    /// Starts a cluster of one node, which knows no other and does not know its own address.
    ///
    /// # Errors
    /// When Redis is not installed, or does not get ready.
    pub async fn lone_cluster(mut self) -> Result<TestRedis, ServerError> {
        self.in_cluster = true;
        let node = self.start().await?;
        let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
        let all = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
        let added = node.command(&all.collect::<Vec<_>>()).await;
        added.map_err(failed(SERVER, "giving the slots to"))?;
        eventually(SERVER, "a cluster of one node", PATIENCE, || serves(&node)).await?;
        Ok(node)
    }

    fn cluster_node(self) -> Result<Self, ServerError> {
        let mut node = self.replicating()?;
        node.in_cluster = true;
        let ours = [
            // A node hears of its own address from others only.
            ["--cluster-announce-ip", "127.0.0.1"],
            ["--cluster-node-timeout", NODE_TIMEOUT_MS],
            // A replica takes over however long it was out of touch, and stays with its master.
            ["--cluster-replica-validity-factor", "0"],
            ["--cluster-allow-replica-migration", "no"],
        ];
        node.args.splice(..0, ours.as_flattened().iter().map(Into::into));
        Ok(node)
    }
}

/// A Redis Cluster. Dropping it kills all servers and deletes their data.
#[derive(Debug)]
pub struct TestCluster {
    nodes: Vec<TestRedis>,
}

impl TestCluster {
    /// Starts one with the defaults of [`RedisOptions`], and waits until it is
    /// [settled](Self::settled).
    ///
    /// # Errors
    /// When Redis is not installed, or does not get ready.
    pub async fn start() -> Result<Self, ServerError> {
        RedisOptions::new().cluster().await
    }

    /// The six nodes: at the start the masters, in the order of their slots, then the replica of
    /// each in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[TestRedis] {
        &self.nodes
    }

    /// The URL for clients, without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", hosts(&self.nodes))
    }

    /// Makes the nodes take no other for dead: for faults of a master that stays.
    ///
    /// # Errors
    /// When one of them does not answer.
    pub async fn never_fail_over(&self) -> Result<(), ServerError> {
        for node in &self.nodes {
            let hour = ["CONFIG", "SET", "cluster-node-timeout", "3600000"];
            node.command(&hour).await.map_err(failed(SERVER, "configuring"))?;
        }
        Ok(())
    }

    /// The slot of a key.
    #[must_use]
    pub fn slot_of(key: &str) -> u16 {
        slot::slot_of(key.as_bytes())
    }

    /// The slot's master by the newest claim that any node knows of, nodes that are down or frozen
    /// left out.
    ///
    /// # Errors
    /// When no node has the slot, or a node does not answer.
    pub async fn master_of(&self, slot: u16) -> Result<&TestRedis, ServerError> {
        let owner = async {
            let views = self.views().await?;
            let claims = views.iter().filter_map(|view| view.owner(slot));
            let newest = claims.max_by_key(|member| member.epoch);
            self.at(newest.ok_or_else(|| not_yet("no node serves the slot"))?.port)
        };
        owner.await.map_err(failed(SERVER, "asking for a master of"))
    }

    /// The replica of the slot's master, unless it is down or frozen.
    ///
    /// # Errors
    /// When there is none, or a node does not answer.
    pub async fn replica_of(&self, slot: u16) -> Result<&TestRedis, ServerError> {
        let master = self.master_of(slot).await?;
        let replica = async {
            let pairs = self.pairs().await?;
            let pair = pairs.into_iter().find(|(leader, _)| leader.port() == master.port());
            Ok(pair.ok_or_else(|| not_yet("the slot's master has none"))?.1)
        };
        replica.await.map_err(failed(SERVER, "asking for a replica of"))
    }

    /// Has the replica of the slot's master take over, with the master alive, and waits as
    /// [`TestCluster::next_master_of`] does.
    ///
    /// # Errors
    /// When it does not take over.
    pub async fn failover(&self, slot: u16) -> Result<&TestRedis, ServerError> {
        // Redis gives it up by itself after 5 s.
        const ONE_TRY: Duration = Duration::from_secs(7);
        let before = self.master_of(slot).await?;
        let replica = self.replica_of(slot).await?;
        eventually(SERVER, "a failover", PATIENCE, || async {
            // A refusal may mean that an earlier try succeeded late.
            let asked = replica.command(&["CLUSTER", "FAILOVER"]).await;
            let within = if asked.is_ok() { ONE_TRY } else { Duration::ZERO };
            match (self.taken_over(slot, before, within).await, asked) {
                (Ok(master), _) => Ok(master),
                (Err(_), Err(refusal)) => Err(refusal),
                (Err(error), Ok(_)) => Err(not_yet(error.to_string())),
            }
        })
        .await
    }

    /// Kills the slot's master and waits as [`TestCluster::next_master_of`] does. Writes that the
    /// replica has not got yet are lost: [`TestCluster::replicas_caught_up`].
    ///
    /// # Errors
    /// When there is no next one.
    pub async fn kill_master_of(&self, slot: u16) -> Result<&TestRedis, ServerError> {
        let before = self.master_of(slot).await?;
        before.kill()?;
        self.next_master_of(slot, before).await
    }

    /// Waits until all nodes that are neither down nor frozen name the same master for the slot,
    /// which is another one than this, and say that the cluster serves.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn next_master_of(
        &self,
        slot: u16,
        before: &TestRedis,
    ) -> Result<&TestRedis, ServerError> {
        self.taken_over(slot, before, PATIENCE).await
    }

    /// Waits until the replicas that are neither down nor frozen have what was written so far. WAIT
    /// does that for the writes of its own connection only.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn replicas_caught_up(&self) -> Result<(), ServerError> {
        let pairs = self.pairs().await.map_err(failed(SERVER, "asking for the replicas of"))?;
        for (master, replica) in pairs {
            master.has_told(&[replica]).await?;
        }
        Ok(())
    }

    /// Waits until all six nodes run and agree which serves what, and each replica is in step
    /// with its master: what a start ends with, and what a test may want after a restart.
    ///
    /// # Errors
    /// When that does not happen, as without a node that was killed or frozen.
    pub async fn settled(&self) -> Result<(), ServerError> {
        eventually(SERVER, "a cluster of one mind", PATIENCE, || async {
            let first = View::of(&self.nodes[0]).await?;
            for node in &self.nodes {
                if !View::of(node).await?.is_whole_as(&first, self.nodes.len()) {
                    return Err(not_yet(format!("{} does not see what others see", node.addr())));
                }
                serves(node).await?;
                if let Some(master) = first.master_of(node.port())? {
                    node.follows(master.port).await?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Keeps the directories after the end and prints their paths, as a panic of the test does.
    pub fn keep(&self) {
        self.nodes.iter().for_each(|node| node.keep());
    }

    /// Gives the slots to the masters, and introduces all nodes to each other.
    async fn join(&self) -> io::Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            // Without this they would quarrel about the first epoch.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
            if index < MASTERS {
                let [first, end] = [index, index + 1].map(|n| usize::from(SLOTS) * n / MASTERS);
                let slots: Vec<String> = (first..end).map(|slot| slot.to_string()).collect();
                // One by one: Redis 6.2 knows no ADDSLOTSRANGE.
                let own =
                    ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
                node.command(&own.collect::<Vec<_>>()).await?;
            }
        }
        // Each with each: waiting for gossip takes longer.
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[index + 1..] {
                let bus = other.bus.as_ref().map_or(0, Port::number).to_string();
                let port = other.port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
            }
        }
        Ok(())
    }

    async fn replicate(&self) -> Result<(), ServerError> {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (master, replica) in masters.iter().zip(replicas) {
            // It is refused until the two know each other.
            eventually(SERVER, "a replica's master", PATIENCE, || async {
                let id = self.id(master).await?;
                replica.command(&["CLUSTER", "REPLICATE", &id]).await
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until all live nodes name this node for the slot.
    async fn agreed_on(&self, slot: u16, master: &TestRedis) -> Result<(), ServerError> {
        eventually(SERVER, "agreement on a slot", PATIENCE, || async {
            if self.agreed(slot).await?.port() == master.port() {
                return Ok(());
            }
            Err(not_yet("another node has it"))
        })
        .await
    }

    async fn taken_over(
        &self,
        slot: u16,
        before: &TestRedis,
        within: Duration,
    ) -> Result<&TestRedis, ServerError> {
        eventually(SERVER, "a new master of the slot", within, || async {
            let master = self.agreed(slot).await?;
            if master.port() == before.port() {
                return Err(not_yet("the old one still has it"));
            }
            for node in self.live() {
                serves(node).await?;
            }
            Ok(master)
        })
        .await
    }

    /// The slot's master if all live nodes agree.
    async fn agreed(&self, slot: u16) -> io::Result<&TestRedis> {
        let views = self.views().await?;
        let mut owners = views.iter().map(|view| view.owner(slot).map(|owner| owner.port));
        match owners.next().flatten() {
            Some(port) if owners.all(|owner| owner == Some(port)) => self.at(port),
            _ => Err(not_yet("the nodes disagree about the slot")),
        }
    }

    /// The masters, as the first live node sees them.
    pub(crate) async fn masters(&self) -> io::Result<Vec<&TestRedis>> {
        match self.live().first() {
            Some(node) => View::of(node).await?.masters().map(|m| self.at(m.port)).collect(),
            None => Err(not_yet("no node is alive")),
        }
    }

    /// Each live replica, after its master.
    async fn pairs(&self) -> io::Result<Vec<(&TestRedis, &TestRedis)>> {
        let mut pairs = Vec::new();
        for replica in self.live() {
            if let Some(master) = View::of(replica).await?.master_of(replica.port())? {
                pairs.push((self.at(master.port)?, replica));
            }
        }
        Ok(pairs)
    }

    async fn id(&self, node: &TestRedis) -> io::Result<String> {
        node.command(&["CLUSTER", "MYID"]).await
    }

    async fn views(&self) -> io::Result<Vec<View>> {
        let mut views = Vec::new();
        for node in self.live() {
            views.push(View::of(node).await?);
        }
        Ok(views)
    }

    fn live(&self) -> Vec<&TestRedis> {
        self.nodes.iter().filter(|node| node.is_live()).collect()
    }

    fn at(&self, port: u16) -> io::Result<&TestRedis> {
        let found = self.nodes.iter().find(|node| node.port() == port);
        found.ok_or_else(|| not_yet(format!("a stranger at port {port}")))
    }
}

async fn serves(node: &TestRedis) -> io::Result<()> {
    let info = node.command(&["CLUSTER", "INFO"]).await?;
    if info.lines().any(|line| line.trim_end() == "cluster_state:ok") {
        return Ok(());
    }
    Err(not_yet(format!("{} does not serve", node.addr())))
}
