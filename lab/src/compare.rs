//! `fencelock compare`: what stores cost and what they really do when things break, in one report.
//!
//! First each store is measured alone, then several are broken at a time, since most of that is
//! waiting. When it is stopped, the report has all results so far.

mod board;
mod data;
mod machine;
mod measure;
mod plan;
mod progress;
mod report;
mod store;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencelock::{Error, ErrorKind, Result};
use fencelock_conformance::ScratchStore;
use fencelock_testkit::deployments::{Kind, Wiring};
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::interrupt::Interrupts;
use crate::leftovers;
use crate::store_spec::StoreSpec;
use board::Board;
use data::{Comparison, LeftOut, Machine, Store};
use measure::timeline::Failing;
use measure::{cost, network, sale, speed, timeline, under_faults, url_of};
use plan::Plan;
use progress::Progress;
use report::Requirements;

/// Compares stores by speed, by cost, and by what happens when servers and clients break, and writes
/// a report in HTML.
///
/// The servers are started here, on loopback, and end with the command. Ctrl-C ends it early, with a
/// report of what is done.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Stores to start here: memory, file, postgres, postgres-pgbouncer, postgres-failover,
    /// postgres-sync, redis, redis-aof, redis-failover, redis-sentinel, redis-cluster, redlock-3,
    /// redlock-5, zookeeper, zookeeper-3; or URLs, where only what the command made is touched, and
    /// removed at the end. All that can be started here but postgres-pgbouncer, postgres-sync and
    /// redis-cluster, if none is given
    stores: Vec<StoreSpec>,
    /// Within two minutes: fewer and shorter measurements, which prefer no store to another
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Put this round trip between clients and servers, for example 0.5ms
    #[arg(long, value_name = "TIME", value_parser = round_trip)]
    rtt: Option<Duration>,
    /// Exit with 1 unless a store meets all of these, for example
    /// "exclusion, return<3s, handover-p99<5ms"; the report shows which do
    #[arg(long, value_name = "LIST", long_help = require_help())]
    require: Option<Requirements>,
    /// Seconds per speed measurement (about 40 per store)
    #[arg(long, default_value = "0.25", value_parser = seconds)]
    seconds: Duration,
    /// The workload of the clients
    #[arg(long, value_enum, default_value = "locks")]
    workload: Workload,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "fencelock-compare.html")]
    out: PathBuf,
    /// Also write all figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of the order of the faults and of the clients' choices; any number
    #[arg(long)]
    seed: Option<u64>,
    /// Draw the report from figures that --json wrote, without measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stores", "quick", "seconds", "seed", "json", "rtt"])]
    from: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// Acquire and release, with one client and with many, with and without faults
    Locks,
    /// Buyers that compete for the last pieces of a stock, with a lock and without
    FlashSale,
}

/// The parts of users' stores that this run used; cleared when its clients have ended.
type Used = RefCell<Vec<Arc<ScratchStore>>>;

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds from 0.05 to 3600".to_owned()),
    }
}

/// In proxies, whose timers are exact to a tenth of a millisecond or so.
fn round_trip(text: &str) -> std::result::Result<Duration, String> {
    let expected = || "expected a time from 0.1ms to 1s, for example 0.5ms".to_owned();
    let number = |unit: &str| text.strip_suffix(unit)?.trim().parse::<f64>().ok();
    let ms = number("ms")
        .or_else(|| Some(number("us").or_else(|| number("µs"))? / 1e3))
        .or_else(|| Some(number("s")? * 1e3))
        .ok_or_else(expected)?;
    match (0.1..=1_000.0).contains(&ms) {
        true => Ok(Duration::from_secs_f64(ms / 1e3)),
        false => Err(expected()),
    }
}

