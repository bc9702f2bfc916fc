//! Which server programs the tests start: Debian's, or other versions that the environment names.
//!
//! One build of the tests runs on every version: `FENCELOCK_REDIS_SERVER` is the path of a
//! `redis-server` or `valkey-server`, `FENCELOCK_ZOOKEEPER_JARS` a directory with ZooKeeper's jar
//! and all that it needs, `FENCELOCK_POSTGRES` a directory with the `bin` of PostgreSQL. A few options
//! that the test servers take by default are younger than the oldest supported Redis, so the program is
//! asked for its version once.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Names the program of Redis servers, or of servers that speak its protocol.
const REDIS: &str = "FENCELOCK_REDIS_SERVER";
/// Names the directory of ZooKeeper's jars.
const ZOOKEEPER: &str = "FENCELOCK_ZOOKEEPER_JARS";
/// Names the directory above PostgreSQL's programs.
const POSTGRES: &str = "FENCELOCK_POSTGRES";
/// Where Debian's packages put the jars of all Java libraries.
pub(super) const DEBIAN_JARS: &str = "/usr/share/java";
/// Where Debian's packages put the versions of PostgreSQL.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

pub(crate) fn redis_program() -> OsString {
    std::env::var_os(REDIS).unwrap_or_else(|| "redis-server".into())
}

/// What is missing where a server's program or jar is, with the variable that names it: it may be
/// set far from the test.
pub(super) fn missing(path: &str) -> String {
    let named_by = |variable| {
        std::env::var(variable).is_ok_and(|named| !named.is_empty() && path.starts_with(&named))
    };
    match [REDIS, ZOOKEEPER, POSTGRES].into_iter().find(|variable| named_by(*variable)) {
        Some(variable) => format!("{path}, which {variable} names,"),
        None => path.to_owned(),
    }
}

pub(super) fn zookeeper_jars() -> PathBuf {
    std::env::var_os(ZOOKEEPER).unwrap_or_else(|| DEBIAN_JARS.into()).into()
}

/// The directory of PostgreSQL's programs, or the one that is missing: the newest of Debian's packages, whose
/// programs are not on the search path, or that on the search path.
pub(super) fn postgres_programs() -> Result<PathBuf, String> {
    let has_server = |directory: &PathBuf| directory.join("postgres").is_file();
    if let Some(named) = std::env::var_os(POSTGRES) {
        let programs = PathBuf::from(named).join("bin");
        return match has_server(&programs) {
            true => Ok(programs),
            false => Err(programs.join("postgres").display().to_string()),
        };
    }
    let versions = std::fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten();
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .map(|entry| entry.path())
        .filter(|path| has_server(&path.join("bin")))
        .max_by_key(version)
        .map(|path| path.join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    newest
        .or_else(|| std::env::split_paths(&path).find(has_server))
        .ok_or_else(|| format!("{DEBIAN_POSTGRES}/*/bin/postgres"))
}

/// The program that runs [`TestPostgres`](super::TestPostgres) by default, for a
/// [`ServerClock`](super::ServerClock) before it.
///
/// # Errors
/// The program that is missing.
#[cfg(feature = "stores")]
pub fn postgres_program() -> Result<OsString, String> {
    Ok(postgres_programs()?.join("postgres").into())
}

/// Debian's package puts it where the search path of a user may not lead.
pub(super) fn pgbouncer_program() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = places.find(|place| place.join("pgbouncer").is_file());
    found.unwrap_or_default().join("pgbouncer").into()
}

/// The major version that `program --version` prints, `v=7.0.15` or `server v=9.1.2`; none if it
/// does not run or prints another text.
pub(super) fn redis_major(program: &OsStr) -> Option<u32> {
    static KNOWN: Mutex<Option<HashMap<OsString, Option<u32>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = || {
        let output = Command::new(program).arg("--version").output().ok()?;
        major(&String::from_utf8_lossy(&output.stdout))
    };
    *known.get_or_insert_default().entry(program.to_owned()).or_insert_with(asked)
}

fn major(version: &str) -> Option<u32> {
    let (_, number) = version.split_once(" v=")?;
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_of_redis_and_of_valkey() {
        assert_eq!(major("Redis server v=6.2.5 sha=00000000:0 malloc=jemalloc-5.1.0"), Some(6));
        assert_eq!(major("Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64"), Some(9));
        assert_eq!(major("nothing of the kind"), None);
        assert_eq!(redis_major(OsStr::new("/nonexistent")), None);
    }
}
