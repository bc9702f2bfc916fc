//! The options of `fencelock run`, parsed once. flock's letters keep their meaning.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use fencelock::{Liveness, Lock, Locks, Permits, Profile, Ttl, parse_duration};
use fencelock_cli::say;

use super::exit::{Codes, Outcome};
use super::help::{EXIT_CODES, MORE};
use super::store::Store;
use crate::config::{Config, StoreOptions};

/// How long a store may take to answer -n: enough for a slow store, short enough for a caller that
/// asked not to wait.
const TRY_WITHIN: Duration = Duration::from_secs(2);

/// Runs a command while holding a lock
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "fencelock run [OPTIONS] NAME -- COMMAND…\n       fencelock run [OPTIONS] NAME -c STRING"
)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    /// The lock's name: 1 to 512 bytes, any characters
    name: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "shell", value_name = "COMMAND")]
    command: Vec<OsString>,
    /// A command line for `sh -c`, instead of COMMAND
    #[arg(short = 'c', long = "command", conflicts_with = "command", value_name = "STRING")]
    shell: Option<OsString>,

    #[command(flatten)]
    store: StoreOptions,
    /// Fail rather than wait; the store itself gets 2 s to answer
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
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
    /// Exit with CODE if the lock is busy or the wait times out
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
    /// How long the store keeps the lock if this program stops responding; no effect on file:// and
    /// zk:// [default: ttl= in the URL, then ttl of a configuration file, then 30s]
    #[arg(long, value_name = "DUR", value_parser = ttl)]
    ttl: Option<Ttl>,
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
    /// Time between SIGTERM and the lock's end; at most half the TTL, or 0.27 of the session on zk://
    /// [default: a third of the time that the lock lasts without renewal, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    grace: Option<Duration>,
    /// Exit with 0 if the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    skip_ok: bool,
    /// The text that describes this job to other clients of the lock [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Write a JSON status to FILE, once when granted and once at the end
    #[arg(long, value_name = "FILE")]
    status_json: Option<PathBuf>,
    /// Exit with flock's codes, such as 1 for busy
    #[arg(long)]
    flock_compat: bool,
    /// Report how long the wait took, who holds the lock meanwhile, and warnings of the store
    #[arg(short, long)]
    verbose: bool,
    /// Report only errors and losses
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
}

/// What to do when the lock is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// SIGTERM, then SIGKILL
    Term,
    /// SIGKILL
    Kill,
    /// Only a message
    Continue,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Exclusive,
    Read,
    Write,
    Permits(Permits),
}

/// The validated options.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) command: Vec<OsString>,
    pub(super) store: Store,
    /// How long to wait for a lock that is not free, zero with -n.
    pub(super) wait: Option<Duration>,
    pub(super) hold_at_least: Duration,
    pub(super) hold_at_most: Option<Duration>,
    pub(super) on_lost: OnLost,
    pub(super) status: Option<PathBuf>,
    pub(super) verbose: bool,
    pub(super) quiet: bool,
    /// By an option.
    pub(super) chose_ttl: bool,
    label: String,
    kind: Kind,
    ttl: Ttl,
    grace: Option<Duration>,
    /// How long the store may be silent with -n.
    try_within: Duration,
}

/// How long before the lock's end the command is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Margins {
    /// SIGTERM.
    pub(super) grace: Duration,
    /// SIGKILL.
    pub(super) kill: Duration,
    /// How long the lock lasts without a renewal.
    pub(super) promise: Duration,
}

impl Options {
    pub(super) fn codes(&self) -> Codes {
        Codes { flock: self.flock_compat, busy: self.conflict_exit_code, skip_ok: self.skip_ok }
    }

    /// Whether warnings of the stores are shown: on a terminal, and with --verbose. They would be noise
    /// in the mail that cron sends for each run with output.
    pub(crate) fn wants_warnings(&self) -> bool {
        self.verbose || !self.quiet && io::stderr().is_terminal()
    }
}

