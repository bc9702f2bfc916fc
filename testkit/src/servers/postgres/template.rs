//! The data of a fresh server: made once per test process, and copied for each server, which takes a
//! twentieth of the time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use crate::servers::process::Watchdog;
use crate::servers::unprivileged::{make_home, run};

/// The superuser, who cannot log in through TCP.
pub(in crate::servers) const ADMIN: &str = "admin";
/// The role of clients, which owns the database.
pub(in crate::servers) const USER: &str = "fencelock";
/// The role of standbys.
pub(super) const REPLICATOR: &str = "replicator";
/// Of the [password](super::PASSWORD), by one iteration: a client repeats as many at each login, usually 4,096.
const VERIFIER: &str = "SCRAM-SHA-256$1:ZmVuY2Vsb2NrLXRlc3RzIQ==\
    $K8BHhf4E3u9uYaxN+KE2UldK205r7hbxXBZND0SCUAs=:Qn98FOx8p5rzKIqzQjRz3dJbx8IsUDtz5wOH54OtNHs=";

/// A directory to copy from.
struct Template {
    data: PathBuf,
    /// A static value is never dropped; this deletes the directory after the end of the process.
    _watchdog: Watchdog,
}

/// By the directory of the programs.
type Templates = HashMap<PathBuf, Template>;

/// Puts the data of a fresh server, made by these programs, into the directory `data`. Blocks.
pub(super) fn copy_to(data: &Path, programs: &Path) -> io::Result<()> {
    static TEMPLATES: Mutex<Option<Templates>> = Mutex::new(None);
    // Locked while it is made: the others need it too.
    let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
    let templates = templates.get_or_insert_default();
    let from = match templates.get(programs) {
        Some(template) => template.data.clone(),
        None => {
            let template = make(programs)?;
            let data = template.data.clone();
            templates.insert(programs.to_owned(), template);
            data
        }
    };
    // The log begins as 16 MB of zeros.
    let how = ["-R", "--sparse=always"].map(OsString::from);
    let how = if cfg!(target_os = "linux") { &how[..] } else { &how[..1] };
    run("cp", how.iter().cloned().chain([from.into(), data.into()]), |_| {})
}

fn make(programs: &Path) -> io::Result<Template> {
    let directory = tempfile::Builder::new().prefix("fencelock-postgresql-template-").tempdir()?;
    let data = make_home(directory.path())?.join("data");
    initialise(&data, programs)?;
    let watchdog = Watchdog::that_deletes(directory.path())?;
    // From here on the watchdog deletes it.
    let _ = directory.keep();
    Ok(Template { data, _watchdog: watchdog })
}

/// Makes the data of a fresh server, with the roles that all of these servers have. Blocks.
pub(in crate::servers) fn initialise(data: &Path, programs: &Path) -> io::Result<()> {
    let usual = ["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"];
    let usual = usual.into_iter().map(OsString::from).chain([data.into()]);
    run(programs.join("initdb"), usual, |_| {})?;
    let roles = format!(
        "CREATE ROLE {USER} LOGIN PASSWORD '{VERIFIER}';\n\
         CREATE ROLE {REPLICATOR} LOGIN REPLICATION PASSWORD '{VERIFIER}';\n\
         ALTER DATABASE postgres OWNER TO {USER};\n"
    );
    // A server for one user, the administrator, on its standard input.
    let statements = data.with_file_name("roles.sql");
    std::fs::write(&statements, roles)?;
    let input = std::fs::File::open(&statements)?;
    let single = ["--single", "-F", "-c", "log_checkpoints=off", "-D"].map(OsString::from);
    let single = single.into_iter().chain([data.into(), "postgres".into()]);
    run(programs.join("postgres"), single, |command| {
        command.stdin(Stdio::from(input));
    })?;
    std::fs::remove_file(statements)
}
