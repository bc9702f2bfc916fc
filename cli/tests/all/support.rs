//! Jobs in scratch stores, and terminals for them. Everything waits on events, up to a bound that
//! only a hang reaches.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use fencelock_testkit::servers::TestRedis;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const HANG: Duration = Duration::from_secs(40);

/// A store of its own, and a directory to leave traces in.
pub(crate) struct Scratch {
    directory: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        reset_signals();
        Scratch { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path("locks").display())
    }

    /// `fencelock run` with these arguments, in this store.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        self.command("run", arguments)
    }

    /// A command of `fencelock` with these arguments, in this store.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, name: &str, arguments: &[S]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_fencelock"));
        command.arg(name).args(arguments);
        command
    }

    /// `fencelock run` with these arguments, started by another program, which gets it as its last arguments.
    pub(crate) fn run_by(&self, before: &[&str], arguments: &[&str]) -> Command {
        let mut command = self.program(before[0]);
        command.args(&before[1..]).arg(env!("CARGO_BIN_EXE_fencelock")).arg("run").args(arguments);
        command
    }

    /// A program in the directory and the environment of this store's commands.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env("FENCELOCK_URL", self.url())
            .env_remove("FENCELOCK_HELD")
            .env_remove("FENCELOCK_REACH")
            .env_remove("FENCELOCK_URL_FILE")
            // In place of this machine's and this user's files.
            .env("FENCELOCK_CONFIG", "/dev/null")
            .env_remove("RUST_LOG");
        command
    }

    /// Its output, after its end.
    pub(crate) fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        self.run(arguments).stdin(Stdio::null()).output().expect("it runs")
    }

    /// Its exit code.
    pub(crate) fn code<S: AsRef<OsStr> + Debug>(&self, arguments: &[S]) -> i32 {
        let output = self.output(arguments);
        let code = output.status.code();
        code.unwrap_or_else(|| panic!("{arguments:?} did not exit: {output:?}"))
    }

    /// What it says before it exits with `code`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let (exit, _, error) = said(&self.output(arguments));
        assert_eq!(exit, code, "{arguments:?}: {error}");
        error
    }

    /// Starts a job.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Job {
        Job::start(&mut self.run(arguments))
    }

    /// A job whose command is a script.
    pub(crate) fn bash(&self, options: &[&str], script: &str) -> Job {
        self.start(&[options, &["job", "--", "bash", "-c", script]].concat())
    }

    /// A job that holds the lock `name` until its standard input ends.
    pub(crate) fn hold(&self, options: &[&str], name: &str) -> Job {
        let mut arguments = options.to_vec();
        arguments.extend([name, "--", "sh", "-c", "echo held; exec cat"]);
        let job = self.start(&arguments);
        assert_eq!(job.line(), "held");
        job
    }

    /// Evicts the holder of the lock `name`, like an operator.
    pub(crate) fn take_away(&self, name: &str) {
        let mut taken = self.command("break", &[name, "--reason", "a test", "--yes"]);
        assert_eq!(taken.output().expect("it runs").status.code(), Some(0), "it was held");
    }

    /// Takes the lock away from a job that is up, which ends with all that it has started.
    #[track_caller]
    pub(crate) fn loses(&self, job: &mut Job) {
        assert_eq!(job.line(), "up");
        self.take_away("job");
        assert_eq!(job.code(), 79);
        assert_eq!(job.silence(), [""; 0]);
    }

    /// How many wait for the lock `name` of a store.
    pub(crate) fn waiters(&self, url: &str, name: &str) -> usize {
        let show = self.command("show", &["-u", url, name, "--json"]).output().expect("it runs");
        let seen: Value = serde_json::from_slice(&show.stdout).expect("JSON");
        seen["waiters"].as_array().expect("a list").len()
    }

    pub(crate) fn until_waiting(&self, url: &str, name: &str, waiters: usize) {
        eventually("others wait", || self.waiters(url, name) == waiters);
    }

    /// A job in a process namespace of its own, with its `/proc`; `None` where this system allows none. It is
    /// started by `before`, as its first process.
    pub(crate) fn in_container(&self, before: &[&str], arguments: &[&str]) -> Option<Job> {
        const CONTAINER: [&str; 7] = [
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ];
        let tried = Command::new(CONTAINER[0]).args(&CONTAINER[1..]).arg("true").status();
        if !tried.is_ok_and(|end| end.success()) {
            eprintln!("NOT TESTED: this system allows no process namespaces");
            return None;
        }
        Some(Job::start(&mut self.run_by(&[&CONTAINER, before].concat(), arguments)))
    }
}

/// The exit code, what was printed, and what was said.
pub(crate) fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code().expect("it exits"), text(&output.stdout), text(&output.stderr))
}

/// A store whose locks end with their leases, for all processes that know its URL.
pub(crate) async fn redis() -> TestRedis {
    TestRedis::start().await.expect("a redis-server starts")
}

/// A directory, and such a store with its URL.
pub(crate) async fn on_redis() -> (Scratch, TestRedis, String) {
    let server = redis().await;
    let url = server.url();
    (Scratch::new(), server, url)
}

