//! Fault tests that need Linux namespaces of their own: a network whose packets get lost, a disk that is
//! full, a process without a free descriptor.
//!
//! Each test is this program, executed again in Linux namespaces of its own, where it has
//! the rights of root without effects on the machine. Where namespaces are not available the test is
//! ignored, with that reason.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencelock_conformance::Running;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub mod promises;

/// One test, in a target with `harness = false`.
#[derive(Clone, Copy)]
pub struct Test {
    /// The promise, in words.
    pub name: &'static str,
    /// What must work in the namespaces: [`PACKETS`], [`MOUNTS`], [`FREEZING`] or [`NOTHING`] else, or one of
    /// them for [`OTHER_USERS`].
    pub needs: &'static str,
    /// Panics when the promise is broken.
    pub run: fn() -> Running,
}

/// The [`Test`] that is an async function without arguments, and what it needs.
#[macro_export]
macro_rules! apart {
    ($needs:expr, $test:ident) => {
        $crate::netns::Test { name: stringify!($test), needs: $needs, run: || Box::pin($test()) }
    };
}

impl std::fmt::Debug for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Test").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Losing packets: `nft` and a kernel that knows the rule.
pub const PACKETS: &str = "nft 'table inet tried { chain tried { numgen inc mod 3 == 0 drop; }; }'";
/// Mounting a disk.
pub const MOUNTS: &str = "mount -t tmpfs none /tmp";
/// A disk that hangs: a file system that is frozen, which only the machine's own root may do.
pub const FREEZING: &str = "at=$(mktemp -d) && mount -t tmpfs none $at && truncate -s 16M $at/image \
    && mkfs.ext4 -q $at/image && mkdir $at/disk && mount -o loop $at/image $at/disk \
    && fsfreeze -f $at/disk && fsfreeze -u $at/disk";
/// Nothing but the namespaces themselves.
pub const NOTHING: &str = "true";

/// [`NOTHING`], with servers that run as another user than root, which only the machine's own root can start.
pub const OTHER_USERS: &str = "setpriv --reuid=65534 --clear-groups true";
/// [`PACKETS`], for [`OTHER_USERS`].
pub const PACKETS_OF_OTHER_USERS: &str = "setpriv --reuid=65534 --clear-groups true \
    && nft 'table inet tried { chain tried { numgen inc mod 3 == 0 drop; }; }'";
/// [`MOUNTS`], for [`OTHER_USERS`].
pub const MOUNTS_OF_OTHER_USERS: &str =
    "setpriv --reuid=65534 --clear-groups true && mount -t tmpfs none /mnt";

