//! Wrong functions, each by one small change: the traps or the random runs must detect each.

use std::sync::Mutex;

use fencelock_postgres::schema;

use super::bench::Bench;
use super::{random_runs, runtime, server, traps};

/// A name, a text in the script, and its replacement.
type Mutant = (&'static str, &'static str, &'static str);

mod attempts;
mod batches;
mod hand_offs;
mod others;
mod releases;

/// Random runs against a mutant that no trap has caught.
const RUNS: u64 = 15;

#[test]
fn wrong_functions_are_noticed() {
    const WORKERS: usize = 4;
    let runtime = runtime();
    let server = runtime.block_on(server::fast().start()).unwrap();
    let all = [
        attempts::MUTANTS,
        batches::MUTANTS,
        hand_offs::MUTANTS,
        releases::MUTANTS,
        others::MUTANTS,
    ]
    .concat();
    let (left, survivors) = (Mutex::new(all.into_iter()), Mutex::new(Vec::new()));
    let work = &|worker| {
        let config = server::new_database(&runtime, &server, &format!("worker{worker}"), "", "");
        loop {
            let Some((name, from, to)) = left.lock().unwrap().next() else { break };
            let script = schema::script("fencelock");
            assert!(script.contains(from), "{name}: no such text");
            let mut bench = Bench::new(&runtime, &config, &script.replace(from, to));
            let by = catch(&mut bench);
            let first = by.as_deref().unwrap_or("SURVIVES").lines().next().unwrap_or_default();
            println!("{name}: {first}");
            if by.is_none() {
                survivors.lock().unwrap().push(name);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "not noticed: {survivors:#?}");
}

/// The error of the trap or run that detects it.
fn catch(bench: &mut Bench) -> Option<String> {
    let trap = traps::all().into_iter().find_map(|trap| traps::spring(bench, trap).err());
    trap.or_else(|| (0..RUNS).find_map(|seed| random_runs::run(bench, seed).err()))
}
