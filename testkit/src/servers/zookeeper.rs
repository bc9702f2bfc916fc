//! ZooKeeper servers of the test's own: one, or an ensemble.
//!
//! They run from the jars of Debian's package, or from those in the directory that
//! `FENCELOCK_ZOOKEEPER_JARS` names, each in a Java machine with a small heap and with
//! short ticks, as session timeouts are bounded by multiples of the tick. A server counts as
//! ready when it serves clients: in an ensemble that takes a quorum and a leader.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::eventually::{PATIENCE, eventually, not_yet};
use super::instance::{Instance, ask};
use super::process::{Invocation, Watchdog};
use super::version::{DEBIAN_JARS, zookeeper_jars};
use super::{ServerError, failed, started};
use crate::port::Port;
use crate::proxy::Proxy;

mod peer_links;

use peer_links::PeerLinks;

const SERVER: &str = "ZooKeeper";
const READY: Duration = Duration::from_secs(60);

/// How to start a [`TestZooKeeper`].
#[derive(Debug, Clone)]
pub struct ZooKeeperOptions {
    java: OsString,
    java_of_each: Vec<OsString>,
    jars: PathBuf,
    java_args: Vec<OsString>,
    tick: Duration,
    sync_ticks: u32,
    wired: bool,
    config: String,
}

impl ZooKeeperOptions {
    /// A heap of 96 MB and ticks of 200 ms, so that session timeouts of 0.4 to 4 s can be had.
    #[must_use]
    pub fn new() -> Self {
        Self {
            java: "java".into(),
            java_of_each: Vec::new(),
            jars: zookeeper_jars(),
            java_args: Vec::new(),
            tick: Duration::from_millis(200),
            sync_ticks: 10,
            wired: false,
            config: String::new(),
        }
    }

    /// Another program than the `java` on the search path.
    #[must_use]
    pub fn java(mut self, program: impl Into<OsString>) -> Self {
        self.java = program.into();
        self
    }

    /// Another program for each server of an ensemble, in the order of their ids.
    #[must_use]
    pub fn java_of_each(mut self, programs: impl IntoIterator<Item: Into<OsString>>) -> Self {
        self.java_of_each = programs.into_iter().map(Into::into).collect();
        self
    }

    /// Another directory of jars, all of which are taken; that of Debian's packages has many more.
    #[must_use]
    pub fn jars(mut self, directory: impl Into<PathBuf>) -> Self {
        self.jars = directory.into();
        self
    }

    /// One more argument for `java`, after ours.
    #[must_use]
    pub fn java_arg(mut self, arg: impl Into<OsString>) -> Self {
        self.java_args.push(arg.into());
        self
    }

