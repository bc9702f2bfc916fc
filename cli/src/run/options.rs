//! The options of `fencelock run`, parsed once. flock's letters keep their meaning.
//!
//! [`once`] and [`elect`] are the options of the other commands that run a job, [`common`] what all of
//! them have.

pub(super) mod common;
pub(super) mod elect;
pub(crate) mod from_flock;
mod help;
pub(crate) mod name_first;
pub(super) mod once;

use std::time::Duration;

use fencelock::Permits;

use super::exit::{Codes, Outcome};
use super::plan::{Kind, OnLost, Own, Plan};
use super::reports::Reports;
use common::{Common, Job, duration, wait_limit};
use help::{EXIT_CODES, MORE};

/// Runs a command while holding a lock
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "fencelock run [OPTIONS] NAME -- COMMAND…\n       fencelock run [OPTIONS] NAME -c STRING"
)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    job: Job,
    /// Fail rather than wait; the store itself gets 2 s to answer
    #[arg(short, long, visible_aliases = ["nb", "nonblocking"], conflicts_with = "wait")]
    nonblock: bool,
    /// Wait no longer than this for the store and the lock: seconds, such as 10 or 0.5, or a duration
    /// with a unit, such as 500ms; 0 is -n
    #[arg(
        short,
        long,
        visible_alias = "timeout",
        value_name = "TIME",
        value_parser = wait_limit,
        allow_negative_numbers = true
    )]
    wait: Option<Duration>,
    /// Exit with CODE if the lock is busy or the wait times out; in silence with 0
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// Share the lock with other shared holders: the read lock of a reader-writer lock
    #[arg(short, long, conflicts_with_all = ["write", "exclusive", "permits", "limit"])]
    shared: bool,
    /// Hold the lock exclusively as a writer: for Curator's InterProcessReadWriteLock, which ignores -x
    #[arg(long, conflicts_with_all = ["exclusive", "permits", "limit"])]
    write: bool,
    /// Hold the lock exclusively: the default
    #[arg(short = 'x', short_alias = 'e', long, conflicts_with_all = ["permits", "limit"])]
    exclusive: bool,
    /// Take N permits of --limit
    #[arg(long, value_name = "N", requires = "limit")]
    permits: Option<u32>,
    /// The total number of permits, M
    #[arg(long, value_name = "M")]
    limit: Option<u32>,
    /// Keep the lock at least this long, even if the command ends earlier; for a job that several
    /// machines start at the same time, more than their clocks differ
    #[arg(long, value_name = "DUR", value_parser = duration)]
    hold_at_least: Option<Duration>,
    /// End the command before it has held the lock for longer than this; it gets SIGTERM when only
    /// --grace of this time is left
    #[arg(long, value_name = "DUR", value_parser = duration)]
    hold_at_most: Option<Duration>,
    /// When the lock is about to be lost: terminate the command, kill it, or only print a message
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    on_lost: OnLost,
    /// Exit with 0 if the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    skip_ok: bool,
    /// Exit with flock's codes, such as 1 instead of 75 for busy, and in silence if the lock is busy
    #[arg(long)]
    flock_compat: bool,
    /// No effect: the lock is released although processes that the command left run on
    #[arg(short = 'o', long)]
    close: bool,
    #[command(flatten)]
    common: Common,
}

impl Options {
    pub(super) fn codes(&self) -> Codes {
        let skip_ok = self.skip_ok || self.conflict_exit_code == Some(0);
        Codes { flock: self.flock_compat, busy: self.conflict_exit_code, skip_ok }
    }

    pub(crate) fn wants_warnings(&self) -> bool {
        self.common.wants_warnings()
    }

    pub(super) fn plan(self, reports: Reports) -> Result<Plan, Outcome> {
        let permits = |limit| Permits::new(self.permits.unwrap_or(1), limit);
        let kind = match self.limit {
            Some(limit) => Kind::Permits(permits(limit).map_err(Outcome::usage)?),
            None if self.shared => Kind::Read,
            None if self.write => Kind::Write,
            None => Kind::Exclusive,
        };
        let hold_at_least = self.hold_at_least.unwrap_or_default();
        if self.hold_at_most.is_some_and(|most| most < hold_at_least) {
            return Err(Outcome::usage("--hold-at-least is longer than --hold-at-most"));
        }
        let own = Own {
            kind,
            wait: if self.nonblock { Some(Duration::ZERO) } else { self.wait },
            hold_at_least,
            hold_at_most: self.hold_at_most,
            on_lost: self.on_lost,
        };
        Plan::new(self.job, self.common, own, reports)
    }
}
