//! The command, as the wrapper sees it: started through a watchdog that outlives us.
//!
//! The watchdog is the command's parent. It knows the process group by being told by the kernel
//! when it starts the command, so there is no moment at which the wrapper could die and leave a
//! command that nobody knows of. And it leaves the command unreaped until the end, so the group's
//! number cannot come to mean anybody else's while somebody may still send signals to it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::time::Duration;

use fencelock::Moment;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child as Process, Command};

use super::WATCHDOG;
use super::wire::{self, Order, Report, Wire};

/// The command and its watchdog.
#[derive(Debug)]
pub(super) struct Child {
    wire: Wire,
    watchdog: Process,
    group: Option<Pid>,
    kill_at: Moment,
}

impl Child {
    /// Starts `command` with `variables` in its environment, to be killed at `kill_at` of the boot
    /// clock. The lock is kept by `keep_alive`, which the command inherits.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&str, String)],
        keep_alive: Option<BorrowedFd<'_>>,
        kill_at: Moment,
    ) -> io::Result<Child> {
        let (ours, theirs) = wire::pair()?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let mut files = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        files.extend(keep_alive);
        wire::send_files(&ours, &files)?;
        let wire = Wire::new(ours)?;
        wire.order(Order::KillAt(kill_at));
        let watchdog = Command::new(this_program()?)
            .arg0("fencelock-watchdog")
            .arg(WATCHDOG)
            .arg("--")
            .args(command)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the terminal's signals, and of `kill` on our job.
            .process_group(0)
            .spawn()?;
        Ok(Child { wire, watchdog, group: None, kill_at })
    }

    /// What happened next; `None` when the watchdog is gone. Cancel safe.
    pub(super) async fn report(&mut self) -> io::Result<Option<Report>> {
        let report = self.wire.next_report().await?;
        if let Some(Report::Started(group)) = report {
            self.group = Some(group);
        }
        Ok(report)
    }

    /// The command's process group, once it runs.
    pub(super) fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Sends `signal` to the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Refused only where the command changed its user, as sudo does.
            if let Err(error) = kill_process_group(group, signal) {
                tracing::debug!(target: "fencelock", %error, "signal {}", signal.as_raw());
            }
        }
    }

    /// Has the watchdog kill the group at `moment` of the boot clock, should we not be there to
    /// move it on: stopped, or starved.
    pub(super) fn kill_at(&mut self, moment: Moment) {
        if moment != self.kill_at {
            self.kill_at = moment;
            self.wire.order(Order::KillAt(moment));
        }
    }

    /// Whether the group has a member left that is more than a zombie.
    pub(super) fn group_lives(&self) -> bool {
        self.group.is_some_and(group_lives)
    }

    /// Ends the watchdog, which leaves whatever is left of the group alone.
    pub(super) async fn finish(mut self) {
        self.wire.order(Order::Done);
        // It ends at once, unless somebody stopped it.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.watchdog.wait()).await;
    }
}

/// This very program, also when its file was replaced meanwhile.
fn this_program() -> io::Result<std::path::PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

/// The leader stays a zombie until the end, and a signal 0 finds zombies too: only `/proc` tells.
/// Where it cannot, the group counts as alive.
fn group_lives(group: Pid) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let number = group.as_raw_pid().to_string();
    processes.flatten().any(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // pid (name) state parent group …; the name may hold anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next().unwrap_or("X");
        fields.nth(1) == Some(&number) && !matches!(state, "Z" | "X")
    })
}
