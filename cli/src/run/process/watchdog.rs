//! The watchdog: starts the command, and kills it with all that descends from it when the wrapper is
//! gone (SIGKILL, a crash, the OOM killer) or has not moved the time limit on.
//!
//! The kernel's own parent-death signal does not do: it is sent when a *thread* ends, and spares
//! grandchildren. The race: the wrapper may die at any moment. Before this process has read the
//! end of the wire it has either not started the command yet, then it does and kills it at once,
//! or it knows the group. The group's number is its own: the leader stays unreaped until then.
//!
//! What descends from the command and has lost its parents becomes a child of this process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use fencelock::{BootClock, Clock, Moment};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, waitid};
use tokio::signal::unix::{SignalKind, signal};

use super::child::pid;
use super::ipc::{self, Channel, End, Order, Report};
use super::orphans;
use super::tree::{ProcessTree, Reach, Rounds, until};
use crate::run::exit::{EX_OSERR, EX_USAGE, say};
use crate::run::signals::Signals;

/// Not for people: `fencelock run` calls it.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Starts the command and watches until its wrapper is done with it, or gone.
pub(crate) async fn watch(options: Options) -> u8 {
    let Ok((channel, files)) = inherit().await else {
        say("this subcommand is a part of `fencelock run`, and of no use alone");
        return EX_USAGE;
    };
    match guard(&options.command, &channel, files).await {
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
    // A service manager ends all processes of a unit politely, and us too early: the wrapper
    // decides. Caught and left unread is as good as ignored, but the command does not inherit it.
    let _deaf = Signals::all()?;
    orphans::adopt()?;
    let mut changes = signal(SignalKind::child())?;
    let clock = BootClock::start()?;
    let leader = match spawn(command, files) {
        Ok(leader) => leader,
        Err(error) => {
            channel.report(Report::CannotExecute(error.raw_os_error().unwrap_or(0)));
            return Ok(());
        }
    };
    channel.report(Report::Started(leader));
    let mut processes = ProcessTree::below(getpid());
    processes.leads(leader);
    let mut kill_at = Moment::NEVER;
    let mut killing: Option<Rounds> = None;
    let mut ended = false;
    loop {
        let next_round = killing.as_ref().map(Rounds::next);
        tokio::select! {
            biased;
            order = channel.next_order() => match order {
                Ok(Some(Order::KillAt(moment))) => kill_at = moment,
                Ok(Some(Order::Done)) => break,
                // The wrapper has ended or sends garbage, which is treated the same.
                Ok(None) | Err(_) => {
                    let mut rounds = Rounds::begin();
                    while !rounds.is_over() {
                        tokio::time::sleep_until(rounds.next()).await;
                        rounds.reached(processes.signal(Signal::KILL, Reach::All).reached);
                    }
                    break;
                }
            },
            () = clock.sleep_until(kill_at) => {
                channel.report(Report::OutOfTime);
                killing = Some(Rounds::begin());
                kill_at = Moment::NEVER;
            }
            () = until(next_round), if next_round.is_some() => {
                let reached = processes.signal(Signal::KILL, Reach::All).reached;
                killing.iter_mut().for_each(|rounds| rounds.reached(reached));
            }
            Some(()) = changes.recv() => {
                orphans::reap_all_but(leader);
                ended = ended || tell(leader, channel);
            }
        }
    }
    orphans::ended(leader).await
}

/// Starts the command as the leader of a group. What it inherits is not ours to keep: a reader of
/// its output waits until the last copy is closed, and the lock is kept by the last copy.
fn spawn(command: &[OsString], files: Vec<OwnedFd>) -> io::Result<Pid> {
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or(io::ErrorKind::UnexpectedEof);
    let (stdin, stdout, stderr) = (next()?, next()?, next()?);
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    // A copy that is not closed on exec. Nothing else is executed here.
    let _keep_alive = files.next().map(rustix::io::dup).transpose()?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(0)
        .spawn()?;
    pid(child.id())
}

/// Reports what became of the leader. `true` when it has ended; it stays unreaped.
fn tell(leader: Pid, channel: &Channel) -> bool {
    let changed = |what| waitid(WaitId::Pid(leader), what | WaitIdOptions::NOHANG).ok().flatten();
    if let Some(signal) = changed(WaitIdOptions::STOPPED).and_then(|it| it.stopping_signal()) {
        channel.report(Report::Stopped(signal));
    }
    let ended = changed(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    if let Some(end) = ended.as_ref().and_then(end_of) {
        channel.report(Report::Ended(end));
    }
    ended.is_some()
}

fn end_of(status: &WaitIdStatus) -> Option<End> {
    let exited = status.exit_status().map(End::Exited);
    exited.or_else(|| status.terminating_signal().map(End::Killed))
}
