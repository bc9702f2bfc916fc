//! The functions in a real server, without the rest of the crate.

#![allow(clippy::unwrap_used)]

mod bench;
mod claim;
mod connections;
mod mutants;
mod random_runs;
mod replies;
mod rights;
mod rules;
mod script;
mod server;
mod session;
mod state;
mod storage;
mod traps;

use std::sync::Arc;
use std::time::Instant;

use fencelock_postgres::schema;
use fencelock_testkit::servers::TestPostgres;
use tokio::runtime::Runtime;

use self::bench::Bench;

/// An error names the broken promise.
type Verdict = Result<(), String>;

fn runtime() -> Arc<Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Arc::new(runtime.unwrap())
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// `SQL_SEED` repeats a run, `SQL_RUNS` sets how many seeds are tried from there on. Each mutant that no trap
/// catches is caught by one seed in four, or more.
#[test]
fn every_call_of_random_clients_keeps_the_rules() {
    const RUNS: u64 = 30;
    let seed = from_env("SQL_SEED");
    let runs = from_env("SQL_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    let seed = seed.unwrap_or_else(rand::random);
    let runtime = runtime();
    let server = runtime.block_on(server::fast().shared()).unwrap();
    let mut bench = Bench::new(&runtime, &server::config(&server), &schema::script("fencelock"));
    let start = Instant::now();
    for run in 0..runs {
        if let Err(why) = random_runs::run(&mut bench, seed.wrapping_add(run)) {
            panic!("{why}\nSQL_SEED={} repeats it", seed.wrapping_add(run));
        }
    }
    println!("{runs} runs from seed {seed}, {} calls, {:.1?}", bench.calls, start.elapsed());
}

fn avoids_all_traps(runtime: &Arc<Runtime>, server: &TestPostgres) {
    let mut bench = Bench::new(runtime, &server::config(server), &schema::script("fencelock"));
    let traps = traps::all().into_iter();
    let failed: Vec<_> = traps.filter_map(|trap| traps::spring(&mut bench, trap).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn all_traps_are_avoided() {
    let runtime = runtime();
    let server = runtime.block_on(server::fast().shared()).unwrap();
    avoids_all_traps(&runtime, &server);
}

mod long {
    use super::*;

    /// Settings that a database may have, and that change what plain SQL means.
    const ODD: &str = "
ALTER DATABASE odd SET plpgsql.variable_conflict = 'use_variable';
ALTER DATABASE odd SET plpgsql.extra_errors = 'all';
ALTER DATABASE odd SET plan_cache_mode = 'force_generic_plan';
ALTER DATABASE odd SET enable_indexscan = off;
ALTER DATABASE odd SET bytea_output = 'escape';
ALTER DATABASE odd SET transform_null_equals = on;
ALTER DATABASE odd SET intervalstyle = 'sql_standard';
ALTER DATABASE odd SET array_nulls = off;
ALTER DATABASE odd SET lc_messages = 'C';
ALTER DATABASE odd SET jit_above_cost = 0;
ALTER DATABASE odd SET datestyle = 'German, DMY';
ALTER DATABASE odd SET quote_all_identifiers = on;
ALTER DATABASE odd SET row_security = off;
ALTER DATABASE odd SET timezone = 'Asia/Kathmandu'";

    #[test]
    #[ignore = "in ./test --long: what plain SQL means differs little, and every function is called with each setting"]
    fn all_traps_are_avoided_in_any_database() {
        let runtime = runtime();
        let server = runtime.block_on(server::fast().start()).unwrap();
        for (options, settings) in [
            ("", ODD),
            ("ENCODING 'LATIN1' TEMPLATE template0", ""),
            ("ENCODING 'SQL_ASCII' TEMPLATE template0", ""),
        ] {
            println!("{options}{settings}");
            let other = runtime.block_on(server.database(options)).unwrap();
            runtime.block_on(other.sql(&settings.replace("odd", other.database_name()))).unwrap();
            avoids_all_traps(&runtime, &other);
        }
    }
}
