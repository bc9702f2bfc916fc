//! Shared by the tests: servers behind a proxy, clients, inspection past the proxy, and waiting for
//! events.
//!
//! Bounds are generous: they distinguish late on a busy machine from never, and guarantee nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fencelock_conformance::waiting::Waiter;
use fencelock_core::{Guard, Locks, Moment, Result, url};
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Direction, Proxy, framing};
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions, ZooKeeperServer};
use fencelock_zk::SCHEME;
use fencelock_zk::zookeeper_client::{
    Acl, Acls, AuthId, Client, CreateMode, Error as ZkError, Permission, Stat,
};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The session timeout of clients that do not ask for their own.
pub(crate) const T: Duration = Duration::from_secs(2);

/// How often a test repeats what must not fail even once: `FENCELOCK_ROUNDS`, if set.
pub(crate) fn rounds(usual: u32) -> u32 {
    match std::env::var("FENCELOCK_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("FENCELOCK_ROUNDS is a number"),
        Err(_) => usual,
    }
}

/// Servers for all tests of this process. What they need of a runtime outlives the test that starts
/// them.
async fn start(options: ZooKeeperOptions, count: usize) -> Arc<TestZooKeeper> {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
    // Sessions that outlive what a test does, and no container that is removed during a test.
    let options = options.config("maxSessionTimeout=60000");
    let options = options.java_arg("-Dznode.container.checkIntervalMs=3600000");
    let servers = RUNTIME.spawn(options.ensemble(count)).await.expect("no panic");
    let servers = servers.expect("ZooKeeper starts");
    servers.delete_at_exit().expect("a watchdog");
    Arc::new(servers)
}

/// One server for all tests that do not break it, at the same time.
pub(crate) async fn shared_server() -> Arc<TestZooKeeper> {
    static SERVER: OnceCell<Arc<TestZooKeeper>> = OnceCell::const_new();
    SERVER.get_or_init(|| start(ZooKeeperOptions::new(), 1)).await.clone()
}

type Slot = Mutex<Option<Arc<TestZooKeeper>>>;

