//! `fencelock tidy`: removes expired cells from a store that cannot end data by time.
//!
//! Only what was found is removed: the store is asked to remove a cell by the stamp of its last write,
//! which no later write has. So a cell that another client writes anew meanwhile stays.

use std::process::ExitCode;
use std::time::Duration;

use fencelock::backend::ExpiredCell;
use fencelock::{Error, ErrorKind, Locks, Reach, Result, parse_duration};
use fencelock_cli::{chain, say};
use futures_util::future::join_all;
use serde::Serialize;

use super::participants::since;
use super::target::connect;
use crate::config::StoreOptions;
use crate::output;

/// How many cells are removed at the same time.
const TOGETHER: usize = 32;

const EXIT_CODES: &str = "\
Exit codes:
  0   the expired cells were removed, also if there were none
  64  usage error
  69  the store did not answer; some may have been removed
  78  configuration: invalid store URL, or refused by the store";

const MORE: &str = "\
A latch, a barrier, and what else is kept for a time, is expired after that time, and ignored; the \
record of a `once` or an election still counts. Redis and PostgreSQL remove it themselves, so this command does \
nothing there. ZooKeeper and files remove nothing by time: it stays until it is written again, or \
removed by this command, which one machine may run each day.

Only expired cells are removed, and one that is written anew meanwhile stays. Everything else stays:

- cells that are kept for ever, such as counters;
- cells whose full names do not begin with the `prefix=` of this URL, and those of other programs;
- locks: on zk:// the servers remove the nodes of an unused lock themselves, and the directory of a \
  file:// lock keeps its fencing tokens rising. That of a cell stays with it, and gives back most of \
  its space.

This machine's clock says what is expired: --grace is how far it may be ahead of the clocks of the \
machines that use the cells.

--json prints one line: store (without password and parameters), dry_run, removed (or to be removed) \
with name, kind and expired_for_seconds of each, and others, the number of cells that stay: null if the \
store removes them by itself, or has none.";

/// Remove expired cells, such as old latches, from zk:// or file://
#[derive(clap::Args)]
#[command(mut_arg("url", |url| url.short('u')))]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    /// Only cells whose names begin with one of these; by default all
    #[arg(value_name = "BEGINNING")]
    beginnings: Vec<String>,
    #[command(flatten)]
    store: StoreOptions,
    /// Only cells that expired this long ago, or longer
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
    /// Removes the expired cells; the exit code.
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
        let remove = async |cell: &ExpiredCell| match self.dry_run {
            true => Ok(true),
            false => locks.remove_expired(cell).await,
        };
        let shown = |cell: &ExpiredCell, is_removed| match self.json {
            true => Ok(()),
            false => output::print(&line(cell, is_removed, self.dry_run)),
        };
        code = tidied.remove(&expired, remove, shown).await?.unwrap_or(code);
        output::print(&if self.json { tidied.json() } else { tidied.summary(&locks) })?;
        locks.close().await?;
        Ok(code)
    }
}

fn line(cell: &ExpiredCell, is_removed: bool, is_dry_run: bool) -> String {
    let (name, kind, expired_for) = (cell.name(), cell.kind(), since(cell.expired_for()));
    match (is_removed, is_dry_run) {
        (true, true) => format!("would remove {name:?} ({kind}, expired {expired_for} ago)\n"),
        (true, false) => format!("removed {name:?} ({kind}, expired {expired_for} ago)\n"),
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
    expired_for_seconds: f64,
}

impl Row {
    fn of(cell: &ExpiredCell) -> Row {
        Row {
            name: cell.name().to_string(),
            kind: cell.kind(),
            expired_for_seconds: cell.expired_for().as_secs_f64(),
        }
    }
}

impl Tidied<'_> {
    /// Removes `cells`, and shows of each whether it was still as it was found. A failure ends the
    /// rest only if the store does not answer; the exit code of the last one.
    async fn remove(
        &mut self,
        cells: &[ExpiredCell],
        remove: impl AsyncFn(&ExpiredCell) -> Result<bool>,
        show: impl Fn(&ExpiredCell, bool) -> Result<()>,
    ) -> Result<Option<ExitCode>> {
        let (mut failed, mut is_silent) = (None, false);
        for some in cells.chunks(TOGETHER) {
            if is_silent {
                break;
            }
            for (cell, removal) in
                some.iter().zip(join_all(some.iter().map(|cell| remove(cell))).await)
            {
                match removal {
                    Ok(is_removed) => {
                        self.removed.extend(is_removed.then(|| Row::of(cell)));
                        show(cell, is_removed)?;
                    }
                    Err(error) => {
                        failed = Some(fencelock_cli::failed(&error));
                        is_silent |= error.is_retryable();
                    }
                }
            }
        }
        let stay = cells.len() - self.removed.len();
        self.others = self.others.map(|others| others + stay);
        Ok(failed)
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
                _ => "removes expired cells by itself",
            };
            return format!("nothing to remove: {store} {why}\n");
        };
        let removed = self.removed.len();
        let (count, were) = (removed + others, if self.dry_run { "would be" } else { "were" });
        format!("{removed} of {count} cells on {store} {were} removed\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes cells of which every one after the first fails with `kind`; what was done, and whether
    /// that was a failure.
    async fn removed_before(kind: ErrorKind) -> (Tidied<'static>, bool) {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", dir.path().display());
        let locks = fencelock::connect(&url).await.expect("connected");
        let brief = |n| locks.cell(format!("brief-{n:03}")).keep_for(Duration::from_secs(1));
        for n in 0..=TOGETHER {
            assert!(brief(n).compare_and_set(None, *b"brief").await.expect("an answer"));
        }
        let is_expired = async || brief(TOGETHER).read().await.expect("an answer").is_none();
        while !is_expired().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = locks.expired_cells(&[], Duration::ZERO).await.expect("an answer");
        let found = found.expect("files have cells");
        let mut tidied =
            Tidied { store: "file://", dry_run: false, removed: Vec::new(), others: Some(0) };
        let remove = async |cell: &ExpiredCell| match cell.name().as_str() {
            "brief-000" | "brief-032" => Ok(true),
            _ => Err(Error::new(kind, "not removed")),
        };
        let failed = tidied.remove(&found.expired, remove, |_, _| Ok(())).await.expect("shown");
        (tidied, failed.is_some())
    }

    #[tokio::test]
    async fn a_failure_does_not_end_the_rest_unless_the_store_is_silent() {
        for (kind, removed) in [(ErrorKind::Refused, 2), (ErrorKind::Unreachable, 1)] {
            let (tidied, is_failure) = removed_before(kind).await;
            assert_eq!(tidied.removed.len(), removed, "{kind:?}");
            assert_eq!(tidied.others, Some(TOGETHER + 1 - removed), "{kind:?}");
            assert!(is_failure);
        }
    }
}
