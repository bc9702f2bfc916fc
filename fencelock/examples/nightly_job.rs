//! A job that cron starts on three nodes every night, and that `once` has one of them run. The others wait,
//! to take over if it dies: the node at work in the second night is killed half-way. In the end each night is
//! done once, and never by two nodes at a time. The nodes are processes; with mem:// they are tasks, one of which is
//! dropped.
//!
//! ```sh
//! cargo run --example nightly_job                      # file://
//! cargo run --features redis --example nightly_job -- redis://127.0.0.1/
//! cargo run --example nightly_job -- file:// --without # each node runs it: ends with an error
//! ```

use std::collections::HashMap;
use std::fs::{File, read_to_string};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use fencelock::{Locks, Reach, Tick};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The table that the job writes to, here a file, with rows such as `17 night-2 A begins`.
#[derive(Clone)]
struct Table(PathBuf);

impl Table {
    /// Adds a row, and returns those that were there; an error if one has a larger fencing token. The lock of
    /// the file makes check and write atomic, as a transaction does in a database.
    fn add(&self, token: u64, row: &str) -> io::Result<String> {
        let mut file = File::options().read(true).append(true).open(&self.0)?;
        file.lock()?;
        let rows = io::read_to_string(&file)?;
        let tokens = rows.lines().filter_map(|row| row.split(' ').next()?.parse::<u64>().ok());
        if tokens.max() > Some(token) {
            return Err(io::Error::other("another node has taken over"));
        }
        file.write_all(format!("{token} {row}\n").as_bytes())?;
        Ok(rows)
    }
}

/// The job. What it writes has the token of its run.
async fn report(table: &Table, night: u64, node: &str, token: u64) -> Result<()> {
    let before = table.add(token, &format!("night-{night} {node} begins"))?;
    if night == 2 && !before.contains("night-2") {
        std::future::pending::<()>().await; // This node hangs half-way, and is killed.
    }
    sleep(Duration::from_millis(50)).await; // The work.
    table.add(token, &format!("night-{night} {node} ends"))?;
    Ok(())
}

/// What the cron of one node starts, night after night.
async fn node(locks: Locks, name: String, table: Table, without: bool) -> Result<()> {
    // A name for each run of this example, since a store remembers for 90 days which nights are done.
    let job = locks.once(format!("nightly-report/{}", table.0.display())).label(&name);
    // The TTL: how soon a dead node is followed. The wait: how long the others may have to take over.
    let job = job.ttl(Duration::from_secs(3)).wait_at_most(Duration::from_secs(30));
    for night in 1..=3 {
        if without {
            report(&table, night, &name, 0).await?;
            continue;
        }
        // With a real cron: Tick::every(Duration::from_secs(86_400)), which is today's number on each node.
        let tonight = job.clone().tick(Tick::number(night));
        // The work is dropped if the lock is lost, and then not done.
        let made =
            tonight.run(async |run| report(&table, night, &name, run.fencing_token().get()).await);
        match made.await? {
            Some(()) => println!("{name}: night {night} is done here"),
            None => println!("{name}: night {night} is done elsewhere"),
        }
    }
    Ok(())
}

/// A node as a process: this program, started again. Dropping it kills the process.
async fn process(url: String, name: String, table: Table, without: bool) -> Result<()> {
    let mut program = Command::new(std::env::current_exe()?);
    // Not as an argument, which `ps` shows: a URL may have a password.
    program.env("FENCELOCK_URL", url);
    program.args(["--node", &name]).arg(table.0).args(without.then_some("--without"));
    let ended = program.kill_on_drop(true).status().await?;
    ended.success().then_some(()).ok_or_else(|| format!("{name}: {ended}").into())
}

/// Each night is done once, and no node begins while another is at work.
fn check(rows: &str) -> Result<()> {
    let (mut at_work, mut done) = (None, Vec::new());
    for row in rows.lines() {
        let (run, step) = row.rsplit_once(' ').ok_or("an empty row")?;
        at_work = match (step, at_work) {
            ("begins", None) => Some(run),
            ("killed", Some(begun)) if begun == run => None,
            ("ends", Some(begun)) if begun == run => {
                done.extend(run.split(' ').nth(1));
                None
            }
            _ => return Err(format!("two nodes were at work at a time: {row}").into()),
        };
    }
    let each_once = done == ["night-1", "night-2", "night-3"];
    each_once.then_some(()).ok_or_else(|| format!("not each night was done once: {done:?}").into())
}

#[tokio::main]
async fn main() -> Result<()> {
    let without = std::env::args().any(|arg| arg == "--without");
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--without");
    let first = args.next();
    let is_node = first.as_deref() == Some("--node");
    let url = first.filter(|_| !is_node).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let url = url.unwrap_or_else(|| "file://".to_owned());
    let locks = fencelock::connect(&url).await?;
    if is_node && let (Some(name), Some(table)) = (args.next(), args.next()) {
        return node(locks, name, Table(table.into()), without).await;
    }
    let file = tempfile::NamedTempFile::new()?;
    let table = Table(file.path().to_owned());
    let mut nodes = HashMap::from(["A", "B", "C"].map(|name| {
        let (locks, url, table) = (locks.clone(), url.clone(), table.clone());
        match locks.profile().reach {
            Reach::Process => (name, tokio::spawn(node(locks, name.into(), table, without))),
            _ => (name, tokio::spawn(process(url, name.into(), table, without))),
        }
    }));

    let hangs = loop {
        let has_ended = nodes.values().any(JoinHandle::is_finished);
        let rows = read_to_string(&table.0)?;
        match rows.lines().find(|row| row.contains("night-2")) {
            Some(row) => break row.to_owned(),
            None if has_ended => return Err("a node has ended before the second night".into()),
            None => sleep(Duration::from_millis(10)).await,
        }
    };
    let [token, _, name, _] = hangs.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("not a row: {hangs}").into());
    };
    let token = token.parse()?;
    table.add(token, &format!("night-2 {name} killed"))?;
    let killed = nodes.remove(name).ok_or("an unknown node")?;
    killed.abort();
    assert!(killed.await.is_err_and(|end| end.is_cancelled()), "it is killed before it ends");
    for node in nodes.into_values() {
        node.await??;
    }
    let rows = read_to_string(&table.0)?;
    println!("{name} was killed half-way; the table:\n{rows}");
    check(&rows)?;
    assert!(table.add(token, "night-2 late").is_err(), "nothing is written for a dead node");
    Ok(())
}
