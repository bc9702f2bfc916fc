//! The description of this machine, for readers of the figures.

use std::path::Path;

use super::data::Machine;

impl Machine {
    /// Values that the operating system does not report are `unknown`, or 0.
    pub(super) fn this() -> Machine {
        let unknown = || "unknown".to_owned();
        let system = rustix::system::uname();
        let parts =
            [system.sysname(), system.release()].map(|it| it.to_string_lossy().into_owned());
        Machine {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            threads: std::thread::available_parallelism().map_or(0, Into::into),
            memory_bytes: memory_bytes().unwrap_or(0),
            system: parts.join(" "),
            file_system: file_system_of(&std::env::temp_dir()).unwrap_or_else(unknown),
            load_at_start: load().unwrap_or(0.0),
        }
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let kib: u64 = field("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The type of the mount with the longest path that leads there; proc_pid_mountinfo(5).
fn file_system_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let at = mount.split(' ').nth(4)?;
        path.starts_with(at).then(|| Some((at.len(), source.split(' ').next()?.to_owned())))?
    });
    // Of two at one path, the later one hides the other.
    mounts.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linux_machine_is_known() {
        let machine = Machine::this();
        assert!(machine.threads > 0 && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(machine.system.starts_with("Linux ") && machine.file_system != "unknown");
    }
}
