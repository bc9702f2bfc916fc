//! Wrong functions, each by one small change: the traps or the random runs must detect each. Changes that every
//! other random run detects are not listed.

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

mod long {
    use super::*;

    /// Random runs before the traps: a few mutants are caught by them alone.
    const FIRST_RUNS: u64 = 3;
    /// And after them.
    const RUNS: u64 = 30;

    /// Prints by what each is caught. Each is caught in the everyday run, too, which has all traps and more runs.
    #[test]
    #[ignore = "in ./test --long: tests the traps and the random runs, which change with the functions only"]
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
        let work = || {
            let config = server::config(&runtime.block_on(server.database("")).unwrap());
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
        std::thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
        let survivors = survivors.into_inner().unwrap();
        assert!(survivors.is_empty(), "not noticed: {survivors:#?}");
    }

    /// The error of the run or trap that detects it.
    fn catch(bench: &mut Bench) -> Option<String> {
        let first = (0..FIRST_RUNS).find_map(|seed| random_runs::run(bench, seed).err());
        let trap = || traps::all().into_iter().find_map(|trap| traps::spring(bench, trap).err());
        let trap = first.or_else(trap);
        trap.or_else(|| (FIRST_RUNS..RUNS).find_map(|seed| random_runs::run(bench, seed).err()))
    }
}
