//! `fencelock-lab torture`: stress-tests a store, for as long as the user likes, while faults are injected
//! into it and its clients.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fencelock::{Error, ErrorKind, Result};
use fencelock_testkit::deployments::{Fault, Kind, Wiring};
use fencelock_testkit::torture::{
    self, CellFigures, Only, StoreReport, TransactionFigures, Until, Workload, counted, torture,
};
use serde::Serialize;

use crate::interrupt::Interrupts;
use crate::leftovers;
use crate::store_spec::{LIBRARY, StoreSpec};

/// Stress-tests stores: injects faults into servers and clients, and checks exclusion, fencing tokens,
/// order, liveness and leftovers, counters, jobs that run once for each tick, and elections, and what is
/// written in transactions that check their lock in its own database.
///
/// The servers are started here, on loopback, and end with the command. Overlaps that a store's
/// profile admits under a fault are counted and shown; any other violation makes the exit code 1.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Stores to start here: memory, file, postgres, postgres-pgbouncer, postgres-failover,
    /// postgres-sync, redis, redis-aof, redis-failover, redis-sentinel, redis-cluster, redlock-3,
    /// redlock-5, zookeeper, zookeeper-3; or URLs, where only what the command made is touched, and
    /// removed at the end. All that can be started here, if none is
    /// given
    stores: Vec<StoreSpec>,
    /// Minutes per store
    #[arg(long, default_value = "5", value_parser = minutes, conflicts_with_all = ["acquisitions", "rounds"])]
    minutes: Duration,
    /// Stop each store after this many grants
    #[arg(long, conflicts_with = "rounds")]
    acquisitions: Option<u64>,
    /// Stop each store after this many rounds; a round is one fault and the pause after it
    #[arg(long)]
    rounds: Option<u32>,
    /// Seed of the order of the faults and of the clients' choices; any number
    #[arg(long)]
    seed: Option<u64>,
    /// How long each fault lasts
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    faults_for: Duration,
    /// Pause after each fault
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    quiet_for: Duration,
    /// Only this fault, such as clients-frozen; can be repeated
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<Fault>,
    /// Number of processes that use the store
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// Number of tasks in each process that use locks, or add to counters with `--only cells`
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    workers: u32,
    /// Only `locks`, or only `cells`: counters, to which the tasks then add as fast as they can, jobs that
    /// run once for each tick, and elections. Both by default, mostly locks
    #[arg(long)]
    only: Option<Only>,
    /// Number of locks that they share
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    locks: u32,
    /// The longest usual hold; a few last longer than the TTL, which is 2 s
    #[arg(long, default_value = "2ms", value_parser = humantime::parse_duration)]
    hold_at_most: Duration,
    /// Of 100 exclusive holds, so many also add to a register in the lock's own database, in a transaction
    /// that checks the lock and in one that does not; only in servers that are started here
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=100))]
    transactions: u32,
    /// Also write all results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn minutes(text: &str) -> std::result::Result<Duration, String> {
    match text.parse() {
        Ok(minutes) if (0.01..=100_000.0).contains(&minutes) => {
            Ok(Duration::from_secs_f64(60.0 * minutes))
        }
        _ => Err("expected minutes from 0.01 to 100000".to_owned()),
    }
}

/// One store in the file of `--json`.
#[derive(Serialize)]
struct Line {
    store: String,
    acquisitions: u64,
    violations: usize,
    #[serde(flatten)]
    report: StoreReport,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let stores = match self.stores.is_empty() {
            true => Kind::ALL.map(StoreSpec::Started).to_vec(),
            false => self.stores.clone(),
        };
        let seed = self.seed.unwrap_or_else(fencelock_conformance::fresh_seed);
        let mut lines = Vec::new();
        let mut broken = false;
        let runtime = fencelock_cli::runtime()?;
        // From here on, also while servers start, an interrupt ends the run with the results so far.
        let interrupts = Interrupts::catch(&runtime)?;
        for store in &stores {
            let report = runtime.block_on(self.torture(store, seed, &interrupts));
            let report = report.map_err(|cause| store.failed("tortured", cause))?;
            broken |= report.violations() > 0;
            let stopped = report.was_stopped;
            println!("{}", self.summary(store, seed, &report));
            let (acquisitions, violations) = (report.acquisitions(), report.violations());
            let store = store.to_string();
            lines.push(Line { store, acquisitions, violations, report });
            if stopped {
                break;
            }
        }
        if let Some(file) = &self.json {
            let written = std::fs::File::create(file)
                .and_then(|file| Ok(serde_json::to_writer_pretty(file, &lines)?));
            written.map_err(|cause| {
                let message = format!("cannot write the report to {}", file.display());
                Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
            })?;
        }
        Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn torture(
        &self,
        store: &StoreSpec,
        seed: u64,
        interrupts: &Interrupts,
    ) -> io::Result<StoreReport> {
        let deployment = store.start(Wiring::Proxied).await?;
        let settings = deployment.settings();
        eprintln!("{store} ({settings}), seed {seed}");
        let options = self.options(seed);
        let stop = interrupts.stop().cancelled();
        let report_round = |round: &torture::Round| eprintln!("{store}: {round}");
        let report = torture(&*deployment, LIBRARY, &options, stop, report_round).await;
        if let Some(scratch) = deployment.scratch() {
            leftovers::remove(&scratch).await;
        }
        report
    }