const ASKED: &str = "FENCELOCK_TEST_APART";
const BOUND: Duration = Duration::from_secs(180);
/// Where the programs of administrators are, which are not on every PATH.
const SYSTEM: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The whole of a test target.
pub fn main(tests: &[Test]) {
    if let Ok(name) = std::env::var(ASKED) {
        let test = tests.iter().find(|test| test.name == name).expect("a test of this name");
        return alone(test);
    }
    let trials = tests.iter().map(|test| {
        let test = *test;
        Trial::ignorable_test(test.name, move || match lacking(test.needs) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => apart(&test).map(|()| Completion::Completed),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// Why this machine cannot run a test apart.
fn lacking(needs: &str) -> Option<String> {
    let script = format!("ip link set lo up && {needs}");
    match unshare(needs).args(["sh", "-c", &script]).output() {
        Ok(tried) if tried.status.success() => None,
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            let why = why.lines().next().unwrap_or("it does not say why");
            Some(format!("this machine cannot do that in namespaces: {why}"))
        }
        Err(error) => Some(format!("this machine has no unshare: {error}")),
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:{SYSTEM}")).stdin(Stdio::null());
    command
}

fn unshare(needs: &str) -> Command {
    let mut unshare = command("unshare");
    // Loop devices are the machine's, and no root of a namespace's own may mount them; nor has it other users.
    if needs != FREEZING && !needs.starts_with(OTHER_USERS) {
        unshare.arg("--map-root-user");
    }
    unshare.args(["--net", "--mount", "--"]);
    unshare
}

fn apart(test: &Test) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let script = "ip link set lo up && exec \"$0\"";
    let mut unshare = unshare(test.needs);
    let done = unshare.args(["sh", "-c", script]).arg(program).env(ASKED, test.name).output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = [done.stdout, done.stderr].concat();
    Err(format!("{}\n{}", done.status, String::from_utf8_lossy(&said)).into())
}

/// In the namespaces. A panic ends the process with the code of one.
fn alone(test: &Test) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let done = tokio::time::timeout(BOUND, (test.run)()).await;
        done.unwrap_or_else(|_| panic!("timed out after {BOUND:?}"));
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

fn done(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
}

/// Loses packets until it is dropped. Needs `nft`. Not at random: TCP waits twice as long after each packet that is lost
/// again, and some run would lose eight in a row.
#[derive(Debug)]
pub struct Loss(());

impl Loss {
    /// Three of eleven: of what is repeated after any number of packets but eleven, never more than three in a row. (One of
    /// three is the same one for ever, if each repetition brings two others.)
    pub const SOME: &'static str = "numgen inc mod 11 { 0, 4, 7 }";
    /// All of them.
    pub const ALL: &'static str = "";

    /// These get lost from now on.
    ///
    /// # Panics
    /// Outside of a test of [`main`], or when the kernel has no such rule.
    #[must_use]
    pub fn of(packets: &str) -> Loss {
        assert!(std::env::var_os(ASKED).is_some(), "this is the machine's own network");
        let rule = format!(
            "table inet loss {{ chain input {{ type filter hook input priority 0; \
             {packets} counter drop; }}; }}"
        );
        done(command("nft").arg(rule));
        Loss(())
    }

    /// How many packets were lost so far.
    ///
    /// # Panics
    /// When the kernel does not say.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let listed = command("nft").args(["list", "table", "inet", "loss"]).output();
        let listed = listed.expect("nft runs").stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let counted = listed
            .split_once("counter packets ")
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        counted.unwrap_or_else(|| panic!("no counter: {listed}"))
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        done(command("nft").args(["delete", "table", "inet", "loss"]));
    }
}

/// Puts a disk of so many bytes at a directory, which only this process and its children see.
///
/// # Panics
/// Outside of a test of [`main`].
pub fn small_disk(at: &Path, bytes: u64) {
    assert!(std::env::var_os(ASKED).is_some(), "these are the machine's own mounts");
    let size = format!("size={bytes}");
    done(command("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(at));
}

/// Puts a disk at a directory whose file system can be [frozen](Frozen::disk), as for a snapshot.
/// Its bytes are in the file `image`.
///
/// # Panics
/// Outside of a test of [`main`].
pub fn disk(image: &Path, at: &Path) {
    assert!(std::env::var_os(ASKED).is_some(), "these are the machine's own mounts");
    let file = std::fs::File::create(image).expect("a file");
    file.set_len(16 << 20).expect("a sparse file");
    done(command("mkfs.ext4").arg("-q").arg(image));
    done(command("mount").args(["-o", "loop"]).arg(image).arg(at));
}

/// A disk that hangs: writers wait, and no signal ends that. It continues when this is
/// dropped, and by itself after half a minute, whatever became of the test.
#[derive(Debug)]
pub struct Frozen {
    thaws: Child,
}

impl Frozen {
    /// Freezes the [`disk`] at a directory.
    ///
    /// # Panics
    /// Outside of a test of [`main`], or when it cannot be frozen.
    #[must_use]
    pub fn disk(at: &Path) -> Frozen {
        assert!(std::env::var_os(ASKED).is_some(), "these are the machine's own mounts");
        let script = "timeout 30 cat; fsfreeze --unfreeze \"$0\"";
        let mut thaws = command("sh");
        thaws.args(["-c", script]).arg(at).stdin(Stdio::piped()).stdout(Stdio::null());
        let frozen = Frozen { thaws: thaws.spawn().expect("sh runs") };
        done(command("fsfreeze").arg("--freeze").arg(at));
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.thaws.stdin.take());
        let thawed = self.thaws.wait().expect("a child");
        // Not during another panic.
        assert!(thawed.success() || std::thread::panicking(), "it was thawed before: {thawed}");
    }
}

/// Fills a disk to its last byte by a file of this path.
///
/// # Panics
/// When it is not full after 64 MiB.
pub fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).expect("a file");
    for size in [1 << 16, 1 << 10, 1] {
        let block = vec![0; size];
        let mut blocks = 0;
        while std::io::Write::write_all(&mut file, &block).is_ok() {
            blocks += 1;
            assert!(blocks < 1 << 16, "a disk without end");
        }
    }
}

/// All descriptors of this process in use, until it is dropped.
#[derive(Debug)]
pub struct NoDescriptors {
    before: Rlimit,
    _used: Vec<std::fs::File>,
}

impl NoDescriptors {
    /// Uses up what is left.
    ///
    /// # Panics
    /// Outside of a test of [`main`], or when there is no end of them.
    #[must_use]
    pub fn left() -> NoDescriptors {
        assert!(std::env::var_os(ASKED).is_some(), "this is not a test process of its own");
        let before = getrlimit(Resource::Nofile);
        let few = Rlimit { current: Some(256), ..before };
        setrlimit(Resource::Nofile, few).expect("a lower limit");
        let used: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(used.len() < 256, "there was a limit");
        NoDescriptors { before, _used: used }
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).expect("the limit from before");
    }
}
