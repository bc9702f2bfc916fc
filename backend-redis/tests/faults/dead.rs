//! Many waiters of a process that is killed or stopped: they delay the others by seconds, not minutes.
//!
//! The process is this program, executed again. The tests of the store on one server and those of a
//! quorum share this file; `dead_store` is the store.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencelock_testkit::servers::TestRedis;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::dead_store::{DeadStore, WAITERS};
use crate::support::*;

const LOCK: &str = "many";

/// Long enough for this many tasks on a busy machine.
const QUEUED_WITHIN: Duration = PATIENCE.saturating_mul(3);

const URL_VARIABLE: &str = "FENCELOCK_TEST_URL";
/// The number of waiters; set by hand to try more.
const WAITERS_VARIABLE: &str = "FENCELOCK_TEST_WAITERS";

/// The signal that stops the requests of the process.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    Stopped,
}

/// A process whose tasks all wait for [`LOCK`]. Dropping it kills it.
struct WaitingProcess(Child);

impl WaitingProcess {
    fn start(url: &str, waiters: usize) -> WaitingProcess {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "dead::child_that_waits", "--ignored"])
            .env(URL_VARIABLE, url)
            .env(WAITERS_VARIABLE, waiters.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        WaitingProcess(child.expect("a process"))
    }

    async fn end(&mut self, end: End) {
        match end {
            End::Killed => self.kill(),
            End::Stopped => stop_process(&self.0).await,
        }
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether exactly `waiters` are queued at a majority of `nodes`.
async fn are_waiting(nodes: &[TestRedis], waiters: usize) -> bool {
    let queue = format!("{{lock:{LOCK}}}:q");
    let mut agreeing = 0;
    for node in nodes {
        let count = redis_command(node, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
        agreeing += usize::from(count == waiters.to_string());
    }
    agreeing > nodes.len() / 2
}

/// One waiter is queued after those of the process, which ends before the lock is released.
async fn after_waiters_that_end(end: End, freed_at_once: bool) {
    let waiters = std::env::var(WAITERS_VARIABLE);
    let waiters = waiters.map_or(WAITERS, |text| text.parse().expect("a number"));
    let store = DeadStore::start().await;
    let locks = store.locks().await;
    let wait = async |waiters: usize| {
        until(&format!("{waiters} wait"), async || are_waiting(store.nodes(), waiters).await).await;
    };
    let held = acquire(&locks, LOCK).await;
    let mut process = WaitingProcess::start(&store.url(), waiters);
    let queued = async {
        while !are_waiting(store.nodes(), waiters).await {
            tokio::time::sleep(ms(20)).await;
        }
    };
    within(QUEUED_WITHIN, "all of the process wait", queued).await;
    let waiter = spawn_waiter(&locks, LOCK);
    wait(waiters + 1).await;
    process.end(end).await;
    if !freed_at_once {
        // Checks remove dead waiters while the lock is held, too.
        wait(1).await;
    }
    let freed = Instant::now();
    release(held).await;
    let guard = until_granted(waiter).await;
    println!("{waiters} {end:?}, freed at once: {freed_at_once}: {:?}", freed.elapsed());
    release(guard).await;
    drop(process);
    store.drained().await;
}

/// All waiters of a process that ends are removed together, even before its end is certain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_killed_process_delay_the_others_by_seconds() {
    after_waiters_that_end(End::Killed, true).await;
    after_waiters_that_end(End::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_stopped_process_delay_the_others_by_seconds() {
    after_waiters_that_end(End::Stopped, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by WaitingProcess::start"]
async fn child_that_waits() {
    let url = std::env::var(URL_VARIABLE).expect("a store");
    let waiters = std::env::var(WAITERS_VARIABLE).expect("a number");
    let waiters: usize = waiters.parse().expect("a number");
    // Ends with its parent, however that ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let locks = connect(&url).await;
    join_all((0..waiters).map(|_| spawn_waiter(&locks, LOCK))).await;
}