/// A program that a shell starts with `&` ignores SIGINT and SIGQUIT, with `nohup` SIGHUP, and so
/// would the jobs of these tests. A signal that is caught here has its default in them.
fn reset_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [Signal::INT, Signal::QUIT, Signal::HUP] {
            let yes = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_default(signal.as_raw(), yes)
                .expect("a signal that can be caught");
        }
    });
}

/// A process and the lines of its output.
pub(crate) struct Job {
    child: Child,
    lines: Receiver<String>,
}

impl Job {
    pub(crate) fn start(command: &mut Command) -> Job {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let output = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Job { child, lines }
    }

    pub(crate) fn pid(&self) -> Pid {
        pid(&self.child.id().to_string())
    }

    pub(crate) fn send(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("it is there");
    }

    /// The next line that it prints.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(HANG).expect("another line")
    }

    /// Waits until every process that inherited its output is gone. Returns the lines printed until
    /// then.
    pub(crate) fn silence(&self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("a process still has the output open"),
            }
        }
    }

    /// Writes to its standard input.
    pub(crate) fn write(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("not hung up");
        stdin.write_all(text.as_bytes()).expect("a reader");
    }

    /// Ends its standard input.
    pub(crate) fn hang_up(&mut self) {
        self.child.stdin = None;
    }

    /// Its exit code, after the end of its standard input.
    pub(crate) fn hung_up(&mut self) -> i32 {
        self.hang_up();
        self.code()
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }

    pub(crate) fn code(&mut self) -> i32 {
        let status = self.end();
        status.code().unwrap_or_else(|| panic!("ended by signal {:?}", status.signal()))
    }

    /// The first line of its standard error, and with it perhaps more.
    pub(crate) fn complaint(&mut self) -> String {
        let mut text = String::new();
        BufReader::new(self.child.stderr.as_mut().expect("piped"))
            .read_line(&mut text)
            .expect("text");
        text
    }

    /// Its standard error, once it has ended.
    pub(crate) fn complaints(&mut self) -> String {
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn pid(text: &str) -> Pid {
    text.trim().parse().ok().and_then(Pid::from_raw).expect("a process id")
}

/// Waits until `so` returns `true`.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HANG, "{what}: not after {HANG:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The state letter of a process in `/proc`, `None` if it does not exist.
pub(crate) fn state(process: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

pub(crate) fn is_dead(process: Pid) -> bool {
    state(process).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// The processes whose parent is `parent`.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let number = parent.as_raw_pid();
    let list = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children"));
    list.unwrap_or_default().split_whitespace().map(pid).collect()
}

/// A new terminal: its keys and screen as a person has them, and the side that programs have.
pub(crate) fn terminal() -> (OwnedFd, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).expect("granted");
    unlockpt(&master).expect("unlocked");
    let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).expect("a size");
    let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("text");
    // Which must not become that of this process.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = rustix::fs::open(name, flags, Mode::empty()).expect("its other side");
    (master, screen)
}

/// An interactive shell on a terminal of its own.
pub(crate) struct Shell {
    child: Child,
    keys: File,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Shell {
    pub(crate) fn start(scratch: &Scratch) -> Shell {
        let (master, screen) = terminal();
        let slave = || Stdio::from(screen.try_clone().expect("a copy"));
        let bin = PathBuf::from(env!("CARGO_BIN_EXE_fencelock"));
        let child = Command::new("setsid")
            .args(["--ctty", "bash", "--norc", "--noprofile", "-i"])
            .current_dir(scratch.directory.path())
            .env("FENCELOCK_URL", scratch.url())
            .env("PATH", format!("{}:/usr/bin:/bin", bin.parent().expect("a directory").display()))
            .env("PS1", "READY> ")
            .env("HISTFILE", "")
            .env("TERM", "xterm")
            .env("FENCELOCK_CONFIG", "/dev/null")
            .env_remove("FENCELOCK_HELD")
            .env_remove("FENCELOCK_REACH")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .expect("util-linux setsid and bash");
        let keys = File::from(master);
        let mut screen = keys.try_clone().expect("a copy");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = screen.read(&mut buffer) {
                if length == 0 || sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut shell = Shell { child, keys, output, seen: String::new() };
        shell.expect("READY> ");
        shell
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Types a line. Whether it is echoed depends on the moment; what is expected next must not
    /// be in it.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\n"));
    }

    /// Waits until `text` is on the screen; returns what came before it.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return before;
            }
            match self.output.recv_timeout(HANG) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} on the screen, but: {:?}", self.seen),
            }
        }
    }

    /// Types a line, and waits until `text` is on the screen.
    pub(crate) fn shows(&mut self, line: &str, text: &str) {
        self.line(line);
        self.expect(text);
    }

    /// Waits until `text` is on the screen, and then the prompt; returns what came between them.
    pub(crate) fn answers(&mut self, text: &str) -> String {
        self.expect(text);
        self.expect("READY> ")
    }

    /// Types a line, and waits for its answer.
    pub(crate) fn asked(&mut self, line: &str, answer: &str) {
        self.line(line);
        self.answers(answer);
    }

    /// Checks the exit code of the last line.
    pub(crate) fn exited(&mut self, code: i32) {
        self.asked("echo co''de:$?", &format!("code:{code}\r\n"));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
