//! The command, as the wrapper sees it: started through a watchdog that outlives the wrapper.
//!
//! The watchdog is the command's parent. The kernel gives it the process group's number when it starts
//! the command, so the wrapper cannot die at a moment that leaves an unknown command behind. The
//! watchdog does not reap the command until the end, so the group's number cannot be reused while
//! signals may still be sent to it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencelock::backend::Moment;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, test_kill_process};

use super::ipc::{self, Channel, Order, Report};
use super::list::{Process, Processes, children, exists};
use super::orphans;
use super::tree::{ProcessTree, Reach, Refused, Rounds, Sent};
use crate::run::WATCHDOG;
use crate::run::reports::Reports;
use crate::run::signals::Blocked;

/// How long the command's processes are searched and killed. One that has not died of SIGKILL by then hangs in the
/// kernel, and may do so for ever.
const DEAD_WITHIN: Duration = Duration::from_secs(10);

/// What the command inherits, besides the environment and the open files of this process.
pub(crate) struct Inherited {
    /// Of the environment; `None` for one that is removed.
    pub(crate) variables: Vec<(&'static str, Option<OsString>)>,
    pub(crate) blocked: Blocked,
}

/// The command and its watchdog.
pub(crate) struct Child {
    channel: Channel,
    watchdog: Pid,
    /// Children of the wrapper that are not the command's: what was started by the program that
    /// became the wrapper, and what that left behind.
    strangers: Vec<Pid>,
    processes: ProcessTree,
    kill_at: Moment,
    /// Processes that could not be ended, and were reported.
    refused: Vec<Refused>,
    reported_blind: bool,
    reports: Reports,
}

impl Child {
    /// Starts `command`, before `start_before` of the boot clock or not at all, to be killed at `kill_at`.
    /// The lock is kept by `keep_alive`, which the command inherits.
    pub(crate) fn start(
        command: &[OsString],
        inherited: &Inherited,
        keep_alive: Option<BorrowedFd<'_>>,
        start_before: Moment,
        kill_at: Moment,
        reports: Reports,
    ) -> io::Result<Child> {
        // When the watchdog is killed, what is left of the command comes to the wrapper.
        orphans::adopt()?;
        let strangers = children(getpid());
        let (ours, theirs) = ipc::pair()?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let mut files = vec![stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        files.extend(keep_alive);
        ipc::send_files(&ours, &files)?;
        let channel = Channel::new(ours)?;
        channel.send(&Order::StartBefore { nanos: start_before.as_nanos() });
        channel.send(&Order::KillAt { nanos: kill_at.as_nanos() });
        let mut watchdog = Command::new(this_program()?);
        for (name, value) in &inherited.variables {
            match value {
                Some(value) => watchdog.env(name, value),
                None => watchdog.env_remove(name),
            };
        }
        watchdog
            .arg0("lock-watchdog")
            .arg(WATCHDOG)
            .arg("--")
            .args(command)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the terminal's signals, and of `kill` on our job.
            .process_group(0);
        let watchdog = pid(inherited.blocked.spawn(&mut watchdog)?.id())?;
        Ok(Child {
            channel,
            watchdog,
            strangers,
            processes: ProcessTree::below(watchdog),
            kill_at,
            refused: Vec::new(),
            reported_blind: false,
            reports,
        })
    }

    /// The next report; `None` when the watchdog is gone, or sends garbage, which is treated the same.
    /// Cancel safe.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        let report = self.channel.receive().await.unwrap_or(None);
        match report {
            Some(Report::Started { group }) => self.processes.group = Pid::from_raw(group),
            Some(_) => {}
            // Possibly before it reported that the command runs.
            None => self.processes.adopt(&self.strangers),
        }
        report
    }

    /// The command's process group, once it runs.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.processes.group
    }

    /// Sends `signal` to the command's group.
    pub(crate) fn signal(&self, signal: Signal) {
        self.send(signal, kill_process_group);
    }

    /// Sends `signal` to the command alone: a message for it, which its helpers might die of.
    pub(crate) fn message(&self, signal: Signal) {
        self.send(signal, kill_process);
    }

    fn send(&self, signal: Signal, send: fn(Pid, Signal) -> rustix::io::Result<()>) {
        if let Some(Err(error)) = self.group().map(|group| send(group, signal)) {
            tracing::debug!(target: "fencelock", %error, "signal {}", signal.as_raw());
        }
    }

    /// Sends `signal` to all processes within `reach`, and reports those that refuse to be ended by
    /// it. Returns how many got it.
    pub(crate) fn signal_all(&mut self, signal: Signal, reach: Reach) -> usize {
        self.adopt_orphans();
        let sent = self.processes.signal(signal, reach);
        let reached = sent.reached;
        if signal == Signal::TERM || signal == Signal::KILL {
            self.report_refusals(sent);
        }
        reached
    }

