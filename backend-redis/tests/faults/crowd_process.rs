//! A process whose tasks all wait for one lock, to be killed or stopped: this program, executed
//! again. What it may cost those who live.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencelock_core::Locks;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::support::*;

pub(crate) const LOCK: &str = "crowded";

/// For so many tasks on a busy machine.
const LONG: Duration = PATIENCE.saturating_mul(3);

const URL: &str = "FENCELOCK_CROWD_URL";
const WAITERS: &str = "FENCELOCK_CROWD_WAITERS";

/// Enough for minutes, were they passed over at the pace of looks.
const SIZE: usize = 3000;

/// How such a process comes to say no more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Killed,
    Stopped,
}

/// The process. Dropping it kills it.
struct Crowd(Child);

impl Crowd {
    /// Begins to wait for [`LOCK`] in the store of `url`.
    fn start(url: &str, waiters: usize) -> Crowd {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "crowd_process::child_that_waits", "--ignored"])
            .env(URL, url)
            .env(WAITERS, waiters.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Crowd(child.expect("a process"))
    }

    fn end(&mut self, end: End) {
        match end {
            End::Killed => self.kill(),
            End::Stopped => {
                let id = self.0.id().to_string();
                let stopped = Command::new("kill").args(["-STOP", &id]).status();
                assert!(stopped.expect("kill runs").success());
            }
        }
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A lock that is held, with a crowd of another process in its queue and one who lives behind it:
/// how long that one waits once the crowd is gone and the lock is free. `waiting` counts the queue.
pub(crate) async fn behind_a_crowd(
    locks: &Locks,
    url: &str,
    waiting: impl AsyncFn() -> usize,
    end: End,
    freed_at_once: bool,
) {
    // More are tried by hand.
    let size = std::env::var("CROWD").map_or(SIZE, |text| text.parse().expect("a number"));
    let held = hold(locks, LOCK).await;
    let mut crowd = Crowd::start(url, size);
    queue(&waiting, size).await;
    let waiter = wait_for(locks, LOCK);
    queue(&waiting, size + 1).await;
    crowd.end(end);
    if !freed_at_once {
        // Those who look pass over the dead while the lock is held, too.
        queue(&waiting, 1).await;
    }
    let freed = Instant::now();
    give_back(held).await;
    let guard = granted(waiter).await;
    println!("{size} {end:?}, freed at once: {freed_at_once}: {:?}", freed.elapsed());
    give_back(guard).await;
}

async fn queue(waiting: &impl AsyncFn() -> usize, waiters: usize) {
    let all = async {
        while waiting().await != waiters {
            tokio::time::sleep(ms(20)).await;
        }
    };
    within(LONG, &format!("{waiters} wait"), all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by Crowd::start"]
async fn child_that_waits() {
    let url = std::env::var(URL).expect("a store");
    let waiters: usize = std::env::var(WAITERS).expect("a number").parse().expect("a number");
    // It does not outlive its parent, whatever becomes of that.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let locks = connect(&url).await;
    join_all((0..waiters).map(|_| wait_for(&locks, LOCK))).await;
}
