//! The command, run to its end or interrupted. All waits are for events, up to a bound that only a hang reaches.

use std::process::{Output, Stdio};
use std::time::Duration;

use fencelock_testkit::servers::TestRedis;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Longer than a test takes on a machine at a load of 30.
pub(crate) const HANG: Duration = Duration::from_secs(300);
/// The URL of a server that does not exist, with a password, and with little patience.
pub(crate) const ABSENT: &str = "redis://:correct-horse@127.0.0.1:1?unreachable_after=2s";

pub(crate) fn command(subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.arg(subcommand).args(arguments).env_remove("RUST_LOG").kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) async fn output(command: &mut Command) -> Output {
    timeout(HANG, command.output()).await.expect("it ends").expect("it runs")
}

/// Sends `signal` to the command, and returns what it printed until its end.
pub(crate) async fn interrupt(child: Child, signal: Signal) -> Output {
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it runs");
    kill_process(pid, signal).expect("it runs");
    timeout(HANG, child.wait_with_output()).await.expect("it ends").expect("it has ended")
}

/// Waits until `is_so`.
pub(crate) async fn until(is_so: impl AsyncFn() -> bool) {
    let is_so = async {
        while !is_so().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, is_so).await.expect("it becomes so");
}

/// Output and error output.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Exit code, output and error output.
pub(crate) fn ended(output: &Output) -> (i32, String) {
    (output.status.code().expect("it exits"), said(output))
}

/// A server that another client uses too, with one key.
pub(crate) async fn server_in_use() -> TestRedis {
    let server = TestRedis::start().await.expect("a redis-server starts");
    server.command(&["SET", "lock:orders", "1"]).await.expect("it answers");
    server
}

pub(crate) async fn keys(server: &TestRedis) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).await.expect("it answers");
    let mut keys: Vec<String> = keys.lines().map(str::to_owned).collect();
    keys.sort();
    keys
}
