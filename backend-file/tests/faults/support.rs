//! Real processes for tests: the test binary itself, started again with a command.
//!
//! Parent and child exchange lines, so that no test relies on sleeping. The child runs the test
//! `child_process` of main.rs, which does nothing unless it was started with a command.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use fencelock_core::{Guard, Lock, Locks, Settings};
use fencelock_file::FileStore;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

/// A time limit that nothing exceeds on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

const COMMAND: &str = "FENCELOCK_TEST_COMMAND";

/// A directory for one test's locks.
pub(crate) fn directory() -> tempfile::TempDir {
    // The hundreds of stores and waiters of one test, and those of the tests beside it, are more
    // than the usual soft limit allows.
    static FILES: Once = Once::new();
    FILES.call_once(|| {
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    });
    tempfile::tempdir().unwrap()
}

pub(crate) async fn connect(dir: &Path) -> Locks {
    FileStore::at(dir).locks(Settings::default()).await.unwrap()
}

/// A directory for one test's locks, and a client of them.
pub(crate) async fn store() -> (tempfile::TempDir, Locks) {
    let dir = directory();
    let locks = connect(dir.path()).await;
    (dir, locks)
}

/// A child process that runs a command.
pub(crate) struct TestProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl TestProcess {
    /// Starts the test `child_process` of this binary with the command `line`.
    pub(crate) fn holding(dir: &Path, line: &str) -> TestProcess {
        let mut process = TestProcess::start(dir, line);
        process.holds();
        process
    }

    pub(crate) fn start(dir: &Path, line: &str) -> TestProcess {
        TestProcess::spawn(&mut Command::new(std::env::current_exe().unwrap()), dir, line)
    }

    /// Waits for the lock `x`, as the last of `waiters`.
    pub(crate) async fn queued(dir: &Path, locks: &Locks, waiters: usize) -> TestProcess {
        let process = TestProcess::start(dir, "hold x exclusive");
        until_queue_is(locks, "x", 1, waiters).await;
        process
    }

    /// Like [`start`](TestProcess::start), as the last argument of the command `tracer`.
    pub(crate) fn start_under(mut tracer: Command, dir: &Path, line: &str) -> TestProcess {
        TestProcess::spawn(tracer.arg(std::env::current_exe().unwrap()), dir, line)
    }

    /// Like [`start`](TestProcess::start), as user `uid`, in the first of `groups` or in a group
    /// with the user's number.
    pub(crate) fn start_as(dir: &Path, line: &str, uid: u32, groups: &[u32]) -> TestProcess {
        // That user may have no access to the path of this binary.
        static COPY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
        let (_, exe) = COPY.get_or_init(|| {
            let dir = directory();
            let exe = dir.path().join("copy");
            // By another process: what this one has open for writing, children of other tests have open for a
            // moment too, and it is "busy".
            let copied =
                Command::new("install").arg(std::env::current_exe().unwrap()).arg(&exe).status();
            assert!(copied.unwrap().success());
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
            (dir, exe)
        });
        let gid = groups.first().copied().unwrap_or(uid);
        // Started by root, it gives up root's other groups with its user id.
        TestProcess::spawn(Command::new(exe).current_dir("/").uid(uid).gid(gid), dir, line)
    }

    fn spawn(command: &mut Command, dir: &Path, line: &str) -> TestProcess {
        let mut child = command
            .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
            .env(COMMAND, format!("{}\n{line}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        TestProcess { child, stdin, stdout }
    }

    /// The next line that it reports, or `None` when it has ended.
    pub(crate) fn read_line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness prints lines of its own, one without a line break.
            if let Some((_, reported)) = line.split_once('@') {
                return Some(reported.trim_end().to_owned());
            }
        }
    }

