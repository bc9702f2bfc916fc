//! `fencelock-lab costs`: what a process costs its store each second while it holds, waits, watches or is a candidate:
//! the tables of "What costs" in the documentation.
//!
//! A cost is what several processes add to the counts of the servers and of the proxies before them, so that what
//! measuring costs is not in it.

use std::fmt::Write as _;
use std::io;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use fencelock::{Error, ErrorKind, Locks, Result};
use fencelock_testkit::deployments::{Deployment, Kind, Meter, Wiring};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::store_spec::LIBRARY;

/// The stores that have servers; the page of each, and what its servers count besides requests.
const STORES: [(Kind, &str, &str); 5] = [
    (Kind::Postgres, "docs/postgres.md", "transactions"),
    (Kind::PostgresPgbouncer, "docs/postgres.md", "transactions"),
    (Kind::Redis, "docs/redis.md", "commands"),
    (Kind::Redlock3, "docs/redlock.md", "commands"),
    (Kind::ZooKeeper, "docs/zookeeper.md", "packets"),
];

/// A lock that is held, and an election that is led.
const TAKEN: &str = "taken";

/// Measures what a process costs its store each second that holds, waits, watches or is a candidate.
///
/// The servers are started here, on loopback, and end with the command.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Of postgres, postgres-pgbouncer, redis, redlock-3, zookeeper; all, if none is given
    stores: Vec<Kind>,
    /// How long each is measured
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    during: Duration,
    /// How many processes do the same
    #[arg(long, default_value = "10")]
    processes: NonZeroUsize,
    /// Writes the tables into the pages below docs/
    #[arg(long)]
    write: bool,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let is_asked = |kind| self.stores.is_empty() || self.stores.contains(&kind);
        let tables = STORES.into_iter().filter(|(kind, ..)| is_asked(*kind));
        let tables = tables.map(async |(kind, page, counted)| {
            let costs = self.table(kind).await?;
            let table = drawn(counted, &costs);
            println!("{kind}\n\n{table}");
            if self.write { put(kind, page, &table) } else { Ok(()) }
        });
        let measured = fencelock_cli::runtime()?.block_on(join_all(tables));
        let first = measured.into_iter().find_map(std::result::Result::err);
        first.map_or(Ok(ExitCode::SUCCESS), |error| Err(broken(error)))
    }

    async fn table(&self, kind: Kind) -> io::Result<Vec<(Role, Cost)>> {
        let deployment = kind.start(LIBRARY, Wiring::Proxied).await?;
        let measure =
            async |role, number| measure(&*deployment, role, number, SETTLED, self.during).await;
        let nothing = measure(Role::Connected, 0).await?;
        let mut costs = Vec::new();
        for role in Role::ALL.into_iter().filter(|role| role.is_possible_on(kind)) {
            let all = measure(role, self.processes.get()).await?;
            costs.push((role, all.each(&nothing, self.processes.get())));
        }
        Ok(costs)
    }
}

/// PostgreSQL counts the transactions of an idle session up to ten seconds late, so those of connecting too.
const SETTLED: Duration = Duration::from_secs(11);

/// What a process does.
#[derive(Clone, Copy, Debug)]
enum Role {
    Connected,
    Holder,
    Waiter,
    Showing,
    Candidate,
    Observer,
    AtALatch,
}

impl Role {
    const ALL: [Role; 7] = [
        Role::Connected,
        Role::Holder,
        Role::Waiter,
        Role::Showing,
        Role::Candidate,
        Role::Observer,
        Role::AtALatch,
    ];

