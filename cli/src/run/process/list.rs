//! The machine's processes as `/proc` shows them, and which of them descend from one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};

/// A process at the moment in which `/proc` was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// The name of the executed file, at most 15 bytes, as `ps` shows it.
    pub(crate) name: String,
    /// Numbers rather than [`Pid`]s: zero stands for a process outside of our container.
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Whether it still runs, and is not a zombie.
    pub(crate) lives: bool,
    pub(crate) is_stopped: bool,
    /// When it began, in ticks since the boot: together with the number it is unique.
    began: u64,
}

impl Process {
    pub(crate) fn read(pid: Pid) -> Option<Process> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Process::parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// `pid (name) state parent group session …`; the name may hold anything, parentheses too.
    fn parse(pid: Pid, stat: &str) -> Option<Process> {
        let (head, tail) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        let threads: u32 = fields.get(17)?.parse().ok()?;
        Some(Process {
            pid,
            name: name.to_owned(),
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            // The first thread may end before the others, and is a zombie until they have ended.
            is_stopped: matches!(*fields.first()?, "T" | "t"),
            lives: !matches!(*fields.first()?, "Z" | "X") || threads > 1,
            began: fields.get(19)?.parse().ok()?,
        })
    }

    /// Sends it `signal`. One that has ended meanwhile is not an error, and no other process is hit
    /// although it may have got the number since.
    pub(crate) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        match self.send(signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => sent,
        }
    }

    #[cfg(target_os = "linux")]
    fn send(&self, signal: Signal) -> rustix::io::Result<()> {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        match pidfd_open(self.pid, PidfdFlags::empty()) {
            // While this is open, the number means the same process.
            Ok(process) => match Process::read(self.pid) {
                Some(now) if now.began == self.began => pidfd_send_signal(process, signal),
                _ => Ok(()),
            },
            Err(Errno::SRCH) => Ok(()),
            // A kernel before 5.3, or no descriptor left.
            Err(_) => kill_process(self.pid, signal),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn send(&self, signal: Signal) -> rustix::io::Result<()> {
        kill_process(self.pid, signal)
    }
}

/// All processes that `/proc` shows.
#[derive(Debug)]
pub(crate) struct Processes {
    all: Vec<Process>,
}

impl Processes {
    /// Reads `/proc`. An error where it is missing, or numbers the processes of another container.
    pub(crate) fn read() -> io::Result<Processes> {
        let ours = getpid().as_raw_pid().to_string();
        if fs::read_link("/proc/self")?.as_os_str() != ours.as_str() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let pid = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let pids = fs::read_dir("/proc")?.flatten().filter_map(pid);
        let mut processes = Processes { all: pids.filter_map(Process::read).collect() };
        processes.settle();
        Ok(processes)
    }

    /// Reads processes again whose parent has ended meanwhile: they have another one now, or are gone.
    /// A process without a known parent is left out, with its descendants.
    fn settle(&mut self) {
        let mut before = usize::MAX;
        while self.all.len() < before {
            before = self.all.len();
            let known: HashSet<i32> = self.all.iter().map(|one| one.pid.as_raw_pid()).collect();
            let is_settled = |one: &Process| {
                one.parent == 0 || known.contains(&one.parent) || is_hidden(one.parent)
            };
            self.all.retain_mut(|process| {
                if !is_settled(process)
                    && let Some(now) = Process::read(process.pid)
                {
                    *process = now;
                }
                is_settled(process)
            });
        }
    }

    /// Adds children of `parent` that were started since.
    pub(crate) fn add_children(&mut self, parent: Pid) {
        // A child that has ended since may have started a successor.
        for _ in 0..8 {
            let new: Vec<Pid> =
                children(parent).into_iter().filter(|&pid| self.get(pid).is_none()).collect();
            let read: Vec<Process> = new.iter().filter_map(|&pid| Process::read(pid)).collect();
            let all_read = read.len() == new.len();
            self.all.extend(read);
            if all_read {
                return;
            }
        }
    }

    pub(crate) fn get(&self, pid: Pid) -> Option<&Process> {
        self.all.iter().find(|process| process.pid == pid)
    }

    /// Splits into the descendants of `root`, and all others with `root` itself. A child in
    /// `strangers` does not count as a descendant, nor do its own.
    pub(crate) fn split(&self, root: Pid, strangers: &[Pid]) -> (Vec<&Process>, Vec<&Process>) {
        let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
        for process in self.all.iter().filter(|process| process.pid != root) {
            children.entry(process.parent).or_default().push(process);
        }
        // A process leaves the map as it is reached, so that no parent is followed twice: a number
        // that was given to another process meanwhile may form a cycle.
        let mut below = children.remove(&root.as_raw_pid()).unwrap_or_default();
        let mut outside: Vec<&Process> = self.get(root).into_iter().collect();
        below.retain(|child| {
            let stranger = strangers.contains(&child.pid);
            outside.extend(stranger.then_some(*child));
            !stranger
        });
        let mut followed = 0;
        while let Some(parent) = below.get(followed) {
            followed += 1;
            below.extend(children.remove(&parent.pid.as_raw_pid()).unwrap_or_default());
        }
        outside.extend(children.into_values().flatten());
        (below, outside)
    }
}

/// Whether a parent exists that `/proc` does not show, such as another user's with `hidepid` or
/// systemd's `ProtectProc=`. One that has only begun since is shown by now.
fn is_hidden(parent: i32) -> bool {
    Pid::from_raw(parent).is_some_and(|parent| Process::read(parent).is_none() && exists(parent))
}

/// Whether there is such a process, or its zombie, shown or not.
pub(crate) fn exists(pid: Pid) -> bool {
    test_kill_process(pid) != Err(Errno::SRCH)
}

/// The children of a process's first thread, which gets orphans too. Where the kernel does not list
/// them: none.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_pid();
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let pid = |word: &str| word.parse().ok().and_then(Pid::from_raw);
    list.unwrap_or_default().split_whitespace().filter_map(pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    fn stat(name: &str, state: char, parent: i32, threads: u32) -> String {
        format!("7 ({name}) {state} {parent} 5 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0 0")
    }

    fn process(number: i32, parent: i32) -> Process {
        Process::parse(pid(number), &stat("x", 'S', parent, 1)).unwrap()
    }

    #[test]
    fn any_name_is_read() {
        for name in ["sh", "a b", ") Z 1 (", "(sd-pam)", ""] {
            let process = Process::parse(pid(7), &stat(name, 'S', 3, 1)).unwrap();
            assert_eq!((&*process.name, process.parent), (name, 3));
            assert_eq!((process.group, process.session, process.began), (5, 4, 99));
        }
        assert_eq!(Process::parse(pid(7), "7 (sh) S 1"), None);
    }

    #[test]
    fn a_zombie_lives_while_it_has_threads() {
        let lives =
            |state, threads| Process::parse(pid(7), &stat("x", state, 1, threads)).unwrap().lives;
        assert!(lives('S', 1) && lives('T', 1) && lives('D', 1) && lives('Z', 2));
        assert!(!lives('Z', 1) && !lives('X', 0));
    }

    #[test]
    fn descendants_are_found_whatever_circle_a_reused_number_closes() {
        // 2 -> 3 -> 4, 2 -> 5; 6 is a stranger below 2 with a child 7; 8 and 9 are each other's.
        let parents = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 2), (6, 2), (7, 6), (8, 9), (9, 8)];
        let all = parents.map(|(number, parent)| process(number, parent)).to_vec();
        let (below, outside) = Processes { all: all.clone() }.split_numbers(2, &[6]);
        assert_eq!((below, outside), (vec![3, 4, 5], vec![1, 2, 6, 7, 8, 9]));
        let (below, _) = Processes { all }.split_numbers(8, &[]);
        assert_eq!(below, [9]);
    }

    impl Processes {
        fn split_numbers(&self, root: i32, strangers: &[i32]) -> (Vec<i32>, Vec<i32>) {
            let strangers: Vec<Pid> = strangers.iter().copied().map(pid).collect();
            let (below, outside) = self.split(pid(root), &strangers);
            let numbers = |some: Vec<&Process>| {
                let mut numbers: Vec<i32> = some.iter().map(|one| one.pid.as_raw_pid()).collect();
                numbers.sort_unstable();
                numbers
            };
            (numbers(below), numbers(outside))
        }
    }

    #[test]
    fn we_are_among_the_processes_and_signals_reach_the_right_one() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let number = pid(i32::try_from(child.id()).unwrap());
        let processes = Processes::read().unwrap();
        assert!(processes.get(getpid()).is_some());
        let (below, _) = processes.split(getpid(), &[]);
        let found = below.into_iter().find(|process| process.pid == number).unwrap();
        // A process of the same number, but not this one.
        let older = Process { began: found.began.wrapping_sub(1), ..found.clone() };
        older.signal(Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        found.signal(Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
        found.signal(Signal::KILL).unwrap();
    }
}