    /// The tick. Session timeouts are kept between 2 and 20 of it.
    #[must_use]
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// After how many ticks of silence a leader gives a follower up, and the other way round.
    #[must_use]
    pub fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_ticks = ticks;
        self
    }

    /// Leads everything that the servers of an ensemble say to each other, elections included,
    /// through proxies: [`TestZooKeeper::peer_links_of`] cuts one off from the others, while
    /// clients can still reach it. Below the [sync limit](Self::sync_limit) it does not notice.
    #[must_use]
    pub fn peers_through_proxies(mut self) -> Self {
        self.wired = true;
        self
    }

    /// One more line for `zoo.cfg`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// Starts one server that is not part of an ensemble, and waits until it serves.
    ///
    /// # Errors
    /// When ZooKeeper is not installed, or does not get ready.
    pub async fn standalone(self) -> Result<TestZooKeeper, ServerError> {
        self.ensemble(1).await
    }

    /// Starts an ensemble of this many servers, and waits until all of them serve. With a single
    /// one it is a standalone server.
    ///
    /// # Errors
    /// When ZooKeeper is not installed, or does not get ready.
    pub async fn ensemble(self, servers: usize) -> Result<TestZooKeeper, ServerError> {
        started(|| self.start_once(servers)).await
    }

    async fn start_once(&self, count: usize) -> Result<TestZooKeeper, ServerError> {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(ZooKeeperServer::new(self)?);
        }
        for (server, java) in servers.iter_mut().zip(&self.java_of_each) {
            server.invocation.program.clone_from(java);
        }
        let peers = peers(&servers);
        for (index, server) in servers.iter().enumerate() {
            self.configure(server.directory(), server.port(), index + 1, &peers)
                .map_err(failed(SERVER, "configuring"))?;
        }
        let mut links = None;
        if self.wired {
            let ports = servers.iter().map(|server| [&server.quorum, &server.election]);
            let between =
                PeerLinks::between(&ports.map(|own| own.map(Port::number)).collect::<Vec<_>>())
                    .await
                    .map_err(failed(SERVER, "wiring"))?;
            for (index, server) in servers.iter_mut().enumerate() {
                server.invocation.args.splice(0..0, between.java_args(index));
            }
            links = Some(between);
        }
        let zookeeper = TestZooKeeper { servers, links, watchdogs: Mutex::default() };
        zookeeper.launch_all().await?;
        Ok(zookeeper)
    }

    /// The command that starts a server in this directory, or the file that is missing.
    pub(super) fn invocation(&self, directory: &Path) -> Result<Invocation, String> {
        // Quick to start and small; without the shared statistics file that a kill leaves behind.
        let mut args: Vec<OsString> =
            ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp"]
                .map(Into::into)
                .into();
        args.push(classpath(&self.jars)?);
        // What a killed process has written survives without it, and a disk that is busy with what
        // was just built would stall the servers for longer than a session of a test lives.
        args.push("-Dzookeeper.forceSync=no".into());
        args.extend(self.java_args.iter().cloned());
        // It runs a standalone server when the configuration names no others.
        args.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".into());
        args.push(directory.join("zoo.cfg").into());
        Ok(Invocation::new(self.java.clone(), args))
    }

    /// Writes the configuration of the server `id`; `peers` are the lines that name all servers.
    pub(super) fn configure(
        &self,
        directory: &Path,
        port: u16,
        id: usize,
        peers: &str,
    ) -> io::Result<()> {
        let data = data_in(directory);
        let config = format!(
            "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime={}\ninitLimit=50\n\
             syncLimit={}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
             maxClientCnxns=0\n{peers}{}",
            data.display(),
            self.tick.as_millis(),
            self.sync_ticks,
            self.config,
        );
        std::fs::create_dir_all(&data)?;
        std::fs::write(data.join("myid"), id.to_string())?;
        std::fs::write(directory.join("zoo.cfg"), config)
    }
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A running ZooKeeper, of one or several servers. Dropping it kills them and deletes their data.
#[derive(Debug)]
pub struct TestZooKeeper {
    servers: Vec<ZooKeeperServer>,
    links: Option<PeerLinks>,
    watchdogs: Mutex<Vec<Watchdog>>,
}

impl TestZooKeeper {
    /// Starts one server with the defaults of [`ZooKeeperOptions`].
    ///
    /// # Errors
    /// When ZooKeeper is not installed, or does not get ready.
    pub async fn standalone() -> Result<Self, ServerError> {
        ZooKeeperOptions::new().standalone().await
    }

    /// Starts an ensemble with the defaults of [`ZooKeeperOptions`].
    ///
    /// # Errors
    /// When ZooKeeper is not installed, or does not get ready.
    pub async fn ensemble(servers: usize) -> Result<Self, ServerError> {
        ZooKeeperOptions::new().ensemble(servers).await
    }

    /// `host:port` of all servers, separated by commas.
    #[must_use]
    pub fn connect_string(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(ZooKeeperServer::connect_string).collect();
        addresses.join(",")
    }

    /// The servers, in the order of their ids.
    #[must_use]
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// The server that leads now; a standalone server leads itself. None during an election.
    pub async fn leader(&self) -> Option<&ZooKeeperServer> {
        for server in &self.servers {
            // A server that is down or frozen does not lead.
            if matches!(server.mode().await.as_deref(), Ok("leader" | "standalone")) {
                return Some(server);
            }
        }
        None
    }

    /// The server that leads, after an election that may be under way.
    ///
    /// # Errors
    /// When none of them is elected.
    pub async fn elected(&self) -> Result<&ZooKeeperServer, ServerError> {
        eventually(SERVER, "a leader", PATIENCE, || async {
            self.leader().await.ok_or_else(|| not_yet("none of the servers leads"))
        })
        .await
    }

    /// The proxies between one server, by its place in [`servers`](Self::servers), and each of the
    /// others; none without [`ZooKeeperOptions::peers_through_proxies`]. Either of the two may
    /// have connected, so a cut is one of both directions.
    pub fn peer_links_of(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        self.links.iter().flat_map(move |links| links.of(server))
    }

    /// Ends all servers and starts them again, with their data, and waits until all serve.
    ///
    /// # Errors
    /// When they do not get ready.
    pub async fn restart(&self) -> Result<(), ServerError> {
        for server in &self.servers {
            server.instance.stop().await?;
        }
        self.launch_all().await
    }

    /// Keeps the directories after the end and prints their paths, as a panic of the test does.
    pub fn keep(&self) {
        for server in &self.servers {
            server.instance.keep();
        }
    }