impl Plan {
    pub(super) fn new(options: Options) -> Result<Plan, Outcome> {
        let store = Store::new(Config::read(options.store).map_err(Outcome::Configuration)?)?;
        let permits = |limit| Permits::new(options.permits.unwrap_or(1), limit);
        let kind = match options.limit {
            Some(limit) => Kind::Permits(permits(limit).map_err(Outcome::usage)?),
            None if options.shared => Kind::Read,
            None if options.write => Kind::Write,
            None => Kind::Exclusive,
        };
        let hold_at_least = options.hold_at_least.unwrap_or_default();
        if options.hold_at_most.is_some_and(|most| most < hold_at_least) {
            return Err(Outcome::usage("--hold-at-least is longer than --hold-at-most"));
        }
        let command = match options.shell {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line],
            None => options.command,
        };
        if options.status_json.as_deref() == Some(Path::new("-")) {
            return Err(Outcome::usage(
                "--status-json -: the standard output is the command's; name a file, or /dev/stderr, \
                 or /dev/stdout to mix the status with the command's output",
            ));
        }
        let ttl = options.ttl.or(store.ttl()?).or(store.config.ttl).unwrap_or_default();
        let try_within = store.unreachable_after()?.map_or(TRY_WITHIN, |it| it.min(TRY_WITHIN));
        let label = options.label.or_else(|| store.config.label.clone());
        Ok(Plan {
            name: options.name,
            label: label.unwrap_or_else(|| program(&command)),
            command,
            store,
            wait: if options.nonblock { Some(Duration::ZERO) } else { options.wait },
            hold_at_least,
            hold_at_most: options.hold_at_most,
            on_lost: options.on_lost,
            status: options.status_json,
            verbose: options.verbose,
            quiet: options.quiet,
            chose_ttl: options.ttl.is_some(),
            kind,
            ttl,
            grace: options.grace,
            try_within,
        })
    }

    /// The lock to acquire.
    pub(super) fn lock(&self, locks: &Locks) -> Lock {
        let lock = match self.kind {
            // Its command inherits the lock where it can, which a hand-off would take from it.
            Kind::Exclusive => locks.lock(&self.name).local_handoffs(1),
            Kind::Read => locks.rw_lock(&self.name).read(),
            Kind::Write => locks.rw_lock(&self.name).write(),
            Kind::Permits(permits) => {
                locks.semaphore(&self.name, permits.limit()).permits(permits.n())
            }
        };
        let lock = lock.ttl(self.ttl.get()).label(&self.label);
        let lock = match self.wait {
            Some(Duration::ZERO) => {
                lock.wait_at_most(Duration::ZERO).unreachable_after(self.try_within)
            }
            Some(limit) => lock.wait_at_most(limit),
            None => lock,
        };
        match self.hold_at_most {
            Some(limit) => lock.hold_at_most(limit),
            None => lock,
        }
    }

    /// Tells the user something that is not an error.
    pub(super) fn note(&self, message: &str) {
        if !self.quiet {
            say(message);
        }
    }

    /// When to end the command before the lock ends, computed from the shortest duration that the lock
    /// is promised for.
    pub(super) fn margins(&self, profile: &Profile) -> Result<Margins, Outcome> {
        let (lease, to_raise) = match profile.liveness {
            Liveness::Session(timeout) => {
                (valid_between_heartbeats(timeout), "session= in the URL")
            }
            Liveness::Lease | Liveness::Process => (self.ttl.get(), "--ttl"),
        };
        let promise = self.hold_at_most.map_or(lease, |limit| limit.min(lease));
        let to_raise = if promise < lease { "--hold-at-most" } else { to_raise };
        let grace = match self.grace {
            Some(grace) if grace > promise / 2 => {
                return Err(Outcome::usage(format!(
                    "--grace {} is more than half of the {} that the lock lasts; \
                     lower --grace, or raise {to_raise}",
                    format_duration(grace),
                    format_duration(promise),
                )));
            }
            Some(grace) => grace,
            None => (promise / 3).min(Duration::from_secs(5)),
        };
        let kill = (promise / 6).min(Duration::from_millis(100));
        Ok(Margins { grace, kill, promise })
    }
}

/// For how long a lock that lives by a session with this timeout is valid at any moment without a
/// fault. Validity ends 0.64 of the timeout after a heartbeat, and there is one each 0.1: see
/// docs/decisions/0008.
fn valid_between_heartbeats(timeout: Duration) -> Duration {
    timeout * 54 / 100
}

/// In the form of the option: `1m30s`.
fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// The command's own name, without its arguments, which may contain secrets.
fn program(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    program.to_string_lossy().into_owned()
}

/// flock's seconds, or a duration as all other options take it.
fn wait_limit(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected seconds, such as 10 or 0.5, or a number with a unit, such as \
                            500ms, 10s or 1m30s";
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED.to_owned()),
        Err(_) => parse_duration(text).map_err(|_| EXPECTED.to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected a number with a unit, such as 500ms, 2s or 1m30s";
    parse_duration(text).map_err(|_| expected.to_owned())
}

fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    /// Those of `fencelock run` with these options.
    async fn margins(options: &[&str], liveness: Liveness) -> Result<Margins, Outcome> {
        let fixed = ["run", "--url", "mem://", "job"];
        let all = fixed.iter().chain(options).chain(&["--", "true"]);
        let plan = Plan::new(Command::parse_from(all).options)?;
        let profile = fencelock::connect("mem://").await.expect("a store").profile().clone();
        plan.margins(&Profile { liveness, ..profile })
    }

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[tokio::test]
    async fn margins_are_parts_of_what_is_left_between_two_renewals() {
        for (options, liveness, grace, promise) in [
            (&[][..], Liveness::Lease, s(5.0), s(30.0)),
            (&["--ttl", "3s"], Liveness::Lease, s(1.0), s(3.0)),
            (&[], Liveness::Session(s(20.0)), s(3.6), s(10.8)),
            (&[], Liveness::Session(s(10.0)), s(1.8), s(5.4)),
            (&["--grace", "5.4s"], Liveness::Session(s(20.0)), s(5.4), s(10.8)),
            (&["--hold-at-most", "6s"], Liveness::Session(s(20.0)), s(2.0), s(6.0)),
        ] {
            let margins = margins(options, liveness).await.expect("margins");
            assert_eq!((margins.grace, margins.promise), (grace, promise), "{options:?}");
            // A job of a session is left alone through a break of a third of it.
            if let (Liveness::Session(timeout), true) = (liveness, options.is_empty()) {
                assert!(margins.promise - margins.grace > timeout / 3);
            }
        }
    }

    #[tokio::test]
    async fn a_grace_that_cannot_be_kept_is_refused_with_what_to_raise() {
        for (options, liveness, says) in [
            (&["--grace", "16s"][..], Liveness::Lease, "raise --ttl"),
            (&["--grace", "5s"], Liveness::Session(s(10.0)), "raise session= in the URL"),
            (&["--grace", "2s", "--hold-at-most", "3s"], Liveness::Lease, "raise --hold-at-most"),
        ] {
            let refused = margins(options, liveness).await.expect_err("refused");
            let text = format!("{refused:?}");
            assert!(text.contains(says), "{options:?}: {text}");
        }
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