/// Servers that one test at a time uses, and may freeze, kill and cut off, if it leaves them working.
pub(crate) struct Borrowed(MutexGuard<'static, Option<Arc<TestZooKeeper>>>);

impl Borrowed {
    async fn from(slot: &'static Slot, options: ZooKeeperOptions, count: usize) -> Borrowed {
        let mut slot = slot.lock().await;
        match &*slot {
            Some(servers) => drop(servers.elected().await.expect("they serve")),
            None => *slot = Some(start(options, count).await),
        }
        Borrowed(slot)
    }

    /// A single server.
    pub(crate) async fn server() -> Borrowed {
        static SLOT: Slot = Mutex::const_new(None);
        Borrowed::from(&SLOT, ZooKeeperOptions::new(), 1).await
    }

    /// Three servers.
    pub(crate) async fn ensemble() -> Borrowed {
        static SLOT: Slot = Mutex::const_new(None);
        Borrowed::from(&SLOT, ZooKeeperOptions::new(), 3).await
    }

    /// Three servers that can be cut off from each other, and do not notice it.
    pub(crate) async fn wired_ensemble() -> Borrowed {
        static SLOT: Slot = Mutex::const_new(None);
        let options = ZooKeeperOptions::new().sync_limit(100).peers_through_proxies();
        Borrowed::from(&SLOT, options, 3).await
    }

    pub(crate) fn servers(&self) -> Arc<TestZooKeeper> {
        self.0.clone().expect("they were started")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A test that fails may leave them in any state.
        if std::thread::panicking() {
            self.0.take();
        }
    }
}

/// Releases what is held, and then what its waiter gets.
pub(crate) async fn hand_over(held: Guard, waiter: Waiter) {
    release(held).await;
    release(until_granted(waiter).await).await;
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
    _borrowed: Option<Borrowed>,
}

impl Testbed {
    /// On the server that other tests use too, under a root of its own.
    pub(crate) async fn start() -> Testbed {
        Testbed::on(shared_server().await, 0).await
    }

    /// With a client that the proxy's faults do not reach.
    pub(crate) async fn near() -> (Testbed, Locks) {
        let testbed = Testbed::start().await;
        let near = testbed.direct().await;
        (testbed, near)
    }

    /// With such a client, and one behind the proxy.
    pub(crate) async fn near_and_far() -> (Testbed, Locks, Locks) {
        let (testbed, near) = Testbed::near().await;
        let far = testbed.behind_for_long().await;
        (testbed, near, far)
    }

    /// On a server that no other test uses at the time.
    pub(crate) async fn alone() -> Testbed {
        let borrowed = Borrowed::server().await;
        let mut testbed = Testbed::on(borrowed.servers(), 0).await;
        // Sessions of the test before may not have ended yet.
        testbed.bare().await;
        testbed._borrowed = Some(borrowed);
        testbed
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
        Testbed { servers, proxy, past, client, root, _borrowed: None }
    }

    pub(crate) fn url(&self, host: &str, params: &str) -> String {
        self.url_for(T, host, params)
    }

    pub(crate) fn url_for(&self, session: Duration, host: &str, params: &str) -> String {
        format!("zk://{host}{}?prefix=&session={}s&{params}", self.root, session.as_secs())
    }

    /// A client behind the proxy, with a session that a test can wait to lose. Where it must not be
    /// lost, a busy machine might.
    pub(crate) async fn behind(&self) -> Locks {
        connect(&self.url(&self.proxy.addr().to_string(), "")).await
    }

    /// A client behind the proxy, with a session that outlives short cuts, also on a busy machine.
    pub(crate) async fn behind_for_long(&self) -> Locks {
        connect(&self.url_for(T * 4, &self.proxy.addr().to_string(), "")).await
    }

    /// A client that the proxy's faults do not reach, with a session that no busy machine ends.
    pub(crate) async fn direct(&self) -> Locks {
        connect(&self.url_for(T * 10, &self.past, "")).await
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

    /// Waits until the whole server, which no other test may use, has neither a session's node nor a
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

    /// A waiter in the queue of a lock, as the last of `count` nodes.
    pub(crate) async fn queued(&self, locks: &Locks, lock: &str, count: usize) -> Waiter {
        let waiter = spawn_waiter(locks, lock);
        self.until_queued(lock, count).await;
        waiter
    }

    /// A lock that `one` holds, and a waiter of `other` in its queue.
    pub(crate) async fn contested(
        &self,
        one: &Locks,
        other: &Locks,
        lock: &str,
    ) -> (Guard, Waiter) {
        let held = acquire(one, lock).await;
        (held, self.queued(other, lock, 2).await)
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
    lost: JoinHandle<Guard>,
    granted: JoinHandle<(Moment, Guard)>,
}

/// How a lock changed hands when its holder was cut off.
pub(crate) struct Outcome {
    /// How long after the cut the hold ended.
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
        let (guard, next) = testbed.contested(holder, waiter, lock).await;
        let waiter = waiter.clone();
        Contest {
            lost: tokio::spawn(async move {
                guard.lost().await;
                guard
            }),
            granted: tokio::spawn(async move {
                let guard = until_granted(next).await;
                (waiter.now(), guard)
            }),
        }
    }

    /// Waits until the lock has changed hands after the cut, and asserts the guarantee itself: a
    /// hold that ends after the grant would mean two owners in between. The ends of holds are compared,
    /// by which `is_held` answers, and not when this process had a processor to hear of them.
    pub(crate) async fn decided(self, cut: Moment) -> Outcome {
        let loser = soon("the holder is notified", self.lost).await.expect("no panic");
        let (next, winner) = soon("the waiter is granted", self.granted).await.expect("no panic");
        let lost = loser.valid_until();
        assert!(lost < next, "held for {:?} after it was given away", lost.duration_since(next));
        assert!(!loser.is_held());
        assert_ends_in_time(&loser, cut, T);
        let (lost_after, granted_after) = (lost.duration_since(cut), next.duration_since(cut));
        Outcome { lost_after, granted_after, loser, winner }
    }
}

/// What was sent after the cut extends no hold.
pub(crate) fn assert_ends_in_time(guard: &Guard, cut: Moment, session: Duration) {
    let after = guard.valid_until().duration_since(cut);
    assert!(after <= session * 16 / 25, "held until {after:?} after the cut");
}

/// Whether this is a process of the test `name` alone, whose memory, descriptors and threads can be
/// measured. Runs one, and awaits its success, if not.
pub(crate) fn is_alone(name: &str) -> bool {
    const ALONE: &str = "FENCELOCK_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut process = std::process::Command::new(std::env::current_exe().expect("this program"));
    process.args(["--exact", name, "--nocapture"]).env(ALONE, "");
    let ended = process.output().expect("it starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}{said}", String::from_utf8_lossy(&ended.stdout));
    false
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
    GetData = 4,
    Multi = 14,
    Create = 15,
}

/// Whether the bytes of a request are of this operation.
pub(crate) fn is(op: Op) -> impl Fn(&[u8]) -> bool + Send + 'static {
    move |bytes| bytes.get(8..12) == Some(&(op as i32).to_be_bytes()[..])
}

/// Nothing can be seen, changed, deleted or created at or below `node`.
pub(crate) async fn no_right(client: &Client, node: &str) {
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let acl = [Acl::new(Permission::ALL, AuthId::anyone())];
    for refused in [
        client.list_children(node).await.map(drop),
        client.get_data(node).await.map(drop),
        client.set_data(node, b"", None).await.map(drop),
        client.set_acl(node, &acl, None).await.map(drop),
        client.create(&format!("{node}/a"), b"", &open).await.map(drop),
        client.delete(node, None).await,
    ] {
        assert!(matches!(refused, Err(ZkError::NoAuth)), "{node}: {refused:?}");
    }
}
