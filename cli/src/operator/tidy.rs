//! `fencelock tidy`: removes the cells whose time is over, of a store that cannot end data by time.
//!
//! Only what was found is removed: the store is asked to remove a cell by the stamp of its last write,
//! which no later write has. So a cell that another client writes anew meanwhile stays.

use std::process::ExitCode;
use std::time::Duration;

use fencelock::backend::ExpiredCell;
use fencelock::{Error, ErrorKind, Locks, Reach, Result, parse_duration};
use fencelock_cli::{chain, say};
use serde::Serialize;

use super::participants::since;
use super::target::connect;
use crate::config::StoreOptions;
use crate::output;

/// How many cells are removed at the same time.
const TOGETHER: usize = 32;

const EXIT_CODES: &str = "\
Exit codes:
  0   what is over was removed, also if that was nothing
  64  usage error
  69  the store did not answer; some may have been removed
  78  configuration: invalid store URL, or refused by the store";

const MORE: &str = "\
A latch, a barrier, the record of a `once`, and what else was kept for a time, is ignored after that
time. Redis then ends it, and so this command does nothing there. ZooKeeper and files end nothing by
time: it stays until it is written again, or removed by this command, which one machine may run each
day.

Only cells whose time is over are removed, and one that is written anew meanwhile stays. Everything
else stays:

- cells that are kept for ever, such as counters;
- cells whose full names do not begin with the `prefix=` of this URL, and those of other programs;
- locks: on zk:// the servers remove the nodes of an unused lock themselves, and the directory of a
  file:// lock keeps its fencing tokens rising. That of a cell stays with it, and gives back most of
  its space.

Which time it is, this machine's clock says: --grace is how far it may be ahead of the clocks of the
machines that use the cells.

--json prints one line: store (without password and parameters), dry_run, removed (or to be removed)
with name, kind and over_for_seconds of each, and others, the number of cells that stay: null if the
store ends cells by itself, or has none.";

/// Remove cells whose time is over, such as old latches, from zk:// or file://
#[derive(clap::Args)]
#[command(mut_arg("url", |url| url.short('u')))]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    /// Only cells whose names begin with one of these; by default all
    #[arg(value_name = "BEGINNING")]
    beginnings: Vec<String>,
    #[command(flatten)]
    store: StoreOptions,
    /// Only cells whose time has been over for this long
    #[arg(long, value_name = "DUR", default_value = "1d", value_parser = parse_duration)]
    grace: Duration,
    /// Show what would be removed, and remove nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Removes what is over; the exit code.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let (config, store, locks) = connect(self.store).await?;
        // A store of this process has no cells of others, which is what is to be said of it.
        if locks.profile().reach != Reach::Process {
            let required = config.require_reach(locks.profile(), &store);
            required.map_err(|message| Error::new(ErrorKind::Unsupported, message))?;
        }
        let found = locks.expired_cells(&self.beginnings, self.grace).await?;
        let mut tidied = Tidied {
            store: &store,
            dry_run: self.dry_run,
            removed: Vec::new(),
            others: found.as_ref().map(|found| found.others),
        };
        let mut code = ExitCode::SUCCESS;
        for error in found.iter().flat_map(|found| &found.unread) {
            // What another program wrote is none of this one's business.
            match error.kind() {
                ErrorKind::Foreign => say(&chain(error)),
                _ => code = fencelock_cli::failed(error),
            }
        }
        let expired = found.map(|found| found.expired).unwrap_or_default();
        for some in expired.chunks(TOGETHER) {
            for (cell, is_removed) in some.iter().zip(tidied.remove(&locks, some).await?) {
                if !self.json {
                    output::print(&line(cell, is_removed, self.dry_run))?;
                }
                match is_removed {
                    true => tidied.removed.push(Row::of(cell)),
                    false => tidied.others = tidied.others.map(|others| others + 1),
                }
            }
        }
        output::print(&match self.json {
            true => tidied.json(),
            false => tidied.summary(&locks),
        })?;
        locks.close().await?;
        Ok(code)
    }
}

fn line(cell: &ExpiredCell, is_removed: bool, is_dry_run: bool) -> String {
    let (name, kind, over_for) = (cell.name(), cell.kind(), since(cell.over_for()));
    match (is_removed, is_dry_run) {
        (true, true) => format!("would remove {name:?} ({kind}, over for {over_for})\n"),
        (true, false) => format!("removed {name:?} ({kind}, over for {over_for})\n"),
        (false, _) => format!("kept {name:?} ({kind}): it was written or removed meanwhile\n"),
    }
}

/// What was done.
#[derive(Serialize)]
struct Tidied<'a> {
    store: &'a str,
    dry_run: bool,
    removed: Vec<Row>,
    others: Option<usize>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    kind: &'static str,
    over_for_seconds: f64,
}

impl Row {
    fn of(cell: &ExpiredCell) -> Row {
        Row {
            name: cell.name().to_string(),
            kind: cell.kind(),
            over_for_seconds: cell.over_for().as_secs_f64(),
        }
    }
}

impl Tidied<'_> {
    /// Removes `cells`; whether each was still as it was found.
    async fn remove(&self, locks: &Locks, cells: &[ExpiredCell]) -> Result<Vec<bool>> {
        if self.dry_run {
            return Ok(vec![true; cells.len()]);
        }
        let remove = |cell: &ExpiredCell| {
            let (locks, cell) = (locks.clone(), cell.clone());
            tokio::spawn(async move { locks.remove_expired(&cell).await })
        };
        let removing: Vec<_> = cells.iter().map(remove).collect();
        let mut removed = Vec::new();
        for one in removing {
            let ended = |cause| Error::new(ErrorKind::Refused, "a removal ended").caused_by(cause);
            removed.push(one.await.map_err(ended)??);
        }
        Ok(removed)
    }

    fn json(&self) -> String {
        let line = serde_json::to_string(self);
        line.unwrap_or_else(|_| unreachable!("plain numbers and strings")) + "\n"
    }

    fn summary(&self, locks: &Locks) -> String {
        let (store, profile) = (self.store, locks.profile());
        let Some(others) = self.others else {
            let why = match (profile.cells, profile.reach) {
                (None, _) => "has no cells",
                (_, Reach::Process) => "has the cells of one process only, which end with it",
                _ => "ends cells by itself, when their time is over",
            };
            return format!("nothing to remove: {store} {why}\n");
        };
        let removed = self.removed.len();
        let (count, were) = (removed + others, if self.dry_run { "would be" } else { "were" });
        format!("{removed} of {count} cells on {store} {were} removed\n")
    }
}
