//! The children of a process: a server such as Postgres has one for each connection.

use std::io;

use rustix::process::Pid;

/// A process whose parent is known.
pub(super) struct ChildProcess {
    pub(super) id: Pid,
    pub(super) is_stopped: bool,
}

/// The children of the process `parent`, without those that have ended and only wait for their parent.
pub(super) fn children(parent: u32) -> io::Result<Vec<ChildProcess>> {
    let child = |stat: Stat| {
        (stat.parent() == Some(parent) && stat.state() != "Z").then_some(())?;
        Some(ChildProcess { id: Pid::from_raw(stat.id)?, is_stopped: stat.state() == "T" })
    };
    Ok(all()?.filter_map(child).collect())
}

/// What a process and its children, those that live and those that it has waited for, have used of all processors,
/// in clock ticks.
#[cfg(feature = "stores")]
pub(crate) fn cpu_ticks(process: u32) -> io::Result<u64> {
    let used =
        |stat: Stat, times: usize| (11..11 + times).filter_map(|at| stat.number(at)).sum::<u64>();
    let of = |stat: Stat| match u32::try_from(stat.id) {
        Ok(id) if id == process => used(stat, 4),
        _ if stat.parent() == Some(process) => used(stat, 2),
        _ => 0,
    };
    Ok(all()?.map(of).sum())
}

/// What the kernel says about a process: proc(5).
struct Stat {
    id: i32,
    /// Those after the name.
    fields: Vec<String>,
}

fn all() -> io::Result<impl Iterator<Item = Stat>> {
    // A process that has ended in the meantime has no file.
    Ok(std::fs::read_dir("/proc")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        Stat::parse(id, &std::fs::read_to_string(entry.path().join("stat")).ok()?)
    }))
}

impl Stat {
    fn parse(id: i32, stat: &str) -> Option<Stat> {
        // The name is in brackets, and may hold anything.
        let fields = stat.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect();
        Some(Stat { id, fields })
    }

    fn state(&self) -> &str {
        self.fields.first().map_or("", String::as_str)
    }

    fn parent(&self) -> Option<u32> {
        u32::try_from(self.number(1)?).ok()
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.fields.get(at)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_until_it_has_ended() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = Pid::from_child(&cat);
        let is_child = || children(std::process::id()).unwrap().iter().any(|child| child.id == id);
        assert!(is_child());
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert!(!is_child());
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = Stat::parse(7, "7 (a) b) S 5 7 7 0 -1 0 1 2 3 4 10 20 30 40 20 0 1\n").unwrap();
        assert_eq!((stat.state(), stat.parent(), stat.number(11)), ("S", Some(5), Some(10)));
    }
}
