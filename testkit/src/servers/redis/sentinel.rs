//! A master with two replicas, and three sentinels that watch over them.
//!
//! All six are processes of their own, each with a configuration file that failovers rewrite, so
//! that a node that comes back finds its new place as it would in production. The sentinels look
//! more often than usual, since a test waits for what they find.

use std::io;

use super::{RedisOptions, SERVER, TestRedis, hosts};
use crate::servers::eventually::{PATIENCE, eventually, not_yet};
use crate::servers::{ServerError, failed};

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
const SERVICE: &str = "fencelock";
/// How long a busy machine may stay silent without being taken for dead.
const DOWN_AFTER_MS: u32 = 1000;
const FAILOVER_TIMEOUT_MS: u32 = 3000;
/// Sentinel's own periods, which only this command changes. TILT is its distrust of a clock that
/// jumped, as after it was frozen.
const QUICK: &[&str] =
    &["SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "300", "TILT-PERIOD", "1000"];

impl RedisOptions {
    /// Starts a [`TestSentinel`] whose data nodes are started like this.
    ///
    /// # Errors
    /// When Redis is not installed, or does not get ready.
    pub async fn sentinel(self) -> Result<TestSentinel, ServerError> {
        let data = self.replicating()?;
        let master = data.clone().start().await?;
        let port = master.port();
        let mut topology = TestSentinel { sentinels: Vec::new(), nodes: vec![master] };
        for _ in 0..REPLICAS {
            // In the file, where a failover changes it, and not in the command line.
            let replica = data.clone().config(&format!("replicaof 127.0.0.1 {port}"));
            topology.nodes.push(replica.start().await?);
        }
        let started = async {
            // Sentinels find replicas through their master, and now at their first look.
            eventually(SERVER, "replication", PATIENCE, || topology.replicated(port)).await?;
            for _ in 0..SENTINELS {
                topology.sentinels.push(data.sentinel_of(port).start().await?);
            }
            topology.settled().await
        }
        .await;
        if started.is_err() {
            topology.keep();
        }
        started.map(|()| topology)
    }

    fn sentinel_of(&self, port: u16) -> Self {
        let mut options = Self::new()
            .program(&self.program)
            .arg("--sentinel")
            .config(&format!("sentinel monitor {SERVICE} 127.0.0.1 {port} {QUORUM}"))
            .config(&format!("sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"))
            .config(&format!("sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}"))
            .config(&format!("sentinel parallel-syncs {SERVICE} 1"));
        options.after_start = QUICK;
        options.tls.clone_from(&self.tls);
        if let Some(password) = &self.password {
            options = options.config(&format!("sentinel auth-pass {SERVICE} {}", quote(password)));
        }
        if let Some(password) = &self.sentinel_password {
            // Among themselves they use the same.
            options = options
                .config(&format!("sentinel sentinel-pass {}", quote(password)))
                .password(password);
        }
        options
    }
}

/// Redis under Sentinel. Dropping it kills all servers and deletes their data.
///
/// A master that is killed and [restarted](TestRedis::restart) before the sentinels miss it, which
/// takes a second, is still the master; without [`RedisOptions::append_only`] it is an empty one,
/// and its replicas follow it in that too.
#[derive(Debug)]
pub struct TestSentinel {
    sentinels: Vec<TestRedis>,
    nodes: Vec<TestRedis>,
}

impl TestSentinel {
    /// Starts one with the defaults of [`RedisOptions`], and waits until it is
    /// [settled](Self::settled).
    ///
    /// # Errors
    /// When Redis is not installed, or does not get ready.
    pub async fn start() -> Result<Self, ServerError> {
        RedisOptions::new().sentinel().await
    }

    /// The name under which the sentinels know the master.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// The three sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[TestRedis] {
        &self.sentinels
    }

    /// The three data nodes: at the start the master, then its replicas.
    #[must_use]
    pub fn nodes(&self) -> &[TestRedis] {
        &self.nodes
    }

    /// The URL for clients, without a password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{SERVICE}/0", hosts(&self.sentinels))
    }

    /// Makes the sentinels take no server for dead: for faults of a master that stays.
    ///
    /// # Errors
    /// When one of them does not answer.
    pub async fn never_fail_over(&self) -> Result<(), ServerError> {
        for sentinel in &self.sentinels {
            let hour = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds", "3600000"];
            sentinel.command(&hour).await.map_err(failed(SERVER, "configuring"))?;
        }
        Ok(())
    }

    /// The master, as the first sentinel that is neither down nor frozen has it.
    ///
    /// # Errors
    /// When there is no such sentinel, or it does not answer.
    pub async fn master(&self) -> Result<&TestRedis, ServerError> {
        let found = async { self.master_at(self.live_sentinel()?).await };
        found.await.map_err(failed(SERVER, "asking for the master of"))
    }

    /// Has the sentinels fail over to a replica, with the master alive, and waits for the new
    /// master as [`TestSentinel::next_master`] does.
    ///
    /// # Errors
    /// When no sentinel is alive, or none of the replicas is fit to take over.
    pub async fn failover(&self) -> Result<&TestRedis, ServerError> {
        let failed = failed(SERVER, "failing over");
        let before = self.master().await?;
        let sentinel = self.live_sentinel().map_err(failed)?;
        eventually(SERVER, "a failover", PATIENCE, || async {
            // One that is given up is not tried again, but by us.
            let state = about(sentinel, "MASTER").await?;
            if value(&state, "port") != before.port().to_string() {
                return Ok(());
            }
            if value(&state, "flags").contains("failover_in_progress") {
                return Err(not_yet("it is in progress"));
            }
            about(sentinel, "FAILOVER").await?;
            Err(not_yet("it is asked for"))
        })
        .await?;
        self.next_master(before).await
    }

    /// Kills the master and waits for the next one as [`TestSentinel::next_master`] does. Writes
    /// that no replica has yet are lost: [`TestSentinel::replicas_caught_up`].
    ///
    /// # Errors
    /// When there is no next one.
    pub async fn kill_master(&self) -> Result<&TestRedis, ServerError> {
        let before = self.master().await?;
        before.kill()?;
        self.next_master(before).await
    }

    /// Waits until all sentinels that are neither down nor frozen name the same master, which is
    /// another one than this and takes writes.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn next_master(&self, before: &TestRedis) -> Result<&TestRedis, ServerError> {
        eventually(SERVER, "a new master", PATIENCE, || async {
            let master = self.master_at(self.live_sentinel()?).await?;
            if master.port() == before.port() {
                return Err(not_yet("the old one is still named"));
            }
            for sentinel in &self.sentinels {
                if sentinel.is_live() && self.master_at(sentinel).await?.port() != master.port() {
                    return Err(not_yet("the sentinels disagree"));
                }
            }
            // A replica refuses even a write that changes nothing.
            master.command(&["DEL", "fencelock-conformance:no-such-key"]).await?;
            Ok(master)
        })
        .await
    }

    /// Waits until the replicas that are neither down nor frozen have what was written so far. WAIT
    /// does that for the writes of its own connection only.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn replicas_caught_up(&self) -> Result<(), ServerError> {
        let master = self.master().await?;
        let replicas = self.nodes.iter().filter(|node| node.port() != master.port());
        master.has_told(&replicas.filter(|node| node.is_live()).collect::<Vec<_>>()).await
    }

    /// Waits until all six servers run and know each other, and both replicas are in step with the
    /// master: what a start ends with, and what a test may want after a restart.
    ///
    /// # Errors
    /// When that does not happen, as without a server that was killed or frozen.
    pub async fn settled(&self) -> Result<(), ServerError> {
        eventually(SERVER, "all servers in their places", PATIENCE, || async {
            let master = self.master_at(self.live_sentinel()?).await?.port();
            self.replicated(master).await?;
            for sentinel in &self.sentinels {
                knows_all(sentinel, master).await?;
            }
            Ok(())
        })
        .await
    }

    /// Keeps the directories after the end and prints their paths, as a panic of the test does.
    pub fn keep(&self) {
        for server in self.nodes.iter().chain(&self.sentinels) {
            server.keep();
        }
    }

    fn live_sentinel(&self) -> io::Result<&TestRedis> {
        let mut live = self.sentinels.iter().filter(|sentinel| sentinel.is_live());
        live.next().ok_or_else(|| not_yet("no sentinel is alive"))
    }

    async fn master_at(&self, sentinel: &TestRedis) -> io::Result<&TestRedis> {
        let addr = about(sentinel, "GET-MASTER-ADDR-BY-NAME").await?;
        let named = |node: &&TestRedis| addr.lines().nth(1) == Some(&*node.port().to_string());
        self.nodes.iter().find(named).ok_or_else(|| not_yet(format!("a stranger leads: {addr}")))
    }

    async fn replicated(&self, master: u16) -> io::Result<()> {
        for replica in self.nodes.iter().filter(|node| node.port() != master).collect::<Vec<_>>() {
            replica.follows(master).await?;
        }
        Ok(())
    }
}