    fn options(&self, seed: u64) -> torture::Options {
        torture::Options {
            seed,
            until: match (self.acquisitions, self.rounds) {
                (Some(wanted), _) => Until::Acquisitions(wanted),
                (_, Some(rounds)) => Until::Rounds(rounds),
                _ => Until::Time(self.minutes),
            },
            only: self.faults.clone(),
            faults_for: self.faults_for,
            quiet_for: self.quiet_for,
            processes: self.processes,
            workload: Workload {
                workers: self.workers,
                only: self.only,
                locks: self.locks,
                hold_at_most: self.hold_at_most,
                ttl: Duration::from_secs(2),
                transactions_percent: self.transactions,
            },
        }
    }

    fn summary(&self, store: &StoreSpec, seed: u64, report: &StoreReport) -> String {
        let (checked, unchecked) = (report.writes().checked, report.writes().unchecked);
        let mut text = format!(
            "{store}: {} in {}, {}",
            counted(report.acquisitions(), "acquisition", "acquisitions"),
            counted(report.rounds.len(), "round", "rounds"),
            counted(report.violations(), "violation", "violations")
        );
        if let Some(bound) = report.upper_bound() {
            text += &format!(" (at most one in {:.0} acquisitions, at 95 %)", 1.0 / bound);
        }
        text += &format!(
            "; {} that its profile admits; of {} under a lock {} refused as stale, {} lost where tokens \
             are not checked",
            counted(report.admitted_overlaps(), "overlap", "overlaps"),
            counted(checked.accepted + checked.rejected, "write", "writes"),
            checked.rejected,
            counted(unchecked.lost_updates, "update", "updates")
        );
        if report.cells() != CellFigures::default() {
            text += &format!("; {}", report.cells());
        }
        if report.transactions() != TransactionFigures::default() {
            text += &format!("; {}", report.transactions());
        }
        for left in &report.leftovers {
            text += &format!("\n  VIOLATION: left behind: {left}");
        }
        if report.was_stopped {
            text += "\n  stopped early: leftovers were not searched for";
        }
        text + &format!("\n  again: {}", self.again(store, seed))
    }

    /// The command for the same run.
    fn again(&self, store: &StoreSpec, seed: u64) -> String {
        let length = match (self.acquisitions, self.rounds) {
            (Some(wanted), _) => format!("--acquisitions {wanted}"),
            (_, Some(rounds)) => format!("--rounds {rounds}"),
            _ => format!("--minutes {}", self.minutes.as_secs_f64() / 60.0),
        };
        let faults: String =
            self.faults.iter().map(|it| format!(" --fault {}", it.word())).collect();
        let only = self.only.map_or_else(String::new, |only| format!(" --only {only}"));
        format!(
            "fencelock-lab torture {store} {length}{only}{faults} --seed {seed} --faults-for {} --quiet-for {} \
             --hold-at-most {} --processes {} --workers {} --locks {} --transactions {}",
            in_one_word(self.faults_for),
            in_one_word(self.quiet_for),
            in_one_word(self.hold_at_most),
            self.processes,
            self.workers,
            self.locks,
            self.transactions
        )
    }
}

pub(crate) fn in_one_word(time: Duration) -> String {
    humantime::format_duration(time).to_string().replace(' ', "")
}
