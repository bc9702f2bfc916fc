//! The texts below the options in the help of `fencelock run`, `once` and `elect`.
//!
//! A paragraph is one line here, which clap wraps to the width of the terminal; only tables are
//! wrapped by hand, for 80 columns.

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128+n when signal n ended the command or the wait
  64  usage error, a FILE of --status-json that cannot be written, or a lock
      already held by an enclosing fencelock
  69  the store did not answer: within the --wait limit, or unreachable_after
      without one (30 s), or 2 s with -n; --skip-ok does not hide it
  70  the watchdog was killed, so the command was killed too
  71  the system refused a process or a descriptor
  75  busy, or the wait timed out (-E CODE, --skip-ok)
  78  configuration: invalid store URL or file, a store that excludes too
      little, or refused by the store
  79  the lock was lost or about to be lost, or --hold-at-most was reached
  126 the command cannot be executed
  127 the command was not found";

pub(super) const MORE: &str = "\
Durations have a unit, such as 500ms, 2s or 1m30s. Only --wait also takes plain seconds, as flock does.

The store:
The URL is taken from the first of these places that has one: --url; the file of --config; FENCELOCK_URL; the file that FENCELOCK_URL_FILE names, which contains only the URL; the file that FENCELOCK_CONFIG names, or else ~/.config/fencelock.toml (in $XDG_CONFIG_HOME, if that is set) and then /etc/fencelock.toml. Without any, the store is file://, the directory of this user on this machine; on a terminal or with --verbose a line says so, unless a reach is required (--reach). mem:// is refused: it would exclude no other process.

A configuration file has any of the following keys. Each is the default of the option of that name; a ttl= in the URL has priority over ttl. Both default files are read, and the user's has priority for each key. An unknown key is an error. A file that contains a password should be readable only by the users who need it:
  url = \"redis://:PASSWORD@HOST\"
  reach = \"network\"
  ttl = \"30s\"
  label = \"web-1, nightly\"

--reach network refuses a store that excludes only the processes of one machine, so that a job without its configuration fails rather than runs on every machine. --reach machine accepts both.

The command:
The command leads a process group of its own, in the terminal's foreground if fencelock is. When the command exits, the lock is released; its background processes continue without a lock.

If the store cannot be reached yet, for example while it restarts, fencelock waits for it as for a busy lock, within the same limit: -n makes a single attempt. A refused login or an invalid URL is an error at once.

When the lock is about to end, a message says why. The command and all processes that descend from it get SIGTERM (see --grace), and SIGKILL before another client can be granted the lock; SIGKILL at once when the store reports that the lock is no longer held. Processes in other groups or sessions are included (timeout(1), shells with job control, daemons). After that, fencelock waits for the store at most until 1 s after the lock's own end, to release the lock and to close the connection. When fencelock is killed, or stopped for longer than the lock lasts, a watchdog kills the same processes. A process that cannot be ended because it runs as another user (sudo) is named on standard error at once. Processes that other programs start for the command (a container's daemon, systemd-run, at) do not descend from it and are not ended.

SIGTERM is passed on to the command alone, and to its other processes when it has ended, or after --grace; SIGINT, SIGQUIT and SIGHUP to all but those in a session of their own. When the command then dies of the signal, or has exited after a SIGTERM, its remaining processes are ended too, with SIGKILL after --grace. SIGUSR1, SIGUSR2, SIGALRM and similar signals are passed on to the command alone; real-time signals are dropped.

While --hold-at-least keeps the lock after the command has ended, SIGTERM, SIGINT, SIGQUIT and SIGHUP release it at once, and the exit code is 128+n. After SIGKILL the lock stays until the store frees it, as after any crash.

A job that was stopped by Ctrl-Z keeps its lock on the file store; on a store with leases it is killed at the lease's end, because the lease is no longer renewed.

Environment of the command:
  FENCELOCK_NAME      the lock
  FENCELOCK_TOKEN     its fencing token, for the protected resource to check
  FENCELOCK_STORE     the store, without password and parameters
  FENCELOCK_DEADLINE  with --hold-at-most: its end, in Unix seconds
  FENCELOCK_HELD      all locks that the command runs under: a second
                      fencelock for one of them is an error rather than a
                      deadlock; unset it for processes that outlive the lock
  FENCELOCK_CONFIG    with --config: the file; FENCELOCK_URL and
                      FENCELOCK_URL_FILE are unset if the file has the URL

Passwords: keep the URL in a configuration file or in the file of FENCELOCK_URL_FILE: then neither the command's environment nor the process list shows the password, and a `fencelock run` inside the command finds the same store. FENCELOCK_URL is inherited by the command with the whole environment, password included. A URL given by --url is not passed to the command, but every user of the machine can see it in the process list. Messages and --status-json never show a password.

Messages: --verbose also reports the grant, the holders that are waited for, and warnings of the stores, such as about settings of a server that endanger locks; on a terminal these warnings are shown without it. --quiet leaves out everything but errors and losses, also that the lock is busy. --log or RUST_LOG replace the warnings by a log. Colours appear on terminals only, and not with NO_COLOR. Neither the lock nor the command waits for who reads all this: what a full pipe or a stopped terminal, or the file of --status-json, has not taken 5 s after the end is left out.

