//! `fencelock-lab conformance` on stores that are in use: at its end, whatever that is, they have what
//! they had before, and nothing more.

mod file;
mod redis;
mod redlock;
mod zookeeper;

use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::support::{self, command, ended, output, said, until};

/// Its exit code, and what it said.
async fn run(url: &str, arguments: &[&str]) -> (i32, String) {
    ended(&output(command("conformance", arguments).env("FENCELOCK_URL", url)).await)
}

/// Interrupts runs once what the store has, `all`, `is_in_use` by them; it has what it had before then.
async fn leaves_nothing<T: PartialEq + std::fmt::Debug>(
    url: &str,
    all: impl AsyncFn() -> T,
    is_in_use: impl Fn(&T) -> bool,
) {
    let before = all().await;
    for signal in [Signal::INT, Signal::TERM] {
        let said = interrupt(url, signal, async || is_in_use(&all().await)).await;
        assert!(said.contains("the run was stopped"), "{said}");
        assert_eq!(all().await, before, "after {signal:?}: {said}");
    }
}

/// Sends `signal` as soon as `is_in_use` says that the suite has created something; returns its output.
async fn interrupt(url: &str, signal: Signal, is_in_use: impl AsyncFn() -> bool) -> String {
    let child = command("conformance", &[]).env("FENCELOCK_URL", url).spawn().expect("it runs");
    until(is_in_use).await;
    let output = support::interrupt(child, signal).await;
    assert_eq!(output.status.signal(), Some(signal.as_raw()), "{}", said(&output));
    said(&output)
}
