//! The options of `fencelock run`, parsed once. flock's letters keep their meaning.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use fencelock::{Liveness, Lock, Locks, Permits, Profile, Ttl, parse_duration};

use super::exit::{Codes, Outcome};
use super::store::Store;

/// How long a store may take to answer -n: enough for a slow store, short enough for a caller that
/// asked not to wait.
const TRY_WITHIN: Duration = Duration::from_secs(2);

const EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128+n when signal n ended the command or the wait
  64  usage error, or a lock already held by an enclosing `fencelock run`
  69  the store did not answer: within the --wait limit, or unreachable_after without one (30 s), or
      2 s with -n; --skip-ok does not hide it
  70  the watchdog was killed, so the command was killed too
  71  the system refused a process or a descriptor
  75  busy, or the wait timed out (-E CODE, --skip-ok)
  78  configuration: invalid store URL, or refused by the store
  79  the lock was lost or about to be lost, or --hold-at-most was reached
  126 the command cannot be executed
  127 the command was not found";

const MORE: &str = "\
The command leads a process group of its own, in the terminal's foreground if fencelock is. When the
command exits, the lock is released; its background processes continue without a lock.

If the store cannot be reached yet, for example while it restarts, fencelock waits for it as for a busy
lock, within the same limit: -n makes a single attempt. A refused login or an invalid URL is an error at
once.

When the lock is about to end, a message says why. The command and all processes that descend from it
get SIGTERM (see --grace), and SIGKILL before another client can be granted the lock; SIGKILL at once
when the store reports that the lock is no longer held. Processes in other groups or sessions are
included (timeout(1), shells with job control, daemons). fencelock waits for the release to be confirmed
until 1 s after the lock's own end. When fencelock is killed, or stopped for longer than the lock lasts,
a watchdog kills the same processes. A process that cannot be ended because it runs as another user
(sudo) is named on standard error at once. Processes that other programs start for the command (a
container's daemon, systemd-run, at) do not descend from it and are not ended.

SIGTERM is passed on to all of these processes; SIGINT, SIGQUIT and SIGHUP to all but those in a
session of their own. When the command then dies of the signal, or has exited after a SIGTERM, its
remaining processes are ended too, with SIGKILL after --grace. SIGUSR1, SIGUSR2, SIGALRM and similar
signals are passed on to the command alone; real-time signals are dropped.

A job that was stopped by Ctrl-Z keeps its lock on the file store; on a store with leases it is
killed at the lease's end, because the lease is no longer renewed.

Environment of the command:
  FENCELOCK_NAME      the lock
  FENCELOCK_TOKEN     its fencing token, for the protected resource to check
  FENCELOCK_STORE     the store, without password and parameters
  FENCELOCK_DEADLINE  with --hold-at-most: its end, in Unix seconds
  FENCELOCK_HELD      all locks that the command runs under: a second `fencelock run` for one of them is an
                      error rather than a deadlock; unset it for processes that outlive the lock

Passwords: a command inherits FENCELOCK_URL with the whole environment, password included, so that a
`fencelock run` inside it needs no --url. A URL given by --url is not passed to the command, but
every user of the machine can see it in the process list. Messages and --status-json show neither.

--flock-compat exits like flock(1): 1 busy, 65 invalid URL, 66 refused by the store, 69 the command
cannot be executed, 71 the store did not answer. A lost lock stays 79.";

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

    /// Store URL, such as redis://HOST or file:///DIR; the default, file://, is a per-user
    /// directory on this machine
    #[arg(long, env = fencelock::URL_VARIABLE, default_value = "file://", hide_env_values = true)]
    url: String,
    /// Fail rather than wait; the store itself gets 2 s to answer
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    nonblock: bool,
    /// Wait no longer than this for the store and the lock; fractions allowed, 0 is -n
    #[arg(short, long, visible_alias = "timeout", value_name = "SECONDS", value_parser = seconds)]
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
    /// How long the store keeps the lock if this program stops responding
    #[arg(long, value_name = "DUR", value_parser = ttl)]
    ttl: Option<Ttl>,
    /// Keep the lock at least this long, even if the command ends earlier
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    hold_at_least: Option<Duration>,
    /// End the command before it has held the lock for longer than this
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    hold_at_most: Option<Duration>,
    /// When the lock is about to be lost: terminate the command, kill it, or only print a message
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    on_lost: OnLost,
    /// Time between SIGTERM and the lock's end; at most half the TTL, or 0.27 of the session on zk://
    /// [default: a third of the time that the lock lasts without renewal, at most 5s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// Exit with 0 if the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    skip_ok: bool,
    /// Write a JSON status to FILE, once when granted and once at the end
    #[arg(long, value_name = "FILE")]
    status_json: Option<PathBuf>,
    /// Exit with flock's codes, such as 1 for busy
    #[arg(long)]
    flock_compat: bool,
    /// Report how long the wait took, and who holds the lock meanwhile
    #[arg(long)]
    verbose: bool,
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
}

impl Plan {
    pub(super) fn new(options: Options) -> Result<Plan, Outcome> {
        let store = Store::new(options.url)?;
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
        let ttl = match options.ttl {
            Some(ttl) => ttl,
            None => store.ttl()?,
        };
        let try_within = store.unreachable_after()?.map_or(TRY_WITHIN, |it| it.min(TRY_WITHIN));
        Ok(Plan {
            name: options.name,
            command,
            store,
            wait: if options.nonblock { Some(Duration::ZERO) } else { options.wait },
            hold_at_least,
            hold_at_most: options.hold_at_most,
            on_lost: options.on_lost,
            status: options.status_json,
            verbose: options.verbose,
            kind,
            ttl,
            grace: options.grace,
            try_within,
        })
    }

    /// The lock to acquire.
    pub(super) fn lock(&self, locks: &Locks) -> Lock {
        let lock = match self.kind {
            Kind::Exclusive => locks.lock(&self.name),
            Kind::Read => locks.rw_lock(&self.name).read(),
            Kind::Write => locks.rw_lock(&self.name).write(),
            Kind::Permits(permits) => {
                locks.semaphore(&self.name, permits.limit()).permits(permits.n())
            }
        };
        let lock = lock.ttl(self.ttl.get()).label(&self.program());
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

    /// The command's own name, without its arguments, which may hold secrets.
    pub(super) fn program(&self) -> String {
        let program = self.command.first().map(PathBuf::from).unwrap_or_default();
        program.file_name().unwrap_or_default().to_string_lossy().into_owned()
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
                     lower it, or raise {to_raise}",
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

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| "expected seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected seconds, 0 or more".to_owned())
}

fn ttl(text: &str) -> Result<Ttl, fencelock::Error> {
    Ttl::new(parse_duration(text)?)
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
}
