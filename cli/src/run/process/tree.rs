//! The command's processes: its process group, and whatever descends from it elsewhere.
//!
//! A process leaves the command's group easily: `timeout`, a shell with job control, `setsid` and
//! each daemon do. It cannot leave its ancestors: the watchdog is the subreaper to which the kernel
//! gives the children of those that have ended, so all of them stay below it.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpid, kill_process_group, test_kill_process, test_kill_process_group,
};

use tokio::time::Instant;

use super::list::{Process, Processes, exists};

/// How far a signal reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The command's own process group.
    Group,
    /// And what descends from it in other groups, but not in a session of its own, as daemons do.
    Session,
    /// Whatever descends from it.
    All,
}

/// The command's processes.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    /// Once it is known.
    group: Option<Pid>,
    /// All of them are below this process.
    root: Pid,
    /// Children of the root that are not the command's.
    strangers: Vec<Pid>,
    /// Whom the last signal reached. To look for all again takes a while on a busy machine, and
    /// time is short when a lock ends: these are killed first.
    known: Vec<Process>,
}

/// What became of a signal.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// How many processes that run have got it.
    pub(crate) reached: usize,
    /// What runs and has not.
    pub(crate) refused: Vec<Refused>,
    /// `/proc` does not show the processes: only the group has got it.
    pub(crate) blind: bool,
}

/// A process that a signal was refused for: it runs as another user.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) pid: Pid,
    pub(crate) name: String,
    pub(crate) why: Errno,
}

/// When to kill again: what begins while `/proc` is read is missed by one reading.
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

    /// A round has reached so many.
    pub(crate) fn reached(&mut self, reached: usize) {
        self.empty = if reached == 0 { self.empty + 1 } else { 0 };
        self.pause = match self.is_over() {
            // What has refused may still start what does not.
            true => Duration::from_secs(1),
            false => (2 * self.pause).min(Duration::from_millis(50)),
        };
        self.next = Instant::now() + self.pause;
    }

    /// Whether nothing is left that can be killed: three times in a row nothing was found.
    pub(crate) fn is_over(&self) -> bool {
        self.empty >= 3
    }
}

impl ProcessTree {
    /// All that descends from the watchdog, `root`.
    pub(crate) fn below(root: Pid) -> ProcessTree {
        ProcessTree { group: None, root, strangers: Vec::new(), known: Vec::new() }
    }

    /// The command runs, and leads `group`.
    pub(crate) fn leads(&mut self, group: Pid) {
        self.group = Some(group);
    }

    /// The watchdog has ended, so its descendants have become our children, in addition to our own.
    pub(crate) fn adopt(&mut self, strangers: &[Pid]) {
        self.root = getpid();
        self.strangers = strangers.to_vec();
    }

    /// Sends `signal` to all that are within `reach` now. Those that begin meanwhile are missed.
    pub(crate) fn signal(&mut self, signal: Signal, reach: Reach) -> Sent {
        // First, since it takes no time: what they start from now on is not missed.
        let group = self.group.map_or(Ok(()), |group| kill_process_group(group, signal));
        if reach == Reach::Group {
            return self.of_group(group);
        }
        if signal == Signal::KILL && reach == Reach::All {
            for process in &self.known {
                // Whether it was refused is seen below.
                let _ = process.signal(signal);
            }
        }
        let Ok(mut processes) = Processes::read() else {
            return Sent { blind: true, ..self.of_group(group) };
        };
        // What starts a successor and ends, again and again, is seen here if nowhere else.
        processes.add_children(self.root);
        let (below, outside) = processes.split(self.root, &self.strangers);
        let within = self.within(&processes, &below, reach);
        if signal == Signal::KILL && reach == Reach::All {
            kill_groups(&below, &outside);
        }
        let blind = processes.get(self.root).is_none() && exists(self.root);
        let mut sent = Sent { blind, ..Sent::default() };
        for process in &within {
            let answer = match self.is_in_group(process) && signal != Signal::KILL {
                // It has got it already, if it may.
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

    /// Whether anything within `reach` still runs. Unknown counts as yes: it keeps its time to end.
    pub(crate) fn lives(&self, reach: Reach) -> bool {
        let Ok(processes) = Processes::read() else { return true };
        if processes.get(self.root).is_none() {
            return exists(self.root);
        }
        let (below, _) = processes.split(self.root, &self.strangers);
        !self.within(&processes, &below, reach).is_empty()
    }

    /// What runs within `reach`.
    fn within<'a>(
        &self,
        processes: &Processes,
        below: &[&'a Process],
        reach: Reach,
    ) -> Vec<&'a Process> {
        let session = processes.get(self.root).map(|root| root.session);
        let is_within = |process: &Process| match reach {
            Reach::Group => self.is_in_group(process),
            Reach::Session => self.is_in_group(process) || Some(process.session) == session,
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
/// we look for it: a signal to a group also reaches what its members are just starting. Zombies
/// tell of such groups, too.
fn kill_groups(below: &[&Process], outside: &[&Process]) {
    let foreign: HashSet<i32> = outside.iter().map(|process| process.group).collect();
    let groups: HashSet<i32> = below.iter().map(|process| process.group).collect();
    // Not by getpgrp: rustix panics at the 0 of a group that is outside of our container.
    let ours = Process::read(getpid()).map(|us| us.group);
    // To the kernel 0 is our own group, and 1 is everything.
    let is_a_group = |group: &&i32| **group > 1 && Some(**group) != ours;
    for &group in groups.difference(&foreign).filter(is_a_group) {
        // Each member also gets it individually, which shows whether it was refused.
        let _ = Pid::from_raw(group).map(|group| kill_process_group(group, Signal::KILL));
    }
}

/// Waits until a moment, or for ever if there is none.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
