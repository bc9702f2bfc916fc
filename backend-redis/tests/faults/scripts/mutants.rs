//! Wrong scripts, each by one small change: the traps or the random runs must detect each. Changes that one
//! random run in four detects are not listed, and a trap is kept only for a change that many of them miss.

use super::bench::{Bench, Texts, real_texts};
use super::{random_runs, server, traps};

/// A name, a text in the scripts, and its replacement.
type Mutant = (&'static str, &'static str, &'static str);

mod cells;
mod list;

/// A script that is wrong is wrong at each seed, so that these need not be random.
mod long {
    #[test]
    #[ignore = "in ./test --long: the scripts are replaced by wrong ones, dozens of times"]
    fn wrong_scripts_are_noticed() {
        super::wrong_scripts_are_noticed();
    }
}

fn wrong_scripts_are_noticed() {
    let server = server();
    let mut survivors = Vec::new();
    for mutant in list::MUTANTS.iter().chain(cells::MUTANTS) {
        let texts = mutate(mutant);
        let caught = catch(server.port(), &texts);
        println!("{}: {}", mutant.0, caught.join("; "));
        if caught.is_empty() {
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

/// The traps and runs that detect it: the first one, or, with `SCRIPT_ALL`, all of them.
fn catch(port: u16, texts: &Texts) -> Vec<String> {
    let mut bench = match Bench::new(port, texts) {
        Ok(bench) => bench,
        Err(why) => panic!("{why}"),
    };
    let wanted = if std::env::var_os("SCRIPT_ALL").is_some() { usize::MAX } else { 1 };
    let runs = super::from_env("SCRIPT_RUNS").unwrap_or(super::RUNS);
    let mut caught = Vec::new();
    for trap in traps::all() {
        if caught.len() < wanted && traps::spring(&mut bench, trap).is_err() {
            caught.push(trap.0.to_owned());
        }
    }
    for seed in 0..runs {
        if caught.len() < wanted && random_runs::run(&mut bench, seed).is_err() {
            caught.push(format!("run {seed}"));
        }
    }
    caught
}