    fn text(self) -> &'static str {
        match self {
            Role::Connected => "is connected",
            Role::Holder => "holds a lock",
            Role::Waiter => "waits for a lock",
            Role::Showing => "waits, and shows the holder, as `run -v` does",
            Role::Candidate => "is a candidate of an election, such as an idle `elect`",
            Role::Observer => "observes an election",
            Role::AtALatch => "waits at a latch",
        }
    }

    /// A quorum has no cells.
    fn is_possible_on(self, kind: Kind) -> bool {
        kind != Kind::Redlock3 || !matches!(self, Role::Candidate | Role::Observer | Role::AtALatch)
    }

    /// Does it until an error; reports when it has begun.
    async fn play(self, locks: &Locks, number: usize, begun: mpsc::Sender<()>) -> Result<()> {
        // Those that come late are not waited for.
        let has_begun = async || begun.send(()).await.unwrap_or_default();
        match self {
            Role::Connected => {
                has_begun().await;
                std::future::pending().await
            }
            Role::Holder => {
                let guard = locks.lock(format!("own-{number}")).acquire().await?;
                has_begun().await;
                guard.lost().await;
                Ok(())
            }
            Role::Observer => {
                let mut observer = locks.election(TAKEN).observe().await?;
                loop {
                    observer.next().await?;
                    has_begun().await;
                }
            }
            Role::Waiter | Role::Showing | Role::Candidate | Role::AtALatch => {
                let waiting = async {
                    match self {
                        Role::Candidate => locks.election(TAKEN).campaign().await.map(drop),
                        Role::AtALatch => locks.latch(TAKEN, 1).wait().await,
                        _ => locks.lock(TAKEN).acquire().await.map(drop),
                    }
                };
                let showing = async {
                    sleep(Duration::from_secs(1)).await;
                    has_begun().await;
                    loop {
                        if matches!(self, Role::Showing) {
                            locks.inspect_holders(TAKEN).await?;
                        }
                        sleep(Duration::from_secs(1)).await;
                    }
                };
                tokio::select! {
                    ended = waiting => ended,
                    failed = showing => failed,
                }
            }
        }
    }
}

/// Counts per second.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    connections: f64,
    requests: f64,
    /// Commands, transactions or packets that the servers have counted.
    counted: f64,
    transaction_ids: Option<f64>,
    bytes: f64,
}

impl Cost {
    fn between(before: &Meter, after: &Meter, seconds: f64) -> Cost {
        let rate = |of: fn(&Meter) -> Option<u64>| {
            let (before, after) = (of(before)?, of(after)?);
            Some(after.saturating_sub(before) as f64 / seconds)
        };
        let requests = |it: &Meter| Some(it.traffic?.requests);
        let bytes =
            |it: &Meter| Some(it.traffic?.bytes_to_servers + it.traffic?.bytes_from_servers);
        Cost {
            connections: after.traffic.unwrap_or_default().connections as f64,
            requests: rate(requests).unwrap_or_default(),
            counted: rate(|it| it.commands).unwrap_or_default(),
            transaction_ids: rate(|it| it.transaction_ids),
            bytes: rate(bytes).unwrap_or_default(),
        }
    }

    /// What each of so many processes adds to `nothing`.
    fn each(&self, nothing: &Cost, processes: usize) -> Cost {
        let each = |all: f64, nothing: f64| (all - nothing).max(0.0) / processes as f64;
        let ids = self.transaction_ids.zip(nothing.transaction_ids);
        Cost {
            connections: each(self.connections, nothing.connections),
            requests: each(self.requests, nothing.requests),
            counted: each(self.counted, nothing.counted),
            transaction_ids: ids.map(|(all, nothing)| each(all, nothing)),
            bytes: each(self.bytes, nothing.bytes),
        }
    }
}

/// What so many processes cost that do the same, beside one that holds a lock and leads an election.
async fn measure(
    deployment: &dyn Deployment,
    role: Role,
    processes: usize,
    settled: Duration,
    during: Duration,
) -> io::Result<Cost> {
    // With the session timeout that users have, not the short one of other deployments' faults.
    let url = deployment.url().replace("?session=2s", "");
    let connect = || fencelock::connect_within(&url, Duration::from_secs(60));
    // The lock of an election is that of its name.
    let leader = connect().await.map_err(io::Error::other)?;
    let leading = leader.lock(TAKEN).acquire().await.map_err(io::Error::other)?;
    let clients = (0..processes).map(|_| connect());
    let clients = try_join_all(clients).await.map_err(io::Error::other)?;
    let (begun, mut beginnings) = mpsc::channel(1);
    let mut playing = JoinSet::new();
    for (number, locks) in clients.iter().cloned().enumerate() {
        let begun = begun.clone();
        playing.spawn(async move { role.play(&locks, number, begun).await });
    }
    drop(begun);
    // Without a sender, one has failed, as is seen below.
    for _ in 0..processes {
        beginnings.recv().await;
    }
    sleep(settled).await;
    let (began, before) = (Instant::now(), deployment.meter().await?);
    sleep(during).await;
    let (seconds, after) = (began.elapsed().as_secs_f64(), deployment.meter().await?);
    if let Some(ended) = playing.try_join_next() {
        let held = leading.is_held();
        return Err(io::Error::other(format!(
            "{url}: {role:?} has ended: {ended:?}, held: {held}"
        )));
    }
    playing.shutdown().await;
    for locks in clients {
        locks.close().await.map_err(io::Error::other)?;
    }
    leading.release().await.map_err(io::Error::other)?;
    leader.close().await.map_err(io::Error::other)?;
    Ok(Cost::between(&before, &after, seconds))
}