    pub(crate) fn expect(&mut self, word: &str) -> String {
        let line = self.read_line().unwrap_or_else(|| panic!("ended before it reported {word}"));
        match line.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("reported {line:?}, expected {word}"),
        }
    }

    /// Of the command `hold`, which waits for nothing but the lock: the token.
    pub(crate) fn holds(&mut self) -> String {
        self.expect("begins");
        self.expect("held")
    }

    pub(crate) fn release(&mut self) {
        self.send("release");
        self.expect("released");
    }

    /// Its child inherits the lock's descriptor.
    pub(crate) fn pass_on(&mut self) -> Pid {
        self.send("pass on");
        Pid::from_raw(self.expect("child").parse().unwrap()).unwrap()
    }

    pub(crate) fn send(&mut self, word: &str) {
        writeln!(self.stdin, "{word}").unwrap();
        self.stdin.flush().unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) async fn stop(&self) {
        fencelock_testkit::helpers::stop_process(&self.child).await;
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.signal().is_some() || status.success());
    }

    /// Waits until it ends by itself, successfully.
    pub(crate) fn end(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command that this process was started with, if any.
pub(crate) fn run_child(run: impl FnOnce(&Path, &[&str])) {
    let Ok(child_process) = std::env::var(COMMAND) else { return };
    let (dir, line) = child_process.split_once('\n').unwrap();
    run(Path::new(dir), &line.split(' ').collect::<Vec<_>>());
}

pub(crate) fn report(line: impl std::fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "@{line}").unwrap();
    stdout.flush().unwrap();
}

pub(crate) fn read_command() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line).unwrap() {
        0 => None,
        _ => Some(line.trim_end().to_owned()),
    }
}

pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// The lock `name` in mode `exclusive`, `shared` or `permits:N:LIMIT`.
pub(crate) fn lock(locks: &Locks, name: &str, mode: &str) -> Lock {
    match mode.split(':').collect::<Vec<_>>()[..] {
        ["exclusive"] => locks.lock(name),
        ["shared"] => locks.rw_lock(name).read(),
        ["permits", n, limit] => {
            locks.semaphore(name, limit.parse().unwrap()).permits(n.parse().unwrap())
        }
        _ => panic!("unknown mode {mode}"),
    }
}

/// The command `hold NAME MODE`: reports `held TOKEN` when it holds, and releases on the command `release`.
pub(crate) fn hold(dir: &Path, name: &str, mode: &str) {
    in_runtime(async {
        let locks = connect(dir).await;
        report("begins");
        let guard = lock(&locks, name, mode).acquire().await.unwrap();
        report(format_args!("held {}", guard.fencing_token()));
        follow_commands(guard).await;
        locks.close().await.unwrap();
    });
}

async fn follow_commands(guard: Guard) {
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Some(command) = read_command() {
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    while let Some(command) = commands.recv().await {
        match &*command {
            "pass on" => pass_on(&guard),
            "release" => {
                let released = guard.release().await;
                report(if released.is_ok() { "released" } else { "not held" });
                return;
            }
            _ => return,
        }
    }
}

/// Starts a child that inherits the lock's descriptor, and reports its pid.
// The child has to outlive this process.
#[allow(clippy::zombie_processes)]
fn pass_on(guard: &Guard) {
    let copy = rustix::io::dup(guard.keep_alive().unwrap()).unwrap();
    let child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    drop(copy);
    report(format_args!("child {}", child.id()));
}

/// Polls until `done`, for changes by another process.
pub(crate) async fn until<T>(what: &str, mut done: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = done().await {
            return result;
        }
        assert!(start.elapsed() < LONG, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until `name` has this many holders and waiters.
pub(crate) async fn until_queue_is(locks: &Locks, name: &str, holders: usize, waiters: usize) {
    until(&format!("{holders} holders and {waiters} waiters"), async || {
        let seen = locks.inspect(name).await.unwrap();
        (seen.holders.len() == holders && seen.waiters.len() == waiters).then_some(())
    })
    .await;
}

/// The page of the lock `x`: the named pipe in whose buffer its queue is.
pub(crate) const PAGE: &str = "lock%3Ax/q";

pub(crate) fn page(dir: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(dir.join(PAGE)).unwrap()
}

/// Whether this user is root, to whom no permission is denied.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
