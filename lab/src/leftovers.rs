//! What commands that try a store out say when they cannot remove all that they made there.

use std::error::Error as _;

use fencelock::Error;
use fencelock_conformance::ScratchStore;

/// Removes what a run made; says what stays, and for how long, if it cannot.
pub(crate) async fn remove(scratch: &ScratchStore) {
    if let Err(error) = scratch.clear().await {
        say(scratch.url(), &error);
    }
}

/// Says that something stays in the store of `url` because of `error`, and for how long. With its
/// causes, which have the store's own words.
pub(crate) fn say(url: &str, error: &Error) {
    let until = match url.split("://").next().unwrap_or_default() {
        "file" => "it stays until somebody removes it",
        "zk" | "zookeeper" => "the servers remove empty nodes of locks, usually within a minute",
        _ => "such keys have the last fencing tokens, and each expires within a day",
    };
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    eprintln!("fencelock: {error}{causes}; {until}");
}