    /// For servers in a static, which are never dropped: their directories are deleted when this
    /// process, and so the servers, have ended. Dropping them dismisses that.
    ///
    /// # Errors
    /// When there is no process left for it.
    pub fn delete_at_exit(&self) -> Result<(), ServerError> {
        for server in &self.servers {
            let watchdog = Watchdog::that_deletes(server.directory());
            let watchdog = watchdog.map_err(failed(SERVER, "watching"))?;
            self.watchdogs.lock().unwrap_or_else(PoisonError::into_inner).push(watchdog);
        }
        Ok(())
    }

    async fn launch_all(&self) -> Result<(), ServerError> {
        // None of them serves before a majority runs.
        for server in &self.servers {
            server.instance.launch(&server.invocation)?;
        }
        for server in &self.servers {
            server.ready().await?;
        }
        Ok(())
    }
}

/// One server of a [`TestZooKeeper`].
#[derive(Debug)]
pub struct ZooKeeperServer {
    instance: Instance,
    invocation: Invocation,
    quorum: Port,
    election: Port,
}

/// The server's process and directory.
impl Deref for ZooKeeperServer {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.instance
    }
}

impl ZooKeeperServer {
    fn new(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        let instance = Instance::new(SERVER, "zookeeper")?;
        let invocation = options.invocation(instance.directory());
        let invocation = invocation.map_err(|jar| instance.missing(jar))?;
        let port = || Port::lease().map_err(failed(SERVER, "finding a port for"));
        let (quorum, election) = (port()?, port()?);
        Ok(Self { instance, invocation, quorum, election })
    }

    /// `host:port` of this server alone.
    #[must_use]
    pub fn connect_string(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Starts the server again on the same ports and data, and waits until it serves; ends it in
    /// order before if it still runs. In an ensemble it can only serve if the others make up a
    /// quorum with it: after an outage of all, use [`TestZooKeeper::restart`].
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart(&self) -> Result<(), ServerError> {
        self.instance.stop().await?;
        self.instance.launch(&self.invocation)?;
        self.ready().await
    }

    /// Asks one of ZooKeeper's four-letter words: `ruok`, `mntr`, `wchc`…
    ///
    /// # Errors
    /// When there is no answer within 5 s.
    pub async fn four_letter(&self, word: &str) -> io::Result<String> {
        four_letter(self.port(), word).await
    }

    /// `leader`, `follower`, `standalone`…; empty while it does not serve.
    async fn mode(&self) -> io::Result<String> {
        mode(self.port()).await
    }

    async fn ready(&self) -> Result<(), ServerError> {
        let server = || is_served_from(self.directory(), self.port());
        self.instance.ready(READY, server).await
    }
}

/// Whether the server on this port of 127.0.0.1 serves clients and was started in this directory.
pub(super) async fn is_served_from(directory: &Path, port: u16) -> io::Result<bool> {
    let is_serving = !mode(port).await?.is_empty();
    // The configuration says whose answer it is.
    let own = format!("dataDir={}", data_in(directory).display());
    Ok(is_serving && four_letter(port, "conf").await?.contains(&own))
}

async fn mode(port: u16) -> io::Result<String> {
    let answer = four_letter(port, "srvr").await?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    Ok(mode.unwrap_or_default().to_owned())
}

async fn four_letter(port: u16, word: &str) -> io::Result<String> {
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let answer = ask(connect, word.as_bytes(), |_| false).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn data_in(directory: &Path) -> PathBuf {
    directory.join("data")
}

/// The lines of `zoo.cfg` that name the servers of an ensemble.
fn peers(servers: &[ZooKeeperServer]) -> String {
    let mut lines = String::new();
    for (index, server) in servers.iter().enumerate().filter(|_| servers.len() > 1) {
        let (quorum, election) = (server.quorum.number(), server.election.number());
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "server.{}=127.0.0.1:{quorum}:{election}", index + 1);
    }
    lines
}

/// The jars to run from, or the one that is missing.
fn classpath(directory: &Path) -> Result<OsString, String> {
    const JARS: [&str; 11] = [
        "zookeeper",
        "zookeeper-jute",
        "netty-all",
        "slf4j-api",
        "slf4j-simple",
        "snappy-java",
        "metrics-core",
        "commons-cli",
        "jackson-annotations",
        "jackson-core",
        "jackson-databind",
    ];
    if directory != Path::new(DEBIAN_JARS) {
        let missing = |_| directory.display().to_string();
        std::fs::read_dir(directory).map_err(missing)?;
        // Java itself takes every jar that is there.
        return Ok(directory.join("*").into());
    }
    let mut path = OsString::new();
    for jar in JARS {
        let file = directory.join(format!("{jar}.jar"));
        if !file.is_file() {
            return Err(file.display().to_string());
        }
        if !path.is_empty() {
            path.push(":");
        }
        path.push(file);
    }
    Ok(path)
}
