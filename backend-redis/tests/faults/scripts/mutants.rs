//! Wrong scripts, each by one small change: the traps or the random runs must detect each.

use super::bench::{Bench, Texts, real_texts};
use super::{random_runs, server, traps};

/// A name, a text in the scripts, and its replacement.
type Mutant = (&'static str, &'static str, &'static str);

mod cells;
mod list;

/// Runs of the random runs against a mutant that no trap has caught.
const RUNS: u64 = 15;

#[test]
fn wrong_scripts_are_noticed() {
    let server = server();
    let mut survivors = Vec::new();
    for mutant in list::MUTANTS.iter().chain(cells::MUTANTS) {
        let texts = mutate(mutant);
        let caught = catch(server.port(), &texts);
        let by = caught.as_deref().unwrap_or("SURVIVES").lines().next().unwrap_or_default();
        println!("{}: {by}", mutant.0);
        if caught.is_none() {
            survivors.push(mutant.0);
        }
    }
    assert!(survivors.is_empty(), "not noticed: {survivors:#?}");
}

fn mutate((name, from, to): &Mutant) -> Texts {
    let mut texts = real_texts();
    assert!(texts.iter().any(|(_, text)| text.contains(from)), "{name}: no such text");
    for (_, text) in &mut texts {
        *text = text.replace(from, to);
    }
    texts
}

/// The error of the trap or run that detects it.
fn catch(port: u16, texts: &Texts) -> Option<String> {
    let mut bench = match Bench::new(port, texts) {
        Ok(bench) => bench,
        Err(why) => panic!("{why}"),
    };
    bench.client.subscribe(&random_runs::PROCESSES);
    let trap = traps::all().into_iter().find_map(|trap| traps::spring(&mut bench, trap).err());
    trap.or_else(|| (0..RUNS).find_map(|seed| random_runs::run(&mut bench, seed).err()))
}
