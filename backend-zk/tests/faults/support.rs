//! Shared by the tests: servers behind a proxy, clients, inspection past the proxy, and waiting for
//! events.
//!
//! Bounds are generous: they distinguish late on a busy machine from never, and guarantee nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::{Guard, Locks, Result, url};
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Direction, Proxy, framing};
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions, ZooKeeperServer};
use fencelock_zk::SCHEME;
use fencelock_zk::zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, Stat};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The session timeout of clients that do not ask for their own.
pub(crate) const T: Duration = Duration::from_secs(2);
/// How late a busy machine may make a timer.
pub(crate) const SLACK: Duration = Duration::from_millis(400);

/// How often a test repeats what must not fail even once: `FENCELOCK_ROUNDS`, if set.
pub(crate) fn rounds(usual: u32) -> u32 {
    match std::env::var("FENCELOCK_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("FENCELOCK_ROUNDS is a number"),
        Err(_) => usual,
    }
}

/// One server for all tests that run at the same time. It ends with the last of them.
async fn shared_server() -> Arc<TestZooKeeper> {
    static SERVER: Mutex<Weak<TestZooKeeper>> = Mutex::const_new(Weak::new());
    let mut shared = SERVER.lock().await;
    match shared.upgrade() {
        Some(server) => server,
        None => {
            // Otherwise twenty ticks, too short for `Testbed::behind_for_long`.
            let options = ZooKeeperOptions::new().config("maxSessionTimeout=60000");
            let server = Arc::new(options.standalone().await.expect("ZooKeeper starts"));
            *shared = Arc::downgrade(&server);
            server
        }
    }
}

/// Servers, a path to one of them that can be broken, and one that cannot.
pub(crate) struct Testbed {
    pub(crate) servers: Arc<TestZooKeeper>,
    pub(crate) proxy: Proxy,
    /// The servers of the path that cannot be broken: the other ones, if there are any.
    past: String,
    /// A bare transport, past the proxy.
    pub(crate) client: Client,
    pub(crate) root: String,
}

impl Testbed {
    /// On the server that other tests use too, under a root of its own.
    pub(crate) async fn start() -> Testbed {
        Testbed::on(shared_server().await, 0).await
    }

    /// On a server of its own.
    pub(crate) async fn alone() -> Testbed {
        Testbed::on(Arc::new(TestZooKeeper::standalone().await.expect("ZooKeeper starts")), 0).await
    }

    /// On these servers; the proxy leads to one of them.
    pub(crate) async fn on(servers: Arc<TestZooKeeper>, server: usize) -> Testbed {
        static ROOTS: AtomicUsize = AtomicUsize::new(0);
        let root = format!("/faults/{}", ROOTS.fetch_add(1, Ordering::Relaxed));
        let upstream = servers.servers()[server].connect_string();
        let proxy = Proxy::framed(upstream, framing::zookeeper).await.expect("a proxy starts");
        let past = match others(&servers, server) {
            alone if alone.is_empty() => servers.connect_string(),
            others => {
                others.iter().map(|other| other.connect_string()).collect::<Vec<_>>().join(",")
            }
        };
        let client = transport(&past).await;
        // Created here, so that no test with a login creates it.
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create("/faults", b"", &options).await {
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(error) => panic!("no root: {error}"),
        }
        Testbed { servers, proxy, past, client, root }
    }

    pub(crate) fn url(&self, host: &str, params: &str) -> String {
        self.url_for(T, host, params)
    }

    fn url_for(&self, session: Duration, host: &str, params: &str) -> String {
        format!("zk://{host}{}?prefix=&session={}s&{params}", self.root, session.as_secs())
    }

    /// A client behind the proxy.
    pub(crate) async fn behind(&self) -> Locks {
        connect(&self.url(&self.proxy.addr().to_string(), "")).await
    }

    /// A client behind the proxy, with a session that outlives a cut during which the test does much.
    pub(crate) async fn behind_for_long(&self) -> Locks {
        connect(&self.url_for(T * 4, &self.proxy.addr().to_string(), "")).await
    }

    /// A client that the proxy's faults do not reach.
    pub(crate) async fn direct(&self) -> Locks {
        connect(&self.url(&self.past, "")).await
    }

    /// The same, with a session that lives on where a busy machine may end those of the others.
    pub(crate) async fn patient(&self) -> Locks {
        connect(&self.url_for(T * 2, &self.past, "")).await
    }

    /// The paths of the nodes of a lock, in the order of their numbers, read past the proxy.
    pub(crate) async fn nodes(&self, lock: &str) -> Vec<String> {
        let path = format!("{}/{lock}", self.root);
        self.client.sync("/").await.expect("in step");
        let mut names = match self.client.list_children(&path).await {
            Err(ZkError::NoNode) => Vec::new(),
            names => names.expect("a list"),
        };
        names.sort_by_key(|name| name[name.len() - 10..].to_owned());
        names.into_iter().map(|name| format!("{path}/{name}")).collect()
    }

    pub(crate) async fn stat(&self, path: &str) -> Option<Stat> {
        self.client.check_stat(path).await.expect("an answer")
    }

