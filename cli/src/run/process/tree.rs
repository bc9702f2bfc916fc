//! The command's processes: its process group, and all other processes that descend from it.
//!
//! A process leaves the command's group easily: `timeout`, a shell with job control, `setsid` and
//! each daemon do. It cannot leave its ancestors: the watchdog is the subreaper to which the kernel
//! gives the children of those that have ended, so all of them stay below it.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, test_kill_process,
    test_kill_process_group,
};
use tokio::time::Instant;

use super::list::{Process, Processes, exists};

/// How far a signal reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The command's process group and its descendants in the same session: daemons are not.
    Session,
    /// The command itself.
    Command,
    /// All descendants but the command itself.
    Rest,
    /// All descendants.
    All,
}

/// The command's processes.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// The group that the command leads, once it runs.
    pub(crate) group: Option<Pid>,
    /// All of them are below this process.
    root: Pid,
    /// Children of the root that are not the command's.
    strangers: Vec<Pid>,
    /// The processes that got the last signal. Reading `/proc` takes a while on a busy machine, and
    /// time is short when a lock ends: these are killed first.
    pub(crate) known: Vec<Process>,
}

/// The result of sending a signal.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The number of running processes that got it.
    pub(crate) reached: usize,
    /// The running processes that did not get it.
    pub(crate) refused: Vec<Refused>,
    /// `/proc` does not show the processes: only the group got it.
    pub(crate) blind: bool,
}

/// A process that a signal was refused for: it runs as another user.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) pid: Pid,
    pub(crate) name: String,
    pub(crate) why: Errno,
}

/// When to kill again: one reading of `/proc` misses what starts meanwhile.
#[derive(Debug)]
pub(crate) struct Rounds {
    next: Instant,
    pause: Duration,
    empty: u32,
}

impl Rounds {
    /// The first round is due now.
    pub(crate) fn begin() -> Rounds {
        Rounds { next: Instant::now(), pause: Duration::from_millis(1), empty: 0 }
    }

    /// When the next round is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Records a round that killed `reached` processes.
    pub(crate) fn reached(&mut self, reached: usize) {
        self.empty = if reached == 0 { self.empty + 1 } else { 0 };
        self.pause = match self.is_over() {
            // A process that refused may still start one that does not.
            true => Duration::from_secs(1),
            false => (2 * self.pause).min(Duration::from_millis(50)),
        };
        self.next = Instant::now() + self.pause;
    }

    /// Whether nothing is left that can be killed: three rounds in a row found nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.empty >= 3
    }

    /// Carries out rounds until nothing is left, while `go_on` returns `true`. A round kills what it
    /// finds, and returns how many that were.
    pub(crate) async fn until_none_is_left(
        mut round: impl FnMut() -> usize,
        go_on: impl Fn() -> bool,
    ) {
        let mut rounds = Rounds::begin();
        while !rounds.is_over() && go_on() {
            tokio::time::sleep_until(rounds.next()).await;
            rounds.reached(round());
        }
    }
}

impl ProcessTree {
    /// All that descends from the watchdog, `root`.
    pub(crate) fn below(root: Pid) -> ProcessTree {
        ProcessTree { group: None, root, strangers: Vec::new(), known: Vec::new() }
    }

    /// The watchdog has ended, so its descendants have become our children, in addition to our own.
    pub(crate) fn adopt(&mut self, strangers: &[Pid]) {
        self.root = getpid();
        self.strangers = strangers.to_vec();
    }