fn require_help() -> String {
    let help = Requirements::help();
    format!(
        "Exit with 1 unless a store meets all of these, for example \"exclusion, return<3s, \
         handover-p99<5ms\"; the report shows which do. What was not measured is not met. What can be \
         required:\n\n{help}"
    )
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let comparison = match &self.from {
            Some(figures) => read(figures)?,
            None => {
                // Fail now rather than in five minutes.
                report::can_be_at(&self.out)?;
                self.json.as_deref().map_or(Ok(()), report::can_be_at)?;
                let runtime = fencelock_cli::runtime()?;
                let interrupts = Interrupts::catch(&runtime)?;
                runtime.block_on(self.compare(interrupts.stop()))?
            }
        };
        let required = self.require.as_ref();
        report::write(&comparison, required, &self.out, self.json.as_deref())?;
        println!("The report is in {}", self.out.display());
        if let Some(required) = required {
            println!("{}", required.table(&comparison));
        }
        let are_met = required.is_none_or(|required| required.are_met(&comparison));
        let broken = |store: &Store| {
            store.faults.as_ref().is_some_and(|faults| !faults.violations.is_empty())
        };
        Ok(match are_met && !comparison.stores.iter().any(broken) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    async fn compare(&self, stop: &CancellationToken) -> Result<Comparison> {
        let stores = if self.stores.is_empty() { usual() } else { self.stores.clone() };
        let plan = if self.quick { Plan::quick() } else { Plan::usual(self.seconds) };
        let plan = Plan { round_trip: self.rtt, ..plan };
        let seed = self.seed.unwrap_or_else(fencelock_conformance::fresh_seed);
        let began = Instant::now();
        let all = RefCell::new(Comparison::begun(&plan, seed));
        let progress = Progress::new(self.takes(&plan, stores.len()));
        if let Some(round_trip) = self.rtt {
            all.borrow_mut().network = Some(network::measure(round_trip).await?);
        }
        let used = Used::default();
        let measuring = Box::pin(self.measure(&stores, &plan, &all, &progress, &used));
        let measured = stop.run_until_cancelled(plan.in_time(began, measuring)).await;
        for scratch in used.into_inner() {
            leftovers::remove(&scratch).await;
        }
        // Interrupted, or out of time.
        let measured = measured.flatten();
        let was_stopped = measured.is_none();
        measured.unwrap_or(Ok(()))?;
        let mut comparison = all.into_inner();
        drop(progress);
        if was_stopped {
            eprintln!("stopped: the report covers what was measured until then");
        }
        comparison.was_stopped = was_stopped;
        comparison.took_s = began.elapsed().as_secs_f64();
        Ok(comparison)
    }

    fn takes(&self, plan: &Plan, stores: usize) -> Duration {
        let each = match self.workload {
            Workload::Locks => plan.speed_takes() + plan.faults_take(),
            Workload::FlashSale => sale::SALE_TAKES * 2,
        };
        each * u32::try_from(stores).unwrap_or(u32::MAX)
    }

    /// Fails with the last store's error if no store can be measured.
    async fn measure(
        &self,
        stores: &[StoreSpec],
        plan: &Plan,
        all: &RefCell<Comparison>,
        progress: &Progress,
        used: &Used,
    ) -> Result<()> {
        let began = Instant::now();
        let mut there = Vec::new();
        let mut left_out = Ok(());
        for spec in stores {
            progress.now(format!("{spec}: starting"));
            match self.alone(spec, (plan, began), all, progress, used).await {
                Ok(index) => there.push((spec, index)),
                Err(why) => {
                    progress.print(&format!("{spec} is left out: {why}"));
                    let skipped = LeftOut { store: spec.to_string(), why: why.to_string() };
                    all.borrow_mut().left_out.push(skipped);
                    left_out = Err(why);
                }
            }
        }
        if there.is_empty() {
            return left_out;
        }
        if self.workload == Workload::Locks {
            let seed = all.borrow().seed;
            stream::iter(there)
                .for_each_concurrent(plan.together, async |(spec, index)| {
                    let board = Board::of(all, progress, index);
                    broken_and_healed(spec, &board, plan, seed, used).await;
                })
                .await;
        }
        Ok(())
    }

    /// Measures one store with the machine to itself. Returns its index, or why it is left out.
    async fn alone(
        &self,
        spec: &StoreSpec,
        (plan, began): (&Plan, Instant),
        all: &RefCell<Comparison>,
        progress: &Progress,
        used: &Used,
    ) -> std::result::Result<usize, Error> {
        let failed = |cause| spec.failed("started", cause);
        let deployment = spec.start(plan.wiring(Wiring::Direct)).await.map_err(failed)?;
        used.borrow_mut().extend(deployment.scratch());
        let locks = fencelock::connect(&url_of(&*deployment)).await?;
        let servers = deployment.versions().await.map_err(failed)?;
        let store = Store::of(spec, &*deployment, servers, locks.profile());
        locks.close().await?;
        all.borrow_mut().stores.push(store);
        let index = all.borrow().stores.len() - 1;
        let board = Board::of(all, progress, index);
        match self.workload {
            Workload::Locks => {
                let speed = speed::measure(&*deployment, &board, plan);
                board.ended("speed", plan.in_half_the_time(began, speed).await);
                let memory = cost::of_memory(&*deployment, &board);
                board.ended("memory of a lock", plan.in_half_the_time(began, memory).await);
                let sum = all.borrow().stores[index].speed_summary();
                board.concluded(Duration::from_secs(3), &sum);
            }
            Workload::FlashSale => {
                board.ended("flash sale", Some(sale::hold(&*deployment, &board).await));
            }
        }
        Ok(index)
    }
}

/// The figures of an earlier comparison.
fn read(from: &Path) -> Result<Comparison> {
    let failed = |cause: std::io::Error| {
        let message = format!(
            "{} could not be read: expected what `fencelock compare --json` wrote",
            from.display()
        );
        Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
    };
    let text = std::fs::read(from).map_err(failed)?;
    let comparison: Comparison =
        serde_json::from_slice(&text).map_err(|cause| failed(cause.into()))?;
    match comparison.format {
        report::FORMAT => Ok(comparison),
        format => Err(failed(std::io::Error::other(format!(
            "its format is {format}, and this fencelock reads {}",
            report::FORMAT
        )))),
    }
}

/// All that can be started here but those that are several of the same servers, or have more around them.
fn usual() -> Vec<StoreSpec> {
    let others = [Kind::PostgresPgbouncer, Kind::PostgresSync, Kind::RedisCluster];
    let usual = Kind::ALL.into_iter().filter(|kind| !others.contains(kind));
    usual.map(StoreSpec::Started).collect()
}

/// Measures one store while it and its clients break, with new servers behind proxies.
async fn broken_and_healed(
    spec: &StoreSpec,
    board: &Board<'_>,
    plan: &Plan,
    seed: u64,
    used: &Used,
) {
    board.now("starting servers for fault injection");
    let deployment = match spec.start(plan.wiring(Wiring::Proxied)).await {
        Ok(deployment) => deployment,
        Err(cause) => return board.failed("faults", spec.failed("started", cause)),
    };
    used.borrow_mut().extend(deployment.scratch());
    if matches!(spec, StoreSpec::Started(_)) {
        let overlaps_after =
            plan::telling(&*deployment).filter(|fault| deployment.may_overlap(*fault));
        let overlaps_after = overlaps_after.map(|fault| fault.to_string()).collect();
        board.store(|store| store.promises.overlaps_after = Some(overlaps_after));
    }
    let part = plan.faults_take() / 6;
    board.ended("cost of a lock", Some(cost::on_the_lines(&*deployment, board).await));
    board.ended("cost of a held lock", Some(cost::of_holding(&*deployment, board, plan).await));
    let holder = deployment.shares_between_processes().then_some(Failing::Holder);
    let servers = plan.failures(&*deployment).into_iter().map(Failing::Servers);
    for failing in holder.into_iter().chain(servers) {
        board.now(&format!("{failing}"));
        match timeline::draw(&*deployment, failing, plan.runs).await {
            Ok(timeline) => {
                let gap = timeline.without_progress_s;
                board.saw(part, &format!("{failing}: {gap:.1} s without a grant"));
                board.store(|store| store.timelines.push(timeline));
            }
            Err(error) => board.failed(&failing.to_string(), error),
        }
    }
    board.now("injecting faults, with independent registers");
    match under_faults::run(&*deployment, spec, board, plan, seed).await {
        Ok(faults) => {
            board.concluded(
                Duration::ZERO,
                &format!(
                    "{} overlaps in {} acquisitions under faults; updates lost without fencing: {}, \
                     with: {}",
                    faults.overlaps,
                    faults.acquisitions,
                    faults.lost_without_fencing,
                    faults.lost_with_fencing
                ),
            );
            board.store(|store| store.faults = Some(faults));
        }
        Err(error) => board.failed("violations under faults", error),
    }
}

impl Comparison {
    fn begun(plan: &Plan, seed: u64) -> Comparison {
        Comparison {
            format: report::FORMAT,
            fencelock: env!("CARGO_PKG_VERSION").to_owned(),
            command: command(std::env::args()),
            began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            took_s: 0.0,
            seed,
            seconds: plan.point.as_secs_f64(),
            repeats: plan.repeats,
            broken_together: plan.together,
            network: None,
            was_stopped: false,
            machine: Machine::this(),
            stores: Vec::new(),
            left_out: Vec::new(),
        }
    }
}

/// The command line without the program's path and passwords.
fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let shown = arguments.into_iter().skip(1).map(|argument| match argument.contains("://") {
        true => argument.parse::<StoreSpec>().map_or(argument, |spec| spec.to_string()),
        false => argument,
    });
    std::iter::once("fencelock".to_owned()).chain(shown).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_a_time_with_a_unit() {
        for (text, micros) in [("0.5ms", 500), ("250us", 250), ("250 µs", 250), ("0.1s", 100_000)]
        {
            assert_eq!(round_trip(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in ["", "1", "ms", "-1ms", "2s", "0ms", "NaNms", "1m"] {
            assert!(round_trip(text).is_err_and(|why| why.contains("0.5ms")), "{text}");
        }
    }

    #[test]
    fn the_command_is_shown_without_passwords() {
        let typed = ["/bin/fencelock", "compare", "redis", "redis://:hunter2@h/0", "--quick"];
        let shown = command(typed.map(str::to_owned));
        assert_eq!(shown, "fencelock compare redis redis://:***@h/0 --quick");
    }
}
