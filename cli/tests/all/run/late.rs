//! A job whose wrapper cannot write what it has to say starts on its lock, or not at all: two hundred times on each store.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use fencelock_testkit::deployments::{Kind, Wiring};
use rustix::fs::OFlags;
use rustix::termios::{Action, tcflow};

use crate::operator::every_store::LIBRARY;
use crate::support::{Scratch, terminal};

const ROUNDS: usize = 200;

mod long {
    use super::{Kind, starts_on_its_lock};

    on_stores! {
        starts_on_its_lock:
        #[ignore = "in ./test --long: two hundred rounds"]
        on_postgres(Kind::Postgres);
        #[ignore = "in ./test --long: two hundred rounds"]
        on_redis(Kind::Redis);
        #[ignore = "in ./test --long: two hundred rounds"]
        on_zookeeper(Kind::ZooKeeper);
    }
}

/// What a wrapper writes to, and what it waits for.
enum Blocked {
    /// Nobody reads its standard error, a pipe that is full.
    Pipe(File),
    /// Its terminal was stopped by Ctrl-S.
    Terminal(OwnedFd, OwnedFd),
    /// Its status goes to a file that takes nothing, as on a disk that hangs.
    Status(File),
}

impl Blocked {
    fn new(round: usize, here: &Scratch) -> (Blocked, Stdio) {
        if round.is_multiple_of(3) {
            let (reader, full) = rustix::pipe::pipe().expect("a pipe");
            let full = File::from(full);
            fill(&full);
            (Blocked::Pipe(File::from(reader)), full.into())
        } else if round % 3 == 1 {
            let (keys, screen) = terminal();
            tcflow(&screen, Action::OOff).expect("stopped");
            let out = screen.try_clone().expect("a copy");
            (Blocked::Terminal(keys, screen), out.into())
        } else {
            let (path, mode) = (here.path("status"), rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a pipe");
            // For reading too, so that it opens, and that nobody hangs up.
            let pipe = File::options().read(true).write(true).open(&path).expect("it opens");
            fill(&pipe);
            (Blocked::Status(pipe), Stdio::null())
        }
    }

    /// What was to be written can be.
    fn end(self) {
        match self {
            Blocked::Terminal(keys, screen) => {
                tcflow(&screen, Action::OOn).expect("continued");
                drop((keys, screen));
            }
            Blocked::Pipe(pipe) | Blocked::Status(pipe) => drop(pipe),
        }
    }
}

fn fill(mut pipe: &File) {
    let flags = rustix::fs::fcntl_getfl(pipe).expect("flags");
    rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK).expect("set");
    while pipe.write(&[b'.'; 4096]).is_ok() {}
    while pipe.write(b".").is_ok() {}
    rustix::fs::fcntl_setfl(pipe, flags).expect("set");
}

async fn starts_on_its_lock(kind: Kind) {
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let (here, url) = (Scratch::new(), store.url());
    let record = "echo $FENCELOCK_TOKEN >> log";
    for round in 0..ROUNDS {
        let status = here.path("status");
        let _ = std::fs::remove_file(&status);
        let (blocked, out) = Blocked::new(round, &here);
        let mut options = vec!["-v", "--url", &url];
        if kind != Kind::ZooKeeper {
            options.extend(["--ttl", "1s"]);
        }
        if let Blocked::Status(_) = blocked {
            options.extend(["--status-json", "status"]);
        }
        let mut holder = here.hold(&["--url", &url], "n");
        let mut first = here.run(&[&options[..], &["n", "--", "sh", "-c", record]].concat());
        let mut first = first.stdin(Stdio::null()).stderr(out).spawn().expect("it runs");
        here.until_waiting(&url, "n", 1);
        let mut next = here.start(&["--url", &url, "n", "--", "sh", "-c", record]);
        here.until_waiting(&url, "n", 2);
        holder.hang_up();
        assert_eq!((holder.code(), next.code()), (0, 0), "round {round}");
        blocked.end();
        let code = first.wait().expect("it ends").code();
        let log = std::fs::read_to_string(here.path("log")).expect("a log");
        let tokens: Vec<u64> = log.lines().map(|token| token.parse().expect("a token")).collect();
        assert!(tokens.is_sorted(), "round {round}, code {code:?}: a job began late: {log}");
        std::fs::remove_file(here.path("log")).expect("removed");
    }
}
