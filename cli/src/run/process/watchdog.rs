//! The watchdog: starts the command, and kills it with all that descends from it when the wrapper is
//! gone (SIGKILL, a crash, the OOM killer) or has not moved the deadline on. It starts nothing once the
//! lock may have ended: it, or the wrapper, may have been stopped or starved since the grant.
//!
//! The kernel's own parent-death signal does not do: it is sent when a *thread* ends, and spares
//! grandchildren. The wrapper may die at any moment. When this process reads the end of the channel,
//! it either has not started the command yet, and does not, or it knows the
//! group. The group's number keeps its meaning: the leader stays unreaped until then.
//!
//! Descendants of the command that lose their parents become children of this process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use fencelock::backend::Moment;
use fencelock::backend::{BootClock, Clock};
use fencelock_cli::{EX_USAGE, say};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, getppid, waitid};
use tokio::signal::unix::{SignalKind, signal};

use super::child::pid;
use super::ipc::{self, Channel, End, Order, Report};
use super::orphans;
use super::tree::{ProcessTree, Reach, Rounds, until};
use crate::run::exit::EX_OSERR;
use crate::run::signals::{self, Blocked};

/// Starts the command and watches until its wrapper is done with it, or gone.
pub(crate) async fn watch(command: Vec<OsString>) -> u8 {
    // Linux would call it `exe`. A name that `pkill -9 fencelock` does not match: the wrapper and it, killed in
    // the same moment, would leave the command alone.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lock-watchdog");
    let Ok((channel, files)) = inherit().await else {
        say("this subcommand is a part of `fencelock run`, and useless alone");
        return EX_USAGE;
    };
    match guard(&command, &channel, files).await {
        Ok(()) => 0,
        Err(_) => EX_OSERR,
    }
}

async fn inherit() -> io::Result<(Channel, Vec<OwnedFd>)> {
    let channel = Channel::new(io::stdin().as_fd().try_clone_to_owned()?)?;
    let files = ipc::receive_files(&channel).await?;
    Ok((channel, files))
}

async fn guard(command: &[OsString], channel: &Channel, files: Vec<OwnedFd>) -> io::Result<()> {
    // A service manager sends SIGTERM to all processes of a unit, but the wrapper decides when this
    // one ends. Signals are caught rather than ignored, since the command would inherit that.
    signals::drop_all()?;
    let blocked = Blocked::unblock()?;
    orphans::adopt()?;
    let mut changes = signal(SignalKind::child())?;
    let clock = BootClock::start()?;
    let [Some(Order::StartBefore { mut nanos }), Some(Order::KillAt { nanos: mut kill_at })] =
        [channel.receive().await?, channel.receive().await?]
    else {
        // The wrapper is gone.
        return Ok(());
    };
    // What the wrapper has learnt while this process was starting, or was stopped.
    while let Some(order) = channel.pending() {
        match order {
            Order::StartBefore { nanos: now } => nanos = now,
            Order::KillAt { nanos } => kill_at = nanos,
            Order::Done => return Ok(()),
        }
    }
    if channel.is_closed() {
        return Ok(());
    }
    if clock.now() >= Moment::from_nanos(nanos.min(kill_at)) {
        channel.send(&Report::TooLate);
        return Ok(());
    }
    let leader = match spawn(command, files, blocked) {
        Ok(leader) => leader,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            channel.send(&Report::CannotExecute { errno });
            return Ok(());
        }
    };
    channel.send(&Report::Started { group: leader.as_raw_pid() });
    let mut processes = ProcessTree::below(getpid());
    processes.group = Some(leader);
    let mut kill_at = Moment::from_nanos(kill_at);
    let mut killing: Option<Rounds> = None;
    let mut ended = false;
    loop {
        let next_round = killing.as_ref().map(Rounds::next);
        tokio::select! {
            biased;
            order = channel.receive() => match order {
                Ok(Some(Order::KillAt { nanos })) => kill_at = Moment::from_nanos(nanos),
                Ok(Some(Order::Done)) => break,
                Ok(Some(Order::StartBefore { .. })) => {}
                // The wrapper has ended or sends garbage, which is treated the same.
                Ok(None) | Err(_) => {
                    let kill = || processes.signal(Signal::KILL, Reach::All).reached;
                    Rounds::until_none_is_left(kill, || true).await;
                    break;
                }
            },
            () = clock.sleep_until(kill_at) => {
                channel.send(&Report::OutOfTime);
                killing = Some(Rounds::begin());
                kill_at = Moment::NEVER;
            }
            () = until(next_round), if next_round.is_some() => {
                let reached = processes.signal(Signal::KILL, Reach::All).reached;
                killing.iter_mut().for_each(|rounds| rounds.reached(reached));
            }
            Some(()) = changes.recv() => {
                orphans::reap_all_but(leader);
                ended = ended || report_changes(leader, channel);
            }
        }
    }
    orphans::ended(leader).await
}

/// Starts the command as the leader of a group. The files that it inherits are closed here: a reader
/// of its output waits until the last copy is closed, and the lock is kept by the last copy.
fn spawn(command: &[OsString], files: Vec<OwnedFd>, blocked: Blocked) -> io::Result<Pid> {
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or(io::ErrorKind::UnexpectedEof);
    let (stdin, stdout, stderr) = (next()?, next()?, next()?);
    let command = [with_own_pid(), command.to_vec()].concat();
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // A copy that is not closed on exec. Nothing else is executed here.
    let _keep_alive = files.next().map(rustix::io::dup).transpose()?;
    let mut child = Command::new(program);
    child.args(arguments).stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout));
    child.stderr(Stdio::from(stderr)).process_group(0);
    pid(blocked.spawn(&mut child)?.id())
}

/// What stands before a command for which a service manager has named the wrapper by its number, as the process
/// that gets open sockets (sd_listen_fds(3)) or reports that it is alive (sd_watchdog_enabled(3)): the command
/// has its own number in there, which only a process that becomes it can know.
fn with_own_pid() -> Vec<OsString> {
    let Some(wrapper) = getppid().map(|wrapper| wrapper.as_raw_pid().to_string()) else {
        return Vec::new();
    };
    let names = ["LISTEN_PID", "WATCHDOG_PID"].into_iter();
    let named = names.filter(|name| std::env::var(name).is_ok_and(|pid| pid == wrapper));
    let set: String = named.map(|name| format!("{name}=$$ ")).collect();
    // LISTEN_PIDFDID names the wrapper, too, and is compared where it is there.
    let script = format!("unset LISTEN_PIDFDID; {set}exec \"$@\"");
    match set.is_empty() {
        true => Vec::new(),
        false => ["/bin/sh", "-c", &script, "sh"].map(OsString::from).to_vec(),
    }
}

/// Reports that the leader has stopped or ended. Returns whether it has ended; it stays unreaped.
fn report_changes(leader: Pid, channel: &Channel) -> bool {
    let changed = |what| waitid(WaitId::Pid(leader), what | WaitIdOptions::NOHANG).ok().flatten();
    if let Some(signal) = changed(WaitIdOptions::STOPPED).and_then(|it| it.stopping_signal()) {
        channel.send(&Report::Stopped { signal });
    }
    let ended = changed(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    if let Some(end) = ended.as_ref().and_then(end_of) {
        channel.send(&Report::Ended(end));
    }
    ended.is_some()
}

fn end_of(status: &WaitIdStatus) -> Option<End> {
    let exited = status.exit_status().map(End::Exited);
    exited.or_else(|| status.terminating_signal().map(End::Killed))
}
