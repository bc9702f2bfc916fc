//! The Lua scripts on a real server, without the rest of the crate.

#![allow(clippy::unwrap_used)]

mod batches;
mod bench;
mod claim;
mod client;
mod mutants;
mod random_runs;
mod repeats;
mod replies;
mod rules;
mod state;
mod traps;
mod trouble;

use std::time::Instant;

use fencelock_testkit::servers::TestRedis;

use self::bench::{Bench, real_texts};

/// Enough for each of the mutants that only random runs detect: at least two of five seeds do.
const RUNS: u64 = 25;

/// An error names the broken promise.
type Verdict = Result<(), String>;

fn server() -> TestRedis {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(TestRedis::start()).unwrap()
}

/// A server of its own with the scripts as they are.
fn bench() -> (TestRedis, Bench) {
    let server = server();
    let bench = Bench::new(server.port(), &real_texts()).unwrap();
    (server, bench)
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// `SCRIPT_SEED` repeats a run, `SCRIPT_RUNS` sets how many seeds are tried from there on.
#[test]
fn every_step_of_random_clients_keeps_the_rules() {
    let seed = from_env("SCRIPT_SEED");
    let runs = from_env("SCRIPT_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    let seed = seed.unwrap_or_else(rand::random);
    let (_server, mut bench) = bench();
    let start = Instant::now();
    for run in 0..runs {
        if let Err(why) = random_runs::run(&mut bench, seed.wrapping_add(run)) {
            panic!("{why}\nSCRIPT_SEED={} repeats it", seed.wrapping_add(run));
        }
    }
    let (calls, seconds) = (bench.calls, start.elapsed().as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = calls as f64 / seconds;
    println!("{runs} runs from seed {seed}, {calls} script calls, {rate:.0} a second");
}

#[test]
fn all_traps_are_avoided() {
    let (_server, mut bench) = bench();
    let failed: Vec<_> =
        traps::all().into_iter().filter_map(|trap| traps::spring(&mut bench, trap).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
