//! The file that tells monitoring how a run went: whole or not there, never half.

use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fencelock::{FencingToken, Snapshot};
use serde::Serialize;

use super::exit::{Codes, Outcome, say};
use super::options::Plan;

/// What is known of a run so far.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    name: String,
    store: String,
    token: Option<u64>,
    /// `running` from the grant on, then how it ended.
    outcome: &'static str,
    exit_code: Option<u8>,
    waited_seconds: f64,
    held_seconds: Option<f64>,
    /// Who held it when it was busy.
    holders: Vec<Holder>,
    message: Option<String>,
    #[serde(skip)]
    file: Option<PathBuf>,
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

impl Status {
    pub(super) fn new(plan: &Plan) -> Status {
        Status {
            name: plan.name.clone(),
            store: plan.store.shown.clone(),
            token: None,
            outcome: "waiting",
            exit_code: None,
            waited_seconds: 0.0,
            held_seconds: None,
            holders: Vec::new(),
            message: None,
            file: plan.status.clone(),
            started: Instant::now(),
            granted: None,
        }
    }

    /// The lock is held from now on. How long it took.
    pub(super) fn granted(&mut self, token: FencingToken) -> Duration {
        let now = Instant::now();
        let waited = now.duration_since(self.started);
        self.token = Some(token.get());
        self.outcome = "running";
        self.waited_seconds = waited.as_secs_f64();
        self.granted = Some(now);
        self.write();
        waited
    }

    /// The lock is not held any more, or not to be believed in.
    pub(super) fn let_go(&mut self) {
        let held = self.granted.map(|granted| granted.elapsed().as_secs_f64());
        self.held_seconds = self.held_seconds.or(held);
    }

    /// It is held by those.
    pub(super) fn held_by(&mut self, others: &Snapshot) {
        let holder = |occupant: &fencelock::Occupant| Holder {
            label: occupant.label.as_ref().map(ToString::to_string),
            since_seconds: occupant.since.map(|since| since.as_secs_f64()),
        };
        self.holders = others.holders.iter().map(holder).collect();
    }

    /// How it ended. An exit code that cannot be written down is returned all the same.
    pub(super) fn ended(mut self, outcome: &Outcome, codes: Codes) -> u8 {
        let code = codes.of(outcome);
        self.let_go();
        if self.granted.is_none() {
            self.waited_seconds = self.started.elapsed().as_secs_f64();
        }
        self.outcome = outcome.word();
        self.exit_code = Some(code);
        self.message = outcome.message();
        self.write();
        code
    }

    fn write(&self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = replace(file, self) {
            say(&format!("cannot write the status to {}: {error}", file.display()));
        }
    }
}

fn replace(file: &Path, status: &Status) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // As any new file: the umask takes away what it should.
    let permissions = std::fs::Permissions::from_mode(0o666);
    let mut new = tempfile::Builder::new().permissions(permissions).tempfile_in(directory)?;
    serde_json::to_writer(&mut new, status)?;
    new.write_all(b"\n")?;
    new.persist(file)?;
    Ok(())
}
