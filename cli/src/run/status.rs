//! The status file of a run, for monitoring.
//!
//! A regular file is replaced, so that a reader sees one whole status or the one before. Anything
//! else, such as `/dev/null`, a pipe or our own standard output, is written to and never replaced:
//! for root a rename would turn the machine's `/dev/null` into a file.

use std::error::Error as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fencelock::{FencingToken, Snapshot};
use rustix::io::Errno;
use serde::Serialize;

use super::exit::{Codes, Outcome};
use super::plan::Plan;
use super::process::tree::Refused;
use super::reports::Reports;

/// The state of a run.
#[derive(Serialize)]
pub(super) struct Status {
    name: String,
    store: String,
    /// A string: programs that read JSON numbers as floating point round large ones.
    token: Option<String>,
    /// `running` from the grant on, then how it ended.
    outcome: &'static str,
    exit_code: Option<u8>,
    waited_seconds: f64,
    held_seconds: Option<f64>,
    /// The holder, when the lock was busy.
    holders: Vec<Holder>,
    /// Processes of the command that could not be ended, and continue without the lock.
    not_ended: Vec<NotEnded>,
    message: Option<String>,
    #[serde(skip)]
    file: Option<PathBuf>,
    /// How the file is written, known after the first time.
    #[serde(skip)]
    target: Arc<Mutex<Option<Target>>>,
    /// Of this file alone: a full pipe of messages delays no status.
    #[serde(skip)]
    writer: Reports,
    #[serde(skip)]
    reports: Reports,
    #[serde(skip)]
    started: Instant,
    #[serde(skip)]
    granted: Option<Instant>,
}

#[derive(Debug, Serialize)]
struct Holder {
    label: Option<String>,
    since_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct NotEnded {
    pid: i32,
    name: String,
    reason: String,
}

impl Status {
    pub(super) fn new(plan: &Plan) -> Status {
        Status {
            name: plan.name.clone(),
            store: plan.store.redacted_url.clone(),
            token: None,
            outcome: "waiting",
            exit_code: None,
            waited_seconds: 0.0,
            held_seconds: None,
            holders: Vec::new(),
            not_ended: Vec::new(),
            message: None,
            file: plan.status.clone(),
            target: Arc::default(),
            writer: Reports::default(),
            reports: plan.reports.clone(),
            started: Instant::now(),
            granted: None,
        }
    }