--status-json replaces a regular file as a whole, and appends a line to anything else, such as a named pipe or /dev/stderr. A fencing token is a string there: many JSON readers round large numbers.

--flock-compat exits like flock(1): 1 busy, in silence and in place of 75, 65 invalid URL or configuration, 66 refused by the store, 69 the command cannot be executed, 71 the store did not answer. A lost lock stays 79.";

pub(super) const ONCE_EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128+n when signal n ended the command or the wait, or
  the command exited with 0 after it
  0   also when the tick is skipped: it was run already, or another machine
      runs the job and --wait is not given or timed out (--skipped CODE)
  64  usage error, a FILE of --status-json that cannot be written, or a lock
      already held by an enclosing fencelock
  69  the store did not answer: within the --wait limit, or unreachable_after
      without one (30 s); after the command's end also: it is unknown whether
      the tick is marked as done
  70, 71, 126, 127  as `fencelock run`
  78  configuration: invalid store URL or file, a store that excludes too
      little or that has no cells, or refused by the store
  79  the lock was lost or about to be lost, or --hold-at-most was reached:
      the tick is not done";

pub(super) const ONCE_MORE: &str = "\
Several machines have the same line in their schedules; each tick of the schedule is run by the one that comes first. A tick is the number of whole periods (--per) since 1970, in UTC, by this machine's clock when fencelock starts. It only says which run is meant. A machine whose clock is behind asks for a tick that is done, and skips it; one whose clock is ahead runs it early, once; no clock stops the others. Choose a period no longer than the time between two runs of the schedule, and longer than its random delays, such as those of anacron or RandomizedDelaySec=. All machines need the same period, and schedules in the same time zone.

A tick is done when its command has exited with 0, or has ended at all with --failed-is-done; then it is never run again. A run that failed, lost its lock, or whose machine died is not done, nor is one that exits with 0 after SIGTERM, SIGINT or SIGQUIT (the exit code is 128+n then): another machine that waits (--wait), or the next that asks, runs it again, after the first has ended. No two runs of a job overlap, of whichever tick. With --never-twice a tick is run at most once: it counts as begun before the command starts.

A tick that comes while the run of an earlier one still lasts is skipped, unless --wait lasts until then; it is run after that if any machine asks for it again.

The store remembers which ticks are done for 90 days, or 10 periods if that is longer. If its data is lost, a tick may be run again. redlock:// has no cells, in which this is kept: take `fencelock run -n --skip-ok --hold-at-least` there.

once holds the lock NAME while the command runs: `fencelock show NAME`, `fencelock break NAME` and `fencelock run NAME` mean the same lock.

The command, its signals and its environment, the store, configuration files, passwords and --status-json are as for `fencelock run`: see its --help. The outcome in the status is \"done\" or \"busy\" for a skipped tick.";

pub(super) const ELECT_EXIT_CODES: &str = "\
Exit codes:
  the command's own, once it has ended by itself; 128+n when signal n ended
  the command or the wait
  64  usage error, a FILE of --status-json that cannot be written, or a lock
      already held by an enclosing fencelock
  69  the store could not be reached at the start
  70, 71, 126, 127  as `fencelock run`
  78  configuration: invalid store URL or file, a store that excludes too
      little or that has no cells, or refused by the store
  79  the term was lost while the command was ending after a signal";

pub(super) const ELECT_MORE: &str = "\
Waits in line until it leads, and runs the command while it leads. When the term is lost or about to be lost, the command and all processes that descend from it get SIGTERM, and SIGKILL before another candidate can lead, as with `fencelock run`; then it campaigns again, behind those in line, and starts the command again in its next term. It ends when the command ends by itself, with the command's exit code, and resigns: then the next candidate leads. A program that is to run for ever needs a service manager that starts fencelock again, such as systemd's Restart=always.

A store that is silent, or away for a while, is waited for without a limit once it has been reached. SIGTERM, SIGINT and SIGQUIT are passed on to the command, after which it does not campaign again.

`fencelock leader NAME` shows the leader's term and words. The term is the fencing token, which the command finds in FENCELOCK_TOKEN: what the leader writes to should check it, since a leader that was paused may write late.

elect holds the lock NAME while it leads: `fencelock show NAME` also shows who waits, `fencelock break NAME` ends the term.

The command and its environment, the store, configuration files, passwords and --status-json are as for `fencelock run`: see its --help. The status is also written when a term is lost, with the outcome \"waiting\".";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    enum Command {
        Run(Box<crate::run::Options>),
        Once(Box<crate::run::OnceOptions>),
        Elect(Box<crate::run::ElectOptions>),
    }

    /// A paragraph that is wrapped by hand would be wrapped again in a narrow terminal.
    #[test]
    fn the_help_fits_each_width() {
        for width in [80, 100] {
            for name in ["run", "once", "elect"] {
                let mut program = Command::command().term_width(width);
                program.build();
                let command = program.find_subcommand_mut(name).expect("a command");
                for help in [command.render_help(), command.render_long_help()] {
                    for line in help.to_string().lines() {
                        assert!(line.chars().count() <= width, "{width}: {line}");
                    }
                }
            }
        }
        let by_hand = [EXIT_CODES, ONCE_EXIT_CODES, ELECT_EXIT_CODES].map(str::lines);
        for line in
            by_hand.into_iter().flatten().chain(MORE.lines().filter(|line| line.starts_with(' ')))
        {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
