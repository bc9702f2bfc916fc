//! Counters: each answer is a number of its own, whatever becomes of requests and replies.

use std::io;
use std::time::Duration;

use fencelock_core::ErrorKind;
use rand::RngExt;
use tokio::time::timeout;

use super::tools::{Calm, Tools};
use crate::history::What;
use crate::processes::workload::{COUNTERS, Errors};

pub(super) async fn add(mut tools: Tools, calm: Calm) -> io::Result<Errors> {
    while !calm.has_come() {
        add_once(&mut tools).await;
        if tools.workload.uses_locks() {
            // It is there besides the locks, which are what is measured.
            tools.pause(0..60).await;
        }
    }
    Ok(tools.errors)
}

async fn add_once(tools: &mut Tools) {
    let name = COUNTERS[tools.random.random_range(0..COUNTERS.len())];
    let counter = tools.locks.counter(name);
    let n = match tools.random.random_range(0..20) {
        0 => 0,
        1 => 2,
        2 => 7,
        _ => 1,
    };
    let patience = match tools.random.random_range(0..50) {
        0 => Duration::from_millis(tools.random.random_range(0..20)),
        // The counter has a bound of its own.
        _ => Duration::MAX,
    };
    let claim = tools.history.begin(name, What::AddInvoked { n });
    let asked = async {
        match n {
            0 => counter.get().await,
            _ => counter.add(n).await,
        }
    };
    let (what, error) = match timeout(patience, asked).await {
        Ok(Ok(sum)) => (What::Added { sum }, None),
        Err(_dropped) => (What::Unknown, None),
        Ok(Err(error)) if says_it_is_unknown(&error) => (What::Unknown, Some(error)),
        Ok(Err(error)) => (What::Refused, Some(error)),
    };
    tools.history.record(&claim, what);
    if let Some(error) = error {
        tools.count(&error).await;
    }
}

/// As the documentation of counters promises: otherwise nothing was added.
fn says_it_is_unknown(error: &fencelock_core::Error) -> bool {
    error.kind() == ErrorKind::Closed || error.to_string().contains("may or may not have been made")
}
