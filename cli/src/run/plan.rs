//! The validated options of one job: what is held around its command, and when the command must end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use fencelock::{Liveness, Permits, Profile, Tick, Ttl};

use super::exit::Outcome;
use super::options::common::{Common, Job};
use super::reports::Reports;
use super::store::Store;
use crate::config::Config;

/// How long a store may take to answer -n: enough for a slow store, short enough for a caller that
/// asked not to wait.
const TRY_WITHIN: Duration = Duration::from_secs(2);

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

/// What is held while the command runs.
#[derive(Debug)]
pub(super) enum Kind {
    Exclusive,
    Read,
    Write,
    Permits(Permits),
    Tick(OneTick),
    /// Leadership; what others read of the leader, if not its label.
    Election(Option<String>),
}

/// One run of a scheduled job.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneTick {
    pub(super) tick: Tick,
    pub(super) is_never_twice: bool,
    /// A command that failed is not repeated.
    pub(super) is_done_after_failure: bool,
}

impl OneTick {
    /// Whether a run that has failed is repeated.
    pub(super) fn may_be_repeated(self) -> bool {
        !self.is_never_twice && !self.is_done_after_failure
    }
}

/// What the commands do not have in common.
pub(super) struct Own {
    pub(super) kind: Kind,
    pub(super) wait: Option<Duration>,
    pub(super) hold_at_least: Duration,
    pub(super) hold_at_most: Option<Duration>,
    pub(super) on_lost: OnLost,
}

/// The validated options.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) command: Vec<OsString>,
    pub(super) store: Store,
    pub(super) own: Own,
    pub(super) status: Option<PathBuf>,
    pub(super) verbose: bool,
    pub(super) quiet: bool,
    /// Whether hints are shown: cron would mail them with each run.
    hints: bool,
    /// By an option.
    pub(super) chose_ttl: bool,
    pub(super) label: String,
    pub(super) ttl: Ttl,
    grace: Option<Duration>,
    /// How long the store may be silent with -n.
    pub(super) try_within: Duration,
    /// To standard error.
    pub(super) reports: Reports,
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

impl Own {
    /// Without limits.
    pub(super) fn of(kind: Kind) -> Own {
        Own {
            kind,
            wait: None,
            hold_at_least: Duration::ZERO,
            hold_at_most: None,
            on_lost: OnLost::Term,
        }
    }
}

impl Plan {
    pub(super) fn new(
        job: Job,
        common: Common,
        own: Own,
        reports: Reports,
    ) -> Result<Plan, Outcome> {
        let store = Store::new(Config::read(job.store).map_err(Outcome::Configuration)?)?;
        let command = match job.shell {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line],
            None => job.command,
        };
        if common.status_json.as_deref() == Some(Path::new("-")) {
            return Err(Outcome::usage(
                "--status-json -: the standard output is the command's; name a file, or /dev/stderr, \
                 or /dev/stdout to mix the status with the command's output",
            ));
        }
        let ttl = common.ttl.or(store.ttl()?).or(store.config.ttl).unwrap_or_default();
        let try_within = store.unreachable_after()?.map_or(TRY_WITHIN, |it| it.min(TRY_WITHIN));
        let hints = common.wants_warnings();
        let label = common.label.or_else(|| store.config.label.clone());
        Ok(Plan {
            name: job.name,
            label: label.unwrap_or_else(|| program(&command)),
            command,
            store,
            own,
            status: common.status_json,
            verbose: common.verbose,
            quiet: common.quiet,
            hints,
            chose_ttl: common.ttl.is_some(),
            ttl,
            grace: common.grace,
            try_within,
            reports,
        })
    }

    /// Whether a lock that is not free is waited for.
    pub(super) fn waits(&self) -> bool {
        match self.own.kind {
            Kind::Tick(_) => self.own.wait.is_some_and(|limit| !limit.is_zero()),
            _ => self.own.wait != Some(Duration::ZERO),
        }
    }

    /// Tells the user something that is not an error.
    pub(super) fn note(&self, message: &str) {
        if !self.quiet {
            self.reports.say(message);
        }
    }

    /// Tells the user something that is the same in each run, where somebody reads it.
    pub(super) fn hint(&self, message: &str) {
        if self.hints {
            self.reports.say(message);
        }
    }

    /// When to end the command before the lock ends, computed from the shortest duration that the lock
    /// is promised for.
    pub(super) fn margins(&self, profile: &Profile) -> Result<Margins, Outcome> {
        let (lease, to_raise) = match profile.liveness {
            Liveness::Session(timeout) => (
                valid_between_heartbeats(timeout),
                "session= in the URL (maxSessionTimeout of the server limits it)",
            ),
            Liveness::Lease | Liveness::Process => (self.ttl.get(), "--ttl"),
        };
        let promise = self.own.hold_at_most.map_or(lease, |limit| limit.min(lease));
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
        let kill = (promise / 6).min(Duration::from_millis(250));
        // SIGKILL comes so long before the end, and SIGTERM before it.
        Ok(Margins { grace: grace.max(2 * kill), kill, promise })
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: super::super::Options,
    }

    /// Those of `fencelock run` with these options.
    async fn margins(options: &[&str], liveness: Liveness) -> Result<Margins, Outcome> {
        let fixed = ["run", "--url", "mem://", "job"];
        let all = fixed.iter().chain(options).chain(&["--", "true"]);
        let plan = Command::parse_from(all).options.plan(Reports::default())?;
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
}
