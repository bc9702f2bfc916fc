//! One server for the processes of a run, which ends with the last of them, however they end.
//!
//! The processes are this program, with one of its tests. Each of the tests below has a link of its
//! own to the server's program, so that no other test program of the run uses its server.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fencelock_testkit::servers::{SharedKind, SharedServer};

/// Names the program of Redis servers.
const PROGRAM: &str = "FENCELOCK_REDIS_SERVER";
/// Names the directory above PostgreSQL's programs.
const POSTGRES: &str = "FENCELOCK_POSTGRES";
/// Far longer than a server outlives its last user.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "a process of the other tests, not a test"]
async fn user() {
    let kind = match std::env::var_os(POSTGRES) {
        Some(_) => SharedKind::Postgres,
        None => SharedKind::Redis,
    };
    let server = SharedServer::join(kind).await.unwrap();
    println!("\nuses {} {}", server.port(), server.directory().display());
    // Until the test ends this process, or has no more use for it.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that uses the server.
struct User {
    process: Child,
    output: BufReader<ChildStdout>,
    port: u16,
    directory: PathBuf,
}

impl User {
    fn command(program: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "user", "--ignored", "--nocapture"]).env_remove(POSTGRES);
        command.env(if program.is_dir() { POSTGRES } else { PROGRAM }, program);
        command
    }

    fn start(program: &Path) -> Child {
        let mut command = User::command(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn joined(mut process: Child) -> User {
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("uses ")).expect("the process joins");
        let mut words = line.split(' ').skip(1);
        let port = words.next().unwrap().parse().unwrap();
        let directory = words.next().unwrap().into();
        User { process, output, port, directory }
    }

    fn join(program: &Path) -> User {
        User::joined(User::start(program))
    }

    /// Ends the process by SIGKILL: none of its destructors run.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Lets the process end by itself.
    fn leave(mut self) {
        drop(self.process.stdin.take());
        self.output.read_to_end(&mut Vec::new()).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

fn link(test: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|place| place.join("redis-server"));
    let program = places.find(|program| program.is_file()).expect("redis-server is installed");
    let link = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-server-of-{test}"));
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(program, &link).unwrap();
    link
}

/// A directory with a link to PostgreSQL's programs.
fn link_postgres(test: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let bin = versions.map(|version| version.unwrap().path().join("bin")).max().unwrap();
    let link = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("postgres-of-{test}"));
    std::fs::create_dir_all(&link).unwrap();
    let _ = std::fs::remove_file(link.join("bin"));
    std::os::unix::fs::symlink(bin, link.join("bin")).unwrap();
    link
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn processes_share_one_server_until_the_last_is_killed_and_the_next_has_another() {
    let program = link("shared");
    let starting: Vec<Child> = (0..4).map(|_| User::start(&program)).collect();
    let mut users: Vec<User> = starting.into_iter().map(User::joined).collect();
    let (port, directory) = (users[0].port, users[0].directory.clone());
    assert!(users.iter().all(|user| user.directory == directory && user.port == port));
    // The one that started it may be among these.
    for user in users.drain(..3) {
        user.kill();
    }
    let late = User::join(&program);
    assert_eq!(late.directory, directory);
    users.pop().unwrap().kill();
    assert!(answers(port), "it has a user");
    late.kill();
    until("the server's directory is deleted", || !directory.exists());
    assert!(!answers(port), "the server ends before its directory");
    assert_ne!(User::join(&program).directory, directory);
}

/// It runs as another user, if this is root, and has processes and shared memory that must end with it.
#[test]
fn a_postgres_server_is_shared_and_ends_with_all_its_processes() {
    let program = link_postgres("shared");
    let first = User::join(&program);
    let second = User::join(&program);
    assert_eq!((second.port, &second.directory), (first.port, &first.directory));
    let pid = std::fs::read_to_string(first.directory.join("pid")).unwrap();
    let is_of_server = |id: &str| parent(id) == pid.trim();
    let all = || std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let processes = all().filter(|id| id.to_str().is_some_and(|id| id.parse::<u32>().is_ok()));
    let processes: Vec<_> = processes.map(|id| id.into_string().unwrap()).collect();
    let backends: Vec<_> = processes.into_iter().filter(|id| is_of_server(id)).collect();
    assert!(backends.len() >= 3, "{backends:?}");
    let (port, directory) = (first.port, first.directory.clone());
    first.kill();
    assert!(answers(port), "it has a user");
    second.leave();
    until("the server's directory is deleted", || !directory.exists());
    assert!(!answers(port) && !backends.iter().any(|id| is_of_server(id)));
}

#[test]
fn a_missing_program_is_reported_with_the_variable_that_names_it() {
    let output = User::command(Path::new("/nonexistent/redis")).output().unwrap();
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.contains("/nonexistent/redis") && output.contains(PROGRAM), "{output}");
}

#[test]
fn a_server_that_died_is_replaced() {
    let program = link("died");
    let first = User::join(&program);
    let pid = std::fs::read_to_string(first.directory.join("pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("the server has ended", || first.directory.join("exited").exists());
    let second = User::join(&program);
    assert_ne!(second.directory, first.directory);
    assert!(answers(second.port));
    let directories = [first.directory.clone(), second.directory.clone()];
    first.leave();
    second.leave();
    for directory in directories {
        until("both directories are deleted", || !directory.exists());
    }
}

/// The process that started the process `id`.
fn parent(id: &str) -> String {
    // Empty once it has ended.
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or_default();
    line.trim().to_owned()
}

#[test]
fn a_keeper_that_is_told_to_end_still_ends_its_server() {
    let program = link("told");
    let user = User::join(&program);
    let server = std::fs::read_to_string(user.directory.join("pid")).unwrap();
    let keeper = parent(&parent(server.trim()));
    let keeper = rustix::process::Pid::from_raw(keeper.parse().unwrap()).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::TERM).unwrap();
    let (port, directory) = (user.port, user.directory.clone());
    user.leave();
    until("the server's directory is deleted", || !directory.exists());
    assert!(!answers(port), "the server ends before its directory");
}

#[test]
fn a_server_whose_directory_was_deleted_still_ends() {
    let program = link("deleted");
    let first = User::join(&program);
    std::fs::remove_dir_all(&first.directory).unwrap();
    // Others get a new one.
    let second = User::join(&program);
    assert_ne!(second.port, first.port);
    let (port, directory) = (first.port, second.directory.clone());
    first.leave();
    until("the first server ends", || !answers(port));
    second.leave();
    until("the second server's directory is deleted", || !directory.exists());
}