fn drawn(counted: &str, costs: &[(Role, Cost)]) -> String {
    let has_ids = costs.iter().any(|(_, cost)| cost.transaction_ids.is_some());
    let ids = if has_ids { " transaction ids |" } else { "" };
    let rule = if has_ids { "--:|" } else { "" };
    let mut table = format!(
        "| a process that | connections | requests | {counted} |{ids} bytes |\n|---|--:|--:|--:|--:|{rule}\n"
    );
    for (role, cost) in costs {
        let ids = cost.transaction_ids.map(|ids| format!(" {} |", short(ids))).unwrap_or_default();
        let [connections, requests, counted, bytes] =
            [cost.connections, cost.requests, cost.counted, cost.bytes].map(short);
        let role = role.text();
        // Writing to a string cannot fail.
        let _ =
            writeln!(table, "| {role} | {connections} | {requests} | {counted} |{ids} {bytes} |");
    }
    table
}

fn short(number: f64) -> String {
    match number {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// Puts the table between its marks.
fn put(kind: Kind, page: &str, table: &str) -> io::Result<()> {
    let text = std::fs::read_to_string(page)?;
    let begin = format!("<!-- costs of {kind}: made by `fencelock-lab costs --write` -->\n");
    let (before, rest) = text.split_once(&begin).ok_or_else(|| lacks(page, &begin))?;
    let end = "<!-- end of costs -->";
    let (_, after) = rest.split_once(end).ok_or_else(|| lacks(page, end))?;
    std::fs::write(page, format!("{before}{begin}{table}{end}{after}"))
}

fn lacks(page: &str, mark: &str) -> io::Error {
    io::Error::other(format!("{page} has no line {mark:?}"))
}

fn broken(cause: io::Error) -> Error {
    Error::new(ErrorKind::Refused, format!("a measurement failed: {cause}")).caused_by(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a busy machine it is less. With each waiter that asks who holds reading of all, it would be twice as much
    /// as here is allowed; with each look behind a pooler in the pace of the first seconds too.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_waiter_costs_does_not_grow_with_their_number() {
        const PROCESSES: usize = 16;
        // Longer than the first seconds behind a pooler.
        let (settled, during) = (Duration::from_secs(5), Duration::from_secs(3));
        let stores = STORES.map(async |(kind, ..)| {
            // Of requests; of what the servers count, with the commands within scripts and a share of what measuring
            // costs; and of bytes.
            let most = match kind {
                Kind::Redis => [8.0, 60.0, 3_000.0],
                Kind::Redlock3 => [20.0, 150.0, 6_000.0],
                _ => [8.0, 8.0, 3_000.0],
            };
            let deployment = kind.start(LIBRARY, Wiring::Proxied).await?;
            let watching = [Role::Showing, Role::Candidate, Role::Observer];
            for role in watching.into_iter().filter(|role| role.is_possible_on(kind)) {
                let all = measure(&*deployment, role, PROCESSES, settled, during).await?;
                let each = all.each(&Cost::default(), PROCESSES);
                println!("{kind}, {role:?}: {each:?}");
                let seen = [each.requests, each.counted, each.bytes];
                let is_less = seen.into_iter().zip(most).all(|(seen, most)| seen <= most);
                let ids = each.transaction_ids.unwrap_or_default();
                let is_one_connection = each.connections < if most[0] > 8.0 { 4.0 } else { 2.0 };
                assert!(is_less && ids < 3.0 && is_one_connection, "{kind}, {role:?}: {each:?}");
            }
            io::Result::Ok(())
        });
        try_join_all(stores).await.expect("measured");
    }
}
