//! A nightly job that every node starts and exactly one completes, even if a node is killed while it
//! runs the job. What it does with a record of its own, `locks.once("nightly-report")` does with a cell of the
//! store; the record shows each step here. The nodes are processes; with mem:// they are tasks, one of which is aborted.
//! `cargo run --features redis --example nightly_job -- redis://127.0.0.1/`, or without a URL file://.

use std::collections::HashMap;
use std::fs::{File, read_to_string};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock::{Locks, Reach};
use tokio::{process::Command, task::JoinHandle, time::sleep};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Adds a step to the record of a night, unless the record has a larger fencing token. The lock of
/// the file makes check and write atomic, as a transaction does in a database.
fn add(record: &Path, token: u64, step: &str) -> io::Result<()> {
    let mut file = File::options().read(true).append(true).open(record)?;
    file.lock()?;
    let steps = io::read_to_string(&file)?;
    let tokens = steps.lines().filter_map(|step| step.split(' ').next()?.parse::<u64>().ok());
    if tokens.max() > Some(token) {
        return Err(io::Error::other("another node has taken over"));
    }
    file.write_all(format!("{token} {step}\n").as_bytes())
}

/// The job of each node. A node waits for the others, to take over if one of them dies.
async fn node(locks: Locks, name: String, record: PathBuf) -> Result<()> {
    let guard = locks.lock("nightly-report").ttl(Duration::from_secs(3)).acquire().await?;
    if read_to_string(&record)?.contains("complete") {
        println!("{name}: it is done already");
        return Ok(());
    }
    for step in ["half", "complete"] {
        guard.run(sleep(Duration::from_secs(1))).await?; // The work; it is dropped if the lock is lost.
        add(&record, guard.fencing_token().get(), &format!("{name} {step}"))?;
    }
    Ok(guard.release().await?)
}

/// A node as a process: this program, started again. Dropping it kills the process.
async fn process(url: String, name: String, record: PathBuf) -> Result<()> {
    let mut program = Command::new(std::env::current_exe()?);
    let ended = program.args([&url, &name]).arg(record).kill_on_drop(true).status().await?;
    ended.success().then_some(()).ok_or_else(|| format!("{name}: {ended}").into())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().or_else(|| std::env::var("FENCELOCK_URL").ok());
    let url = url.unwrap_or_else(|| "file://".to_owned());
    let locks = fencelock::connect(&url).await?;
    if let (Some(name), Some(record)) = (args.next(), args.next()) {
        return node(locks, name, record.into()).await;
    }
    let night = tempfile::NamedTempFile::new()?;
    let record = night.path().to_owned();
    let mut nodes = HashMap::from(["A", "B", "C"].map(|name| match locks.profile().reach {
        Reach::Process => (name, tokio::spawn(node(locks.clone(), name.into(), record.clone()))),
        _ => (name, tokio::spawn(process(url.clone(), name.into(), record.clone()))),
    }));
    let half = || read_to_string(&record).is_ok_and(|steps| steps.contains("half\n"));
    while !half() && !nodes.values().any(JoinHandle::is_finished) {
        sleep(Duration::from_millis(10)).await;
    }
    let steps = read_to_string(&record)?;
    let (token, name) = steps.trim_end_matches(" half\n").split_once(' ').ok_or("no token")?;
    let killed = nodes.remove(name).ok_or("more than one node is at work")?;
    killed.abort();
    assert!(killed.await.is_err_and(|end| end.is_cancelled()), "it is killed before it ends");
    for node in nodes.into_values() {
        node.await??;
    }
    println!("{name} was killed half-way; the record:\n{}", read_to_string(&record)?);
    assert_eq!(read_to_string(&record)?.matches("complete").count(), 1, "the job is done once");
    assert!(add(&record, token.parse()?, "late").is_err(), "nothing is written for a dead node");
    Ok(())
}