    /// Refuses a file that cannot be written, before the command runs. A pipe without a reader is
    /// accepted: it may have one by the time of the grant.
    pub(super) fn require_writable(&mut self) -> Result<(), Outcome> {
        let Some(file) = &self.file else { return Ok(()) };
        let checked = match Target::of(file) {
            Ok(Target::Replaced(path)) => fencelock_cli::new_beside(&path).map(drop),
            Ok(target) => {
                *self.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(()),
            Err(error) => Err(error),
        };
        checked.map_err(|error| {
            let file = self.file.take().unwrap_or_default();
            let (file, why) = (file.display(), reason(&error));
            Outcome::usage(format!("--status-json {file}: the file cannot be written: {why}"))
        })
    }

    /// Records the grant. Returns how long the wait took.
    pub(super) fn granted(&mut self, token: FencingToken) -> Duration {
        let now = Instant::now();
        let waited = now.duration_since(self.started);
        self.token = Some(token.to_string());
        self.outcome = "running";
        self.waited_seconds = waited.as_secs_f64();
        self.granted = Some(now);
        self.write();
        waited
    }

    /// Records that a leader's term is over, and that it campaigns again.
    pub(super) fn waits_again(&mut self) {
        if self.granted.take().is_none() {
            return;
        }
        (self.token, self.held_seconds) = (None, None);
        self.outcome = "waiting";
        self.started = Instant::now();
        self.write();
    }

    /// Records that the lock is no longer held, or no longer relied on.
    pub(super) fn released(&mut self) {
        let held = self.granted.map(|granted| granted.elapsed().as_secs_f64());
        self.held_seconds = self.held_seconds.or(held);
    }

    /// Records the holders of a busy lock.
    pub(super) fn set_holders(&mut self, snapshot: &Snapshot) {
        let holder = |participant: &fencelock::Participant| Holder {
            label: participant.label.as_ref().map(ToString::to_string),
            since_seconds: participant.since.map(|since| since.as_secs_f64()),
        };
        self.holders = snapshot.holders.iter().map(holder).collect();
    }

    /// Records the processes of the command that could not be ended.
    pub(super) fn not_ended(&mut self, survivors: &[Refused]) {
        let survivor = |one: &Refused| NotEnded {
            pid: one.pid.as_raw_pid(),
            name: one.name.clone(),
            reason: one.why.to_string(),
        };
        self.not_ended = survivors.iter().map(survivor).collect();
    }

    /// Records the end. If the status cannot be written, or not within `limit`, the exit code is returned
    /// nevertheless.
    pub(super) fn ended(mut self, outcome: &Outcome, codes: Codes, limit: Duration) -> u8 {
        let code = codes.of(outcome);
        self.released();
        if self.granted.is_none() {
            self.waited_seconds = self.started.elapsed().as_secs_f64();
        }
        self.outcome = outcome.as_str();
        self.exit_code = Some(code);
        self.message = outcome.message();
        self.write();
        self.flush_within(limit);
        code
    }

    /// Waits until the status is written, but no longer than `limit`.
    pub(super) fn flush_within(&self, limit: Duration) {
        self.writer.flush_within(limit);
    }

    fn write(&self) {
        let Some(file) = self.file.clone() else { return };
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        let (last, reports) = (self.target.clone(), self.reports.clone());
        self.writer.put(move || {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            // A target that is not replaced stays open: the reader of a pipe gets all that is written.
            let opened = last.take().map_or_else(|| Target::of(&file), Ok);
            match opened.and_then(|target| target.write(&line)) {
                Ok(target) => *last = Some(target),
                Err(error) => {
                    let (file, why) = (file.display(), reason(&error));
                    reports.say(format!("cannot write the status to {file}: {why}"));
                }
            }
        });
    }
}

/// The system's own error, without the name of a temporary file.
fn reason(error: &io::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Where a status is written.
#[derive(Debug)]
enum Target {
    /// A regular file or a new one, by its path after resolving all symbolic links.
    Replaced(PathBuf),
    /// Anything else: a line for each status.
    Written(File),
}

impl Target {
    fn of(path: &Path) -> io::Result<Target> {
        let target = resolve_links(path)?;
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Target::Replaced(target));
            }
            Err(error) => return Err(error),
        };
        if !found.is_file() {
            // A socket cannot be opened by its name, even if it is our standard output.
            let opened = open_in_place(path);
            let opened = opened.or_else(|error| standard_stream(&found).ok_or(error));
            return opened.map(Target::Written);
        }
        match standard_stream(&found) {
            // The command writes there: replacing the file would hide what it wrote.
            Some(stream) => Ok(Target::Written(stream)),
            None => Ok(Target::Replaced(target)),
        }
    }

    /// Writes a status, and returns the target for the next one.
    fn write(mut self, line: &[u8]) -> io::Result<Target> {
        match &mut self {
            Target::Replaced(path) => fencelock_cli::replace(path, line)?,
            Target::Written(file) => {
                if file.write(line)? < line.len() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
        }
        Ok(self)
    }
}

/// Where a file named `path` is or would be created: `path`, or what the symbolic link of that name refers
/// to, although that does not exist. Refuses a link of another user where users other than this one may make them:
/// it leads to a file of this user that they may not write to.
fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    // As many as the kernel follows.
    const MOST_LINKS: usize = 40;
    let ours = [0, rustix::process::geteuid().as_raw()];
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        let owner = fs::symlink_metadata(&path)?.uid();
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let about = fs::metadata(dir)?;
        let is_open = about.mode() & 0o022 != 0 || !ours.contains(&about.uid());
        if is_open && !ours.contains(&owner) {
            let link = path.display();
            return Err(io::Error::other(format!("{link} is a symbolic link of user {owner}")));
        }
        path.pop();
        path.push(target);
    }
    Err(Errno::LOOP.into())
}

/// Opens anything but a regular file. Never waits, neither for the reader of a pipe nor for space in
/// it: the lock has to be renewed meanwhile.
fn open_in_place(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = flags.bits().cast_signed();
    let file = File::options().write(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        // It was replaced meanwhile, and is not ours to write into.
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok(file),
    }
}

/// Our standard output or error, if that is what was `found`.
fn standard_stream(found: &fs::Metadata) -> Option<File> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    [stdout.as_fd(), stderr.as_fd()].into_iter().find_map(|stream| {
        let file = File::from(stream.try_clone_to_owned().ok()?);
        let is = file.metadata().ok()?;
        ((is.dev(), is.ino()) == (found.dev(), found.ino())).then_some(file)
    })
}
