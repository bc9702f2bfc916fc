//! Messages of commands that cannot remove everything that they created in a store.

use fencelock::Error;
use fencelock_cli::{chain, say};
use fencelock_conformance::ScratchStore;

/// Removes what a run created; reports what stays, and for how long, if it cannot.
pub(crate) async fn remove(scratch: &ScratchStore) {
    if let Err(error) = scratch.clear().await {
        report(scratch.url(), &error);
    }
}

/// Reports that something stays in the store of `url` because of `error`, and for how long.
pub(crate) fn report(url: &str, error: &Error) {
    let until = match url.split("://").next().unwrap_or_default() {
        "file" => "it stays until it is removed by hand",
        "zk" | "zookeeper" => "the servers remove empty nodes of locks, usually within a minute",
        _ => "such keys have the last fencing tokens, and each expires within a day",
    };
    say(&format!("{}; {until}", chain(error)));
}
