//! Transactions on the lock's own database: what their check prevents, and whether the test would notice if it
//! prevented nothing.

use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::{Config, NoTls};

use super::{report, sum, violations};

/// All holds have transactions.
const ALL: [&str; 2] = ["--transactions", "100"];
/// Several holders hold at any time, others wait, and all tasks have transactions.
const HOLDS: [&str; 6] = ["--workers", "8", "--locks", "16", "--hold-at-most", "200ms"];

/// Clients are frozen for longer than the TTL, within transactions too.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_check_keeps_the_updates_that_are_lost_without_it() {
    // Where in a transaction a client is frozen is a matter of chance.
    const TRIES: usize = 4;
    let (mut lost, mut refused) = (0, 0);
    for _ in 0..TRIES {
        let frozen = ["postgres", "--fault", "clients-frozen", "--rounds", "4"];
        let report = report(&[&frozen[..], &ALL, &HOLDS].concat()).await;
        assert!(sum(&report, "/transactions/checked/commits") > 0, "{report:#}");
        assert_eq!(sum(&report, "/transactions/checked/lost_updates"), 0, "{report:#}");
        assert_eq!(sum(&report, "/transactions/lost_commits"), 0, "{report:#}");
        lost += sum(&report, "/transactions/unchecked/lost_updates");
        refused += sum(&report, "/transactions/refused");
        if lost > 0 && refused > 0 {
            return;
        }
    }
    panic!("{lost} updates were lost without a check, and {refused} checks were refused");
}

/// The commits that it loses are lost with the grants that they were checked against: one history.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_failover_that_loses_commits_loses_no_update_of_those_that_survive() {
    let lossy = ["postgres-failover", "--fault", "master-killed", "--rounds", "2"];
    let report = report(&[&lossy[..], &ALL, &HOLDS].concat()).await;
    assert!(sum(&report, "/transactions/lost_commits") > 0, "{report:#}");
    assert_eq!(sum(&report, "/transactions/checked/lost_updates"), 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_failover_to_a_synchronous_standby_loses_no_commit() {
    let safe = ["postgres-sync", "--fault", "master-killed", "--rounds", "1"];
    let report = report(&[&safe[..], &ALL, &HOLDS].concat()).await;
    assert!(sum(&report, "/transactions/checked/commits") > 0, "{report:#}");
    assert_eq!(sum(&report, "/transactions/lost_commits"), 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_check_that_checks_nothing_is_a_violation() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data-directory");
    let programs = programs_that_say_where(directory.path(), &data).expect("programs");
    let frozen = ["postgres", "--fault", "clients-frozen", "--rounds", "4"];
    let torture = [&frozen[..], &ALL, &HOLDS].concat();
    let harm = check_nothing(&data);
    let found = violations(&torture, ("FENCELOCK_POSTGRES", &programs), harm).await;
    let lost = "lost in transactions that checked their lock";
    assert!(found.iter().any(|it| it.ends_with(lost)), "{found:#?}");
}

/// A directory of programs, in whose `bin` are those of PostgreSQL; the server writes down where its data is.
fn programs_that_say_where(directory: &Path, data: &Path) -> io::Result<PathBuf> {
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    open(directory, 0o755)?;
    std::fs::write(data, "")?;
    open(data, 0o666)?;
    let bin = directory.join("bin");
    std::fs::create_dir(&bin)?;
    let installed = installed()?;
    for program in std::fs::read_dir(&installed)? {
        let program = program?.file_name();
        if program != "postgres" {
            symlink(installed.join(&program), bin.join(&program))?;
        }
    }
    let server = bin.join("postgres");
    let (data, installed) = (data.display(), installed.display());
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -D ] && echo \"$2\" > {data}\nexec {installed}/postgres \"$@\"\n"
    );
    std::fs::write(&server, script)?;
    open(&server, 0o755)?;
    Ok(directory.to_owned())
}

/// Where the programs are that the tests use.
fn installed() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("FENCELOCK_POSTGRES") {
        return Ok(PathBuf::from(named).join("bin"));
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql")?.flatten().map(|it| it.path());
    let newest = versions
        .max_by_key(|path| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    Ok(newest.ok_or(io::ErrorKind::NotFound)?.join("bin"))
}

/// Replaces the check by one that is content with everything, until the server ends.
async fn check_nothing(data: &Path) {
    loop {
        // It is not there yet, or its tables are not, or it is no more.
        let _ = replace_check(data).await;
        sleep(Duration::from_millis(50)).await;
    }
}

async fn replace_check(data: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let data = PathBuf::from(std::fs::read_to_string(data)?.trim());
    let settings = std::fs::read_to_string(data.join("postgresql.conf"))?;
    let port = settings.lines().find_map(|line| line.strip_prefix("port = ")).unwrap_or_default();
    let mut config = Config::new();
    config.host_path(data.parent().unwrap_or(&data)).port(port.parse()?);
    let (client, connection) = config.user("admin").dbname("postgres").connect(NoTls).await?;
    let connection = tokio::spawn(connection);
    let replaced = client
        .batch_execute(
            "SELECT 'fencelock.check_token(bytea, bigint, int)'::regprocedure;
             CREATE OR REPLACE FUNCTION fencelock.check_token(p_key bytea, p_token bigint, p_idle_ms int)
             RETURNS void LANGUAGE sql AS 'SELECT NULL::void'",
        )
        .await;
    connection.abort();
    Ok(replaced?)
}