    /// The lines of `wchp` below the root: watched paths.
    pub(crate) async fn watches(&self) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.servers.servers() {
            let watches = server.four_letter("wchp").await.expect("an answer");
            let below = format!("{}/", self.root);
            all.extend(watches.lines().filter(|line| line.contains(&below)).map(str::to_owned));
        }
        all
    }

    /// Waits until nothing is left of any lock in `locks`.
    pub(crate) async fn drained(&self, locks: &[&str]) {
        until("no node and no watch is left", async || {
            for lock in locks {
                if !self.nodes(lock).await.is_empty() {
                    return false;
                }
            }
            self.watches().await.is_empty()
        })
        .await;
    }

    /// Waits until the whole server, which must be the test's own, has neither a session's node nor a
    /// watch. Watches on children count too, which `wchp` and `wchc` omit.
    pub(crate) async fn bare(&self) {
        let [server] = self.servers.servers() else { panic!("one server") };
        until("the server has no node and no watch", async || {
            let counts = server.four_letter("mntr").await.expect("an answer");
            let none = ["zk_ephemerals_count\t0\n", "zk_watch_count\t0\n"];
            none.iter().all(|none| counts.contains(none))
        })
        .await;
        // Sessions that have ever watched are listed, with the paths that they watch now.
        let watches = server.four_letter("wchc").await.expect("an answer");
        assert!(!watches.contains('/'), "{watches}");
    }

    /// Waits until `count` nodes are in the queue of a lock, its holder included.
    pub(crate) async fn until_queued(&self, lock: &str, count: usize) {
        let what = format!("{count} nodes for {lock}");
        until(&what, async || self.nodes(lock).await.len() == count).await;
    }
}

/// All servers but one.
pub(crate) fn others(servers: &TestZooKeeper, but: usize) -> Vec<&ZooKeeperServer> {
    let all = servers.servers().iter().enumerate();
    all.filter(|(at, _)| *at != but).map(|(_, server)| server).collect()
}

/// A fault in both directions.
pub(crate) fn both_ways(fault: impl Fn(Direction)) {
    fault(Direction::ToServer);
    fault(Direction::ToClient);
}

/// A lock that one client holds and another waits for.
pub(crate) struct Contest {
    lost: JoinHandle<(Instant, Guard)>,
    granted: JoinHandle<(Instant, Guard)>,
}

/// How a lock changed hands when its holder was cut off.
pub(crate) struct Outcome {
    /// How long after the cut the holder was notified.
    pub(crate) lost_after: Duration,
    /// How long after the cut the waiter was granted.
    pub(crate) granted_after: Duration,
    pub(crate) loser: Guard,
    pub(crate) winner: Guard,
}

impl Contest {
    pub(crate) async fn between(
        testbed: &Testbed,
        holder: &Locks,
        waiter: &Locks,
        lock: &str,
    ) -> Contest {
        let guard = acquire(holder, lock).await;
        let next = spawn_waiter(waiter, lock);
        testbed.until_queued(lock, 2).await;
        Contest {
            lost: tokio::spawn(async move {
                guard.lost().await;
                (Instant::now(), guard)
            }),
            granted: tokio::spawn(async move {
                let guard = until_granted(next).await;
                (Instant::now(), guard)
            }),
        }
    }

    /// Waits until the lock has changed hands after the cut, and asserts the guarantee itself: a
    /// notification after the grant would mean two owners in between.
    pub(crate) async fn decided(self, cut: Instant) -> Outcome {
        let (lost, loser) = soon("the holder is notified", self.lost).await.expect("no panic");
        let (next, winner) = soon("the waiter is granted", self.granted).await.expect("no panic");
        assert!(lost > cut, "lost before the cut");
        assert!(lost < next, "notified {:?} after the lock was given away", lost - next);
        assert!(!loser.is_held() && winner.is_held());
        assert!(lost - cut < T * 16 / 25 + SLACK, "notified {:?} after the cut", lost - cut);
        Outcome { lost_after: lost - cut, granted_after: next - cut, loser, winner }
    }
}

/// Prints when the locks of a cut changed hands, for the figures of the documentation.
pub(crate) fn print(round: u32, outcomes: &[Outcome]) {
    for Outcome { lost_after, granted_after, .. } in outcomes {
        println!("round {round}: lost {lost_after:?}, granted {granted_after:?} after the cut");
    }
}

/// Connects as a user's program does.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    url::connect(&[SCHEME], url).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    connect_retrying(|| try_connect(url)).await
}

/// A bare transport, connected with retries.
pub(crate) async fn transport(servers: &str) -> Client {
    let connecting = async {
        loop {
            match Client::connect(servers).await {
                Err(ZkError::Timeout) => sleep(ms(50)).await,
                connected => return connected.expect("a connection"),
            }
        }
    };
    soon("the transport connects", connecting).await
}

/// The operation of a request, by its number in the protocol.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Delete = 2,
    GetData = 4,
    Multi = 14,
    Create = 15,
}

/// Whether the bytes of a request are of this operation.
pub(crate) fn is(op: Op) -> impl Fn(&[u8]) -> bool + Send + 'static {
    move |bytes| bytes.get(8..12) == Some(&(op as i32).to_be_bytes()[..])
}
