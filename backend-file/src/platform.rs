//! System calls that differ between Linux and other systems.
//!
//! Linux is the tested platform. On other systems there is no boot id: entries of dead processes
//! are still found by their pipes, but fencing tokens may repeat after a power failure. A dead
//! holder may be noticed only by the periodic check, within a second.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, StatFs};
use rustix::io;
use rustix::time::{ClockId, clock_gettime};

/// Identifies one boot of the machine.
pub(crate) type BootId = [u8; 16];

/// Identifies a file and its number of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: (u32, u32),
    inode: u64,
    links: u32,
}

/// The time since the boot, for display and for numbers that must rise.
pub(crate) fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// [`since_boot`] in hundredths of a second, truncated.
pub(crate) fn centiseconds() -> u32 {
    // It wraps after 497 days, which shows only in entries older than that.
    (since_boot().as_millis() / 10) as u32
}

/// Renames to a free name, with `EXIST` when it is taken, on file systems without such a call. A
/// crash between its two steps leaves the file with both names.
fn link_and_unlink(
    from: BorrowedFd<'_>,
    name: &str,
    to: BorrowedFd<'_>,
    new_name: &str,
) -> io::Result<()> {
    rustix::fs::linkat(from, name, to, new_name, AtFlags::empty())?;
    rustix::fs::unlinkat(from, name, AtFlags::empty())
}

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;

