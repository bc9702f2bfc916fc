//! One Redis server, and what every kind of Redis servers has in common.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::deployment::{Deployment, unknown};
use super::fault::Fault;
use super::lines::{Lines, Wiring};
use super::meter::{Meter, version_of_redis};
use crate::helpers::redis_leftovers;
use crate::proxy::framing;
use crate::servers::{Instance, RedisOptions, ServerClock, TestRedis, redis_program};

/// What is on the server's disk when it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    Nothing,
    EveryWrite,
}

pub(super) struct OneServer {
    server: TestRedis,
    lines: Lines,
    keeps: Keeps,
    clocks: Vec<ServerClock>,
}

impl OneServer {
    pub(super) async fn start(keeps: Keeps, wiring: Wiring) -> io::Result<OneServer> {
        let options = match keeps {
            Keeps::Nothing => RedisOptions::new(),
            Keeps::EveryWrite => RedisOptions::new().append_only().config("appendfsync always"),
        };
        let clocks = wiring.clocks(1, &redis_program())?;
        let options = clocks.iter().fold(options, |it, clock| it.program(clock.program()));
        let server = options.start().await.map_err(io::Error::other)?;
        let lines = Lines::to([server.addr().to_string()], framing::resp, wiring).await?;
        Ok(OneServer { server, lines, keeps, clocks })
    }
}

#[async_trait(?Send)]
impl Deployment for OneServer {
    fn url(&self) -> String {
        format!("redis://{}/0", self.lines.hosts())
    }

    fn settings(&self) -> String {
        match self.keeps {
            Keeps::Nothing => "one server, no persistence",
            Keeps::EveryWrite => "one server, appendonly yes, appendfsync always",
        }
        .to_owned()
    }

    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(vec![version_of_redis(&self.server).await?])
    }

    async fn meter(&self) -> io::Result<Meter> {
        Meter::of_redis([&self.server], &self.lines).await
    }

    fn faults(&self) -> Vec<Fault> {
        let of_the_server = [Fault::ServerFrozen, Fault::ServerRestarted, Fault::DataLost];
        let lines = self.lines.faults();
        lines.chain(of_the_server).chain(ON_A_SERVER).chain([Fault::ServerBusy]).collect()
    }

    fn clocks(&self) -> &[ServerClock] {
        &self.clocks
    }

    fn may_overlap(&self, fault: Fault) -> bool {
        self.may_lose_data(fault) || fault == Fault::ServerClockStepped
    }

    fn may_lose_data(&self, fault: Fault) -> bool {
        let restarts_empty = fault == Fault::ServerRestarted && self.keeps == Keeps::Nothing;
        restarts_empty || fault == Fault::DataLost
    }

    async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        if let Some(fault) = Lines::fault(fault) {
            return self.lines.inflict(fault, during).await;
        }
        match fault {
            Fault::ServerFrozen => freeze(&self.server, during).await,
            Fault::ServerRestarted => {
                repeat(during, Duration::from_secs(1), async || {
                    self.server.kill().map_err(io::Error::other)?;
                    self.server.restart().await.map_err(io::Error::other)
                })
                .await
            }
            Fault::ServerBusy => keep_busy(&self.server, during).await,
            fault => on_a_server(&self.server, fault, during).await,
        }
    }

    async fn leftovers(&self) -> io::Result<Vec<String>> {
        leftovers(&self.server).await
    }
}

/// What is done to any server by commands.
pub(super) const ON_A_SERVER: [Fault; 4] =
    [Fault::ScriptsFlushed, Fault::ConnectionsKilled, Fault::WritesPaused, Fault::ServerFull];

/// Whether a master is replaced under this fault, where servers elect them, and data lost with it. Rounds in
/// which that happens without one are noticed by their masters.
pub(super) fn may_fail_over(fault: Fault) -> bool {
    let of_clients = [Fault::ClientsKilled, Fault::ClientsFrozen, Fault::ClientClockStepped];
    let keeps_its_master = [&ON_A_SERVER[..], &of_clients, &[Fault::SlotMoved]].concat();
    !keeps_its_master.contains(&fault) && Lines::fault(fault).is_none()
}

pub(super) async fn on_a_server(
    server: &TestRedis,
    fault: Fault,
    during: Duration,
) -> io::Result<()> {
    let often = Duration::from_millis(200);
    match fault {
        Fault::ScriptsFlushed => {
            repeat(during, often, async || command(server, &["SCRIPT", "FLUSH"]).await).await
        }
        Fault::ConnectionsKilled => {
            let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
            let subscribers = ["CLIENT", "KILL", "TYPE", "pubsub"];
            repeat(during, often, async || {
                command(server, &kill).await?;
                command(server, &subscribers).await
            })
            .await
        }
        Fault::DataLost => {
            repeat(during, Duration::from_secs(1), async || command(server, &["FLUSHALL"]).await)
                .await
        }
        Fault::WritesPaused => {
            let ms = during.as_millis().to_string();
            command(server, &["CLIENT", "PAUSE", &ms, "WRITE"]).await?;
            sleep(during).await;
            Ok(())
        }
        Fault::ServerFull => {
            command(server, &["CONFIG", "SET", "maxmemory", "1"]).await?;
            sleep(during).await;
            command(server, &["CONFIG", "SET", "maxmemory", "0"]).await
        }
        other => Err(unknown(other)),
    }
}

/// A script of another client that never ends, until it is killed.
async fn keep_busy(server: &TestRedis, during: Duration) -> io::Result<()> {
    let endless = ["EVAL", "while true do end", "0"];
    let runs = server.command(&endless);
    let ends = async {
        sleep(during).await;
        command(server, &["SCRIPT", "KILL"]).await
    };
    // The script's own answer is that it was killed.
    let (_, killed) = tokio::join!(runs, ends);
    killed
}

pub(super) async fn freeze(server: &Instance, during: Duration) -> io::Result<()> {
    server.freeze().await.map_err(io::Error::other)?;
    sleep(during).await;
    server.thaw().map_err(io::Error::other)
}

/// Does it again and again for a while, `pause` after it was done.
pub(super) async fn repeat(
    during: Duration,
    pause: Duration,
    it: impl AsyncFn() -> io::Result<()>,
) -> io::Result<()> {
    let end = Instant::now() + during;
    while Instant::now() < end {
        it().await?;
        sleep(pause).await;
    }
    Ok(())
}

async fn command(server: &TestRedis, command: &[&str]) -> io::Result<()> {
    let answer = server.command(command).await?;
    let refused = |word: &str| answer.starts_with(word);
    if refused("ERR") || refused("NOAUTH") {
        return Err(io::Error::other(format!("{}: {answer}", command.join(" "))));
    }
    Ok(())
}

/// Cells outlive those who made them, too.
pub(super) async fn leftovers(server: &TestRedis) -> io::Result<Vec<String>> {
    let mut keys = redis_leftovers(server, "").await?;
    keys.retain(|key| !key.ends_with("}:c"));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_their_connections_have_no_master_replaced() {
        for fault in [Fault::ClientsKilled, Fault::ClientsFrozen, Fault::CutOff, Fault::ServerFull]
        {
            assert!(!may_fail_over(fault), "{fault}");
        }
        for fault in
            [Fault::MasterKilled, Fault::MasterFrozen, Fault::MasterReplaced, Fault::DataLost]
        {
            assert!(may_fail_over(fault), "{fault}");
        }
    }
}
