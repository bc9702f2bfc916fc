//! A process whose tasks all wait for one lock, to be killed or stopped: this program, executed
//! again.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use futures_util::future::join_all;

use crate::support::*;

pub(crate) const LOCK: &str = "crowded";

const URL: &str = "FENCELOCK_CROWD_URL";
const WAITERS: &str = "FENCELOCK_CROWD_WAITERS";

/// How many wait in it: `CROWD`, to be tried by hand, or `usual`.
pub(crate) fn size(usual: usize) -> usize {
    std::env::var("CROWD").map_or(usual, |text| text.parse().expect("a number"))
}

/// How such a process comes to say no more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Killed,
    Stopped,
}

/// The process. Dropping it kills it.
pub(crate) struct Crowd(Child);

impl Crowd {
    /// Begins to wait for [`LOCK`] in the store of `url`.
    pub(crate) fn start(url: &str, waiters: usize) -> Crowd {
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

    pub(crate) fn end(&mut self, end: End) {
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