#[cfg(target_os = "linux")]
mod linux {
    use super::{BootId, Identity, StatFs, io};
    use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, openat};
    use rustix::io::Errno;
    use std::ffi::CStr;
    use std::fs::File;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::path::Path;

    /// Opens a directory on the way to another, which need not be readable.
    pub(crate) const PASS_THROUGH: OFlags =
        OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    /// Whether `dir` is in `/proc`.
    pub(crate) fn is_proc(dir: BorrowedFd<'_>) -> bool {
        rustix::fs::fstatfs(dir).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC)
    }

    /// Whether a thread of this process named `name` waits for the disk, in an uninterruptible call
    /// (state `D`, `man 5 proc`). `true` if that is unknown.
    pub(crate) fn waits_for_disk(name: &str) -> bool {
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return true };
        let waits = |stat: String| {
            // `TID (NAME) STATE …`
            let (head, state) = stat.rsplit_once(") ")?;
            Some(head.split_once('(')?.1 == name && state.starts_with('D'))
        };
        let stat =
            |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).ok();
        threads.flatten().filter_map(stat).any(|stat| waits(stat) == Some(true))
    }

    /// The process that has an flock on `path` and is stopped (state `T`), if the kernel tells: `/proc/locks`
    /// (`man 5 proc_locks`) has no process of another PID namespace.
    pub(crate) fn stopped_holder(path: &Path) -> Option<u32> {
        let stat = rustix::fs::stat(path).ok()?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        // `NUMBER: FLOCK ADVISORY WRITE PID FILE START END`, with `->` after the number for one that waits.
        let holder = locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file.as_str()))
                .then(|| words[4].to_owned())
        })?;
        let stat = std::fs::read_to_string(format!("/proc/{holder}/stat")).ok()?;
        let (_, state) = stat.rsplit_once(") ")?;
        // Not `t`: who is traced stops at each of its calls.
        state.starts_with('T').then(|| holder.parse().ok())?
    }

    /// Opens for reading and writing without updates of the access time, which would cost a third
    /// of an acquisition. Only the file's owner may do that.
    pub(crate) fn open_quietly(
        dir: BorrowedFd<'_>,
        name: &str,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::RDWR;
        match openat(dir, name, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => openat(dir, name, flags, Mode::empty()),
            opened => opened,
        }
    }

    /// The file that `path` leads to.
    pub(crate) fn identity(path: &CStr) -> io::Result<Identity> {
        identify(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The file that is open as `file`.
    pub(crate) fn identity_of(file: BorrowedFd<'_>) -> io::Result<Identity> {
        identify(file, c"", AtFlags::EMPTY_PATH)
    }

    fn identify(dir: BorrowedFd<'_>, path: &CStr, flags: AtFlags) -> io::Result<Identity> {
        // Without times: a file whose times were read gets a precise one at the next write, which
        // dirties its inode.
        let mask = StatxFlags::INO | StatxFlags::NLINK;
        let stat = rustix::fs::statx(dir, path, flags | AtFlags::STATX_DONT_SYNC, mask)?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        Ok(Identity { device, inode: stat.stx_ino, links: stat.stx_nlink })
    }

    /// Syncs the data of `file` to the disk.
    pub(crate) fn sync_data(file: &File) -> io::Result<()> {
        rustix::fs::fdatasync(file)
    }

    /// Frees the blocks of a part of `file`, which then reads as zeros.
    pub(crate) fn punch_hole(file: &File, at: u64, len: u64) -> io::Result<()> {
        rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
    }

    /// Takes the blocks of a part of `file`, where its file system can.
    pub(crate) fn allocate(file: &File, at: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, at, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            allocated => allocated,
        }
    }

    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

    /// The id of this boot of the machine.
    pub(crate) fn boot_id() -> std::io::Result<BootId> {
        let digits = std::fs::read_to_string(BOOT_ID)?.trim().replace('-', "");
        let id = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
        Ok(id.to_be_bytes())
    }

    pub(crate) fn make_pipe(dir: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<()> {
        rustix::fs::mkfifoat(dir, name, mode)
    }

    /// Renames `name` in `from` to `new_name` in `to`; `EXIST` when that is taken.
    pub(crate) fn rename_if_free(
        from: BorrowedFd<'_>,
        name: &str,
        to: BorrowedFd<'_>,
        new_name: &str,
    ) -> io::Result<()> {
        match rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => super::link_and_unlink(from, name, to, new_name),
            renamed => renamed,
        }
    }

    /// The name of a file system that other machines can or may reach. There, neither pipes nor
    /// flock work across machines.
    pub(crate) fn network(fs: &StatFs) -> Option<&'static str> {
        // The type has another width and sign on each architecture; magic numbers have 32 bits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        network_magic(fs.f_type as u32)
    }

    /// Whether the file system is in memory, and so empty after a reboot.
    pub(crate) fn in_memory(fs: &StatFs) -> bool {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let magic = fs.f_type as u32;
        // tmpfs and ramfs.
        [0x0102_1994, 0x8584_58F6].contains(&magic)
    }

    /// From linux/magic.h and statfs(2). FUSE is refused too: on servers most FUSE file systems are
    /// remote (sshfs, s3fs, virtiofs, GlusterFS), and their flock is local to the mount.
    pub(super) fn network_magic(magic: u32) -> Option<&'static str> {
        Some(match magic {
            0x6969 => "NFS",
            0x517B | 0xFE53_4D42 => "SMB",
            0xFF53_4D42 => "CIFS",
            0x564C => "NCP",
            0x0102_1997 => "9p",
            0x00C3_6400 => "Ceph",
            0x5346_414F | 0x6B41_4653 => "AFS",
            0x7375_7245 => "Coda",
            0x6573_5546 => "FUSE",
            0x0BD0_0BD0 => "Lustre",
            0x4750_4653 => "GPFS",
            0x7461_636F => "OCFS2",
            0x0116_1970 => "GFS2",
            0x2003_0528 => "OrangeFS",
            0x1983_0326 => "BeeGFS",
            0xAAD7_AAEA => "PanFS",
            0x786F_4256 => "VirtualBox's shared folders",
            0xBACB_ACBC => "VMware's shared folders",
            0x7C7C_6673 => "Parallels' shared folders",
            0x00C0_FFEE => "hostfs",
            0x6163_6673 => "ACFS",
            _ => return None,
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use super::{BootId, Identity, StatFs, io};
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, openat};
    use rustix::io::Errno;
    use std::ffi::CStr;
    use std::fs::File;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::path::Path;

    pub(crate) const PASS_THROUGH: OFlags =
        OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    pub(crate) fn is_proc(_dir: BorrowedFd<'_>) -> bool {
        false
    }

    pub(crate) fn stopped_holder(_path: &Path) -> Option<u32> {
        None
    }

    pub(crate) fn waits_for_disk(_name: &str) -> bool {
        true
    }

    pub(crate) fn open_quietly(
        dir: BorrowedFd<'_>,
        name: &str,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        openat(dir, name, flags | OFlags::RDWR, Mode::empty())
    }

    pub(crate) fn identity(path: &CStr) -> io::Result<Identity> {
        rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|stat| identify(&stat))
    }

    pub(crate) fn identity_of(file: BorrowedFd<'_>) -> io::Result<Identity> {
        rustix::fs::fstat(file).map(|stat| identify(&stat))
    }

    pub(crate) fn sync_data(file: &File) -> io::Result<()> {
        rustix::fs::fsync(file)
    }

    /// Writes may need space still.
    pub(crate) fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    /// The blocks stay.
    pub(crate) fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    #[allow(clippy::unnecessary_cast)]
    fn identify(stat: &Stat) -> Identity {
        Identity {
            device: (stat.st_dev as u32, 0),
            inode: stat.st_ino as u64,
            links: stat.st_nlink as u32,
        }
    }

    pub(crate) fn boot_id() -> std::io::Result<BootId> {
        Ok(BootId::default())
    }

    /// There is no safe `mkfifoat` here, so this runs the command.
    pub(crate) fn make_pipe(dir: BorrowedFd<'_>, name: &str, _: Mode) -> io::Result<()> {
        let dir = rustix::fs::getpath(dir)?;
        let dir = dir.to_str().map_err(|_| Errno::INVAL)?;
        let made = std::process::Command::new("mkfifo").arg(format!("{dir}/{name}")).status();
        match made {
            Ok(status) if status.success() => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    pub(crate) fn rename_if_free(
        from: BorrowedFd<'_>,
        name: &str,
        to: BorrowedFd<'_>,
        new_name: &str,
    ) -> io::Result<()> {
        super::link_and_unlink(from, name, to, new_name)
    }

    /// Not detected on these systems.
    pub(crate) fn in_memory(_: &StatFs) -> bool {
        false
    }

    pub(crate) fn network(fs: &StatFs) -> Option<&'static str> {
        const MNT_LOCAL: u32 = 0x1000;
        (fs.f_flags & MNT_LOCAL == 0).then_some("a network file system")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::{boot_id, network_magic};

    #[test]
    fn network_file_systems_are_known_and_local_ones_are_not() {
        for (magic, name) in [
            (0x6969, "NFS"),
            (0xFF53_4D42, "CIFS"),
            (0xFE53_4D42, "SMB"),
            (0x0102_1997, "9p"),
            (0x00C3_6400, "Ceph"),
            (0x6573_5546, "FUSE"),
            (0x5346_414F, "AFS"),
        ] {
            assert_eq!(network_magic(magic), Some(name));
        }
        // ext4, tmpfs, xfs, btrfs, overlayfs, zfs, f2fs, ramfs.
        for magic in [
            0xEF53,
            0x0102_1994,
            0x5846_5342,
            0x9123_683E,
            0x794C_7630,
            0x2FC1_2FC1,
            0xF2F5_2010,
            0x8584_58F6,
        ] {
            assert_eq!(network_magic(magic), None);
        }
    }

    #[test]
    fn this_boot_has_an_id() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }
}
