//! The options of all commands that run a job, and how their values are read.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use fencelock::{Ttl, parse_duration};

use crate::config::StoreOptions;
use crate::lock_name::lock_name;

/// The job: its lock, its command, its store.
#[derive(clap::Args, Debug)]
pub(crate) struct Job {
    /// The lock's name: 1 to 512 bytes, any characters
    #[arg(value_parser = lock_name)]
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "shell", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    /// A command line for `sh -c`, instead of COMMAND
    #[arg(short = 'c', long = "command", conflicts_with = "command", value_name = "STRING")]
    pub(crate) shell: Option<OsString>,

    #[command(flatten)]
    pub(crate) store: StoreOptions,
}

/// How the lock is kept, and what is reported.
#[derive(clap::Args, Debug)]
pub(crate) struct Common {
    /// How long the store keeps the lock if this program stops responding; no effect on file:// and
    /// zk:// [default: ttl= in the URL, then ttl of a configuration file, then 30s]
    #[arg(long, value_name = "DUR", value_parser = ttl)]
    pub(crate) ttl: Option<Ttl>,
    /// Time between SIGTERM and the lock's end; 0.5 s at least, at most half the TTL, or 0.27 of the session on zk://
    /// [default: a third of the time that the lock lasts without renewal, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// The text that describes this job to other clients of the lock [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Write a JSON status to FILE, at each grant and at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) status_json: Option<PathBuf>,
    /// Report how long the wait took, who holds the lock meanwhile, and warnings of the store
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Report only errors and losses; a lock that is busy is neither
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

impl Common {
    /// Whether warnings of the stores are shown: on a terminal, and with --verbose. They would be noise
    /// in the mail that cron sends for each run with output.
    pub(crate) fn wants_warnings(&self) -> bool {
        self.verbose || !self.quiet && io::stderr().is_terminal()
    }
}

/// flock's seconds, or a duration as all other options take it.
pub(super) fn wait_limit(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected seconds, such as 10 or 0.5, or a number with a unit, such as \
                            500ms, 10s or 1m30s";
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED.to_owned()),
        Err(_) => parse_duration(text).map_err(|_| EXPECTED.to_owned()),
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected a number with a unit, such as 500ms, 2s or 1m30s";
    parse_duration(text).map_err(|_| expected.to_owned())
}

fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_wait_limit_is_seconds_or_has_a_unit() {
        for (text, limit) in
            [("10", s(10.0)), ("0.5", s(0.5)), ("0", s(0.0)), ("10s", s(10.0)), ("1m30s", s(90.0))]
        {
            assert_eq!(wait_limit(text), Ok(limit), "{text}");
        }
        assert_eq!(wait_limit("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "soon", "-1", "-1s", "nan", "inf", "1e400", "10 parsecs"] {
            let why = wait_limit(wrong).expect_err(wrong);
            assert!(why.contains("such as 10 or 0.5"), "{why}");
        }
    }
}
