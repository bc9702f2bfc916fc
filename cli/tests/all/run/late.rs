//! A job whose wrapper cannot write what it has to say starts on its lock, or not at all: two hundred times on each store.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
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

/// What a wrapper writes to, and what it waits for once that takes nothing.
enum Output {
    /// Its standard error, which nobody reads.
    Pipe { reader: File, writer: File },
    /// Its terminal, which is stopped as by Ctrl-S.
    Terminal { _keys: OwnedFd, screen: OwnedFd },
    /// A status file on a disk that hangs.
    Status(File),
}

impl Output {
    fn new(round: usize, here: &Scratch) -> (Output, Stdio) {
        // A file of its own, so that the wrapper's own one keeps its flags.
        let nonblocking = |path: PathBuf| {
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            File::options().read(true).write(true).custom_flags(flags).open(path).expect("it opens")
        };
        if round.is_multiple_of(3) {
            let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
            let own = nonblocking(format!("/proc/self/fd/{}", writer.as_raw_fd()).into());
            (Output::Pipe { reader: reader.into(), writer: own }, writer.into())
        } else if round % 3 == 1 {
            let (keys, screen) = terminal();
            let out = screen.try_clone().expect("a copy");
            (Output::Terminal { _keys: keys, screen }, out.into())
        } else {
            let (path, mode) = (here.path("status"), rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a pipe");
            (Output::Status(nonblocking(path)), Stdio::null())
        }
    }

    fn block(&self) {
        match self {
            Output::Terminal { screen, .. } => tcflow(screen, Action::OOff).expect("stopped"),
            Output::Pipe { writer: pipe, .. } | Output::Status(pipe) => {
                let mut pipe = pipe;
                while pipe.write(&[b'.'; 4096]).is_ok() {}
                while pipe.write(b".").is_ok() {}
            }
        }
    }

    /// What was to be written can be.
    fn unblock(self) {
        match self {
            Output::Terminal { screen, .. } => tcflow(&screen, Action::OOn).expect("continued"),
            Output::Status(pipe) => drop(pipe),
            Output::Pipe { mut reader, writer } => {
                drop(writer);
                std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            }
        }
    }
}

async fn starts_on_its_lock(kind: Kind) {
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let (here, url) = (Scratch::new(), store.url());
    let record = "echo $FENCELOCK_TOKEN >> log";
    for round in 0..ROUNDS {
        let status = here.path("status");
        let _ = std::fs::remove_file(&status);
        let (output, stderr) = Output::new(round, &here);
        let mut options = vec!["-v", "--url", &url];
        if kind != Kind::ZooKeeper {
            options.extend(["--ttl", "1s"]);
        }
        if let Output::Status(_) = output {
            options.extend(["--status-json", "status"]);
        }
        let mut holder = here.hold(&["--url", &url], "n");
        let mut first = here.run(&[&options[..], &["n", "--", "sh", "-c", record]].concat());
        let mut first = first.stdin(Stdio::null()).stderr(stderr).spawn().expect("it runs");
        here.until_waiting(&url, "n", 1);
        output.block();
        let mut next = here.start(&["--url", &url, "n", "--", "sh", "-c", record]);
        here.until_waiting(&url, "n", 2);
        holder.hang_up();
        assert_eq!((holder.code(), next.code()), (0, 0), "round {round}");
        output.unblock();
        let code = first.wait().expect("it ends").code();
        let log = std::fs::read_to_string(here.path("log")).expect("a log");
        let tokens: Vec<u64> = log.lines().map(|token| token.parse().expect("a token")).collect();
        assert!(tokens.is_sorted(), "round {round}, code {code:?}: a job began late: {log}");
        std::fs::remove_file(here.path("log")).expect("removed");
    }
}