async fn knows_all(sentinel: &TestRedis, master: u16) -> io::Result<()> {
    let master = &*master.to_string();
    about(sentinel, "CKQUORUM").await?;
    let all = |state: &str, wanted: usize, healthy: &[(&str, &str)]| {
        healthy.iter().all(|(field, expected)| {
            let found = values(state, field);
            found.len() == wanted && found.iter().all(|value| value == expected)
        })
    };
    let replica = [("flags", "slave"), ("master-link-status", "ok"), ("master-port", master)];
    if all(&about(sentinel, "MASTER").await?, 1, &[("flags", "master"), ("port", master)])
        && all(&about(sentinel, "REPLICAS").await?, REPLICAS, &replica)
        && all(&about(sentinel, "SENTINELS").await?, SENTINELS - 1, &[("flags", "sentinel")])
    {
        return Ok(());
    }
    Err(not_yet(format!("the sentinel {} does not see all others", sentinel.addr())))
}

async fn about(sentinel: &TestRedis, what: &str) -> io::Result<String> {
    sentinel.command(&["SENTINEL", what, SERVICE]).await
}

/// The field of one or several objects, each a list of names and values by turns.
fn values<'a>(state: &'a str, field: &str) -> Vec<&'a str> {
    let lines: Vec<_> = state.lines().collect();
    let pairs = lines.chunks_exact(2);
    pairs.filter(|pair| pair[0] == field).map(|pair| pair[1]).collect()
}

fn value<'a>(state: &'a str, field: &str) -> &'a str {
    values(state, field).first().copied().unwrap_or_default()
}

/// A word of a configuration file.
fn quote(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}
