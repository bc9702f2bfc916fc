//! `fencelock show`: who holds a lock, and who waits for it.

use std::process::ExitCode;

use fencelock::{Result, Snapshot};
use serde::Serialize;

use super::target::{LockOnStore, Target};
use super::{NO, participants};
use crate::output;

const EXIT_CODES: &str = "\
Exit codes:
  0   held
  1   free
  64  usage error
  69  the store did not answer
  78  configuration: invalid store URL, refused by the store, or mem://";

const MORE: &str = "\
SINCE is how long it has held the lock, or waited for it; LABEL is host, process and command of a \
`fencelock run`, or what the client has set. A dash marks what the store does not know. Of more \
than 1000 holders or waiters, Redis and ZooKeeper list only some.

A holder whose machine died is listed until its lock ends: see docs/guarantees.md.

--json prints one line: name, store (without password and parameters), held, complete (false if \
the list may have been cut off), holders and waiters; each of these has id, mode, label, \
since_seconds and token, and for a semaphore permits and limit. Tokens are strings: they may \
exceed 2^53.";

/// Show who holds a lock and who waits for it
#[derive(clap::Args)]
#[command(mut_arg("url", |url| url.short('u')))]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Shows the lock; the exit code.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let lock = self.target.connect().await?;
        let seen = lock.inspect().await?;
        output::print(&if self.json { json(&lock, &seen) + "\n" } else { text(&lock, &seen) })?;
        lock.locks.close().await?;
        Ok(ExitCode::from(if seen.holders.is_empty() { NO } else { 0 }))
    }
}

/// A summary, and a table of holders and waiters.
fn text(lock: &LockOnStore, seen: &Snapshot) -> String {
    let holders = match seen.holders.len() {
        0 => "free".to_owned(),
        1 => "held".to_owned(),
        count => format!("held by {count}"),
    };
    let waiters = match seen.waiters.len() {
        0 => String::new(),
        count => format!(", {count} waiting"),
    };
    let more = match participants::is_complete(seen) {
        true => "",
        false => ", and perhaps more than the store lists",
    };
    let table = match seen.holders.len() + seen.waiters.len() {
        0 => String::new(),
        _ => participants::table(seen),
    };
    format!("{lock}: {holders}{waiters}{more}\n{table}")
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    store: &'a str,
    held: bool,
    complete: bool,
    holders: Vec<participants::Row<'a>>,
    waiters: Vec<participants::Row<'a>>,
}

fn json(lock: &LockOnStore, seen: &Snapshot) -> String {
    let line = Line {
        name: &lock.name,
        store: &lock.store,
        held: !seen.holders.is_empty(),
        complete: participants::is_complete(seen),
        holders: participants::rows(&seen.holders),
        waiters: participants::rows(&seen.waiters),
    };
    serde_json::to_string(&line).unwrap_or_else(|_| unreachable!("plain numbers and strings"))
}
