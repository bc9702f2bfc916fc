//! The command, run to its end or interrupted. Everything waits on events, up to a bound that only
//! a hang reaches.

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// Longer than a few behaviours take on a busy machine.
const HANG: Duration = Duration::from_secs(180);

fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.arg("conformance").args(arguments).env("FENCELOCK_URL", url).env_remove("RUST_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Its exit code, and what it said.
pub(crate) async fn run(url: &str, arguments: &[&str]) -> (i32, String) {
    let output = timeout(HANG, command(url, arguments).output()).await.expect("it ends");
    let output = output.expect("it runs");
    (output.status.code().expect("it exits"), text(&output))
}

/// Sends `signal` as soon as `is_in_use` says that the suite has created something; returns its output.
pub(crate) async fn interrupt(
    url: &str,
    signal: Signal,
    is_in_use: impl AsyncFn() -> bool,
) -> String {
    let child = command(url, &[]).spawn().expect("it runs");
    let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it runs");
    let used = async {
        while !is_in_use().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, used).await.expect("the suite uses the store");
    kill_process(pid, signal).expect("it runs");
    let output = timeout(HANG, child.wait_with_output()).await.expect("it ends");
    let output = output.expect("it has ended");
    let said = text(&output);
    assert_eq!(output.status.signal(), Some(signal.as_raw()), "{said}");
    said
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