    /// Asks all processes within `reach` to end, by `signal`. Stopped ones could not even die.
    pub(crate) fn ask_to_end(&mut self, signal: Signal, reach: Reach) {
        self.signal_all(signal, reach);
        self.signal_all(Signal::CONT, reach);
    }

    /// Kills all processes within `reach` until none is left, while `go_on` returns `true`. Reports those that have not
    /// died within [`DEAD_WITHIN`].
    pub(crate) async fn kill_all(&mut self, reach: Reach, go_on: impl Fn() -> bool) {
        let until = Instant::now() + DEAD_WITHIN;
        let go_on = || Instant::now() < until && go_on();
        Rounds::until_none_is_left(|| self.signal_all(Signal::KILL, reach), go_on).await;
        if Instant::now() < until {
            return;
        }
        let left = self.processes.known.iter().map(|process| Refused {
            pid: process.pid,
            name: process.name.clone(),
            why: Errno::BUSY,
        });
        self.report_refusals(Sent { refused: left.collect(), ..Sent::default() });
    }

    /// Kills the watchdog if it is stopped: it would never report the end.
    pub(crate) fn kill_stopped_watchdog(&self) {
        if Process::read(self.watchdog).is_some_and(|it| it.is_stopped) {
            let _ = kill_process(self.watchdog, Signal::KILL);
        }
    }

    fn report_refusals(&mut self, sent: Sent) {
        if sent.blind && !std::mem::replace(&mut self.reported_blind, true) {
            self.reports.say(
                "/proc does not show our processes: what has left the command's process group is \
                 not ended",
            );
        }
        for refused in sent.refused {
            if self.refused.iter().all(|known| known.pid != refused.pid) {
                let (pid, name, why) = (refused.pid, &refused.name, refused.why);
                let cannot = format!("cannot end pid {pid} ({name}), a process of the command");
                self.reports.say(format!("{cannot}: {why}"));
                self.refused.push(refused);
            }
        }
    }

    /// The processes that could not be ended, and still run.
    pub(crate) fn survivors(&self) -> Vec<Refused> {
        if self.refused.is_empty() {
            return Vec::new();
        }
        let processes = Processes::read().ok();
        let refuses = |one: &&Refused| {
            let seen = processes.as_ref().and_then(|processes| processes.get(one.pid));
            test_kill_process(one.pid) != Err(Errno::SRCH) && seen.is_none_or(|it| it.lives)
        };
        self.refused.iter().filter(refuses).cloned().collect()
    }

    /// Has the watchdog kill the command at `moment` of the boot clock, unless the wrapper moves it
    /// on before. It does not when it is stopped or starved.
    pub(crate) fn kill_at(&mut self, moment: Moment) {
        if moment != self.kill_at {
            self.kill_at = moment;
            self.channel.send(&Order::KillAt { nanos: moment.as_nanos() });
        }
    }

    /// Has the watchdog start the command before `moment` of the boot clock or not at all, if it has not yet.
    pub(crate) fn start_before(&self, moment: Moment) {
        self.channel.send(&Order::StartBefore { nanos: moment.as_nanos() });
    }

    /// Lists which children of the wrapper are not the command's. While the watchdog lives, orphans
    /// of the command go to it, so that any other child has come from elsewhere.
    pub(crate) fn note_strangers(&mut self) {
        let ours = children(getpid());
        // After the list: had it died before, the list could have the command's processes.
        if Process::read(self.watchdog).is_some_and(|it| it.lives) {
            self.strangers = ours.into_iter().filter(|pid| *pid != self.watchdog).collect();
        }
    }

    /// Whether any process of the command runs.
    pub(crate) fn has_left_any(&self) -> bool {
        self.processes.lives(Reach::All)
    }

    /// Looks for the command's processes among our children once the watchdog is dead, whoever reads that it is.
    fn adopt_orphans(&mut self) {
        let is_dead =
            Process::read(self.watchdog).map_or_else(|| !exists(self.watchdog), |it| !it.lives);
        if is_dead {
            self.processes.adopt(&self.strangers);
        }
    }

    /// Waits until nothing within `reach` runs.
    pub(crate) async fn gone(&mut self, reach: Reach) {
        let mut pause = Duration::from_millis(1);
        loop {
            self.adopt_orphans();
            if !self.processes.lives(reach) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(Duration::from_millis(50));
        }
    }

    /// Ends the watchdog, which does not end what is left of the command.
    pub(crate) async fn finish(self) {
        self.channel.send(&Order::Done);
        // It ends at once, unless it was stopped.
        let ended = orphans::ended(self.watchdog);
        let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
    }
}

pub(crate) fn pid(number: u32) -> io::Result<Pid> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// This very program, also when its file was replaced meanwhile.
fn this_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