    /// Sends `signal` to all processes within `reach`. Those that start meanwhile are missed.
    pub(crate) fn signal(&mut self, signal: Signal, reach: Reach) -> Sent {
        // First, since it takes no time: what the group starts from now on is not missed.
        let group = match (self.group, reach) {
            (Some(command), Reach::Command) => kill_process(command, signal),
            (Some(group), Reach::Session | Reach::All) => kill_process_group(group, signal),
            (None, _) | (_, Reach::Rest) => Ok(()),
        };
        if signal == Signal::KILL && reach == Reach::All {
            for process in &self.known {
                // A refusal is noticed below.
                let _ = process.signal(signal);
            }
        }
        let Ok(mut processes) = Processes::read() else {
            let group = match self.group {
                // Rather twice to the command than never to what it may wait for.
                Some(all) if reach == Reach::Rest => kill_process_group(all, signal),
                _ => group,
            };
            return Sent { blind: true, ..self.of_group(group) };
        };
        // A process that starts a successor and ends, again and again, is found here if nowhere else.
        processes.add_children(self.root);
        let (below, outside) = processes.split(self.root, &self.strangers);
        let within = self.within(&processes, &below, reach);
        if signal == Signal::KILL && reach == Reach::All {
            kill_groups(&below, &outside);
        }
        let blind = processes.get(self.root).is_none() && exists(self.root);
        let mut sent = Sent { blind, ..Sent::default() };
        for process in &within {
            let is_in_group = self.is_in_group(process) && reach != Reach::Rest;
            let answer = match is_in_group && signal != Signal::KILL {
                // It got it with its group, unless that was refused.
                true => test_kill_process(process.pid),
                false => process.signal(signal),
            };
            match answer {
                Ok(()) | Err(Errno::SRCH) => sent.reached += 1,
                Err(why) => {
                    let name = process.name.clone();
                    sent.refused.push(Refused { pid: process.pid, name, why });
                }
            }
        }
        self.known = within.into_iter().cloned().collect();
        sent
    }

    /// Whether a process within `reach` still runs. If that is unknown, yes, so that all have time to end.
    pub(crate) fn lives(&self, reach: Reach) -> bool {
        let Ok(processes) = Processes::read() else { return true };
        if processes.get(self.root).is_none() {
            return exists(self.root);
        }
        let (below, _) = processes.split(self.root, &self.strangers);
        !self.within(&processes, &below, reach).is_empty()
    }

    /// The processes that run within `reach`.
    fn within<'a>(
        &self,
        processes: &Processes,
        below: &[&'a Process],
        reach: Reach,
    ) -> Vec<&'a Process> {
        let session = processes.get(self.root).map(|root| root.session);
        let is_within = |process: &Process| match reach {
            Reach::Session => self.is_in_group(process) || Some(process.session) == session,
            Reach::Command => Some(process.pid) == self.group,
            Reach::Rest => Some(process.pid) != self.group,
            Reach::All => true,
        };
        below.iter().copied().filter(|process| process.lives && is_within(process)).collect()
    }

    fn is_in_group(&self, process: &Process) -> bool {
        self.group.is_some_and(|group| group.as_raw_pid() == process.group)
    }

    fn of_group(&self, answer: rustix::io::Result<()>) -> Sent {
        match (answer, self.group) {
            (Err(why), Some(group)) if test_kill_process_group(group) != Err(Errno::SRCH) => {
                let refused = Refused { pid: group, name: "the command".to_owned(), why };
                Sent { refused: vec![refused], ..Sent::default() }
            }
            _ => Sent::default(),
        }
    }
}

/// Kills whole groups, so that a process cannot escape by starting its successor and ending while
/// we search for it: a signal to a group also reaches what its members are just starting. Zombies
/// belong to such groups, too.
fn kill_groups(below: &[&Process], outside: &[&Process]) {
    let mut spared: HashSet<i32> = outside.iter().map(|process| process.group).collect();
    // Not by getpgrp: rustix panics at the 0 of a group that is outside of our container.
    spared.extend(Process::read(getpid()).map(|us| us.group));
    // To the kernel 0 is our own group, and 1 is everything.
    let groups = below.iter().map(|one| one.group).filter(|it| *it > 1 && spared.insert(*it));
    // Parents first: one that outlived its child would go on with its work.
    for group in groups.filter_map(Pid::from_raw) {
        // Each member also gets it individually, which shows whether it was refused.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Waits until `moment`, for ever without one.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
