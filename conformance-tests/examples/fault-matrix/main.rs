//! The fault matrix: what every store does about every fault, as the tests of this run have shown.
//!
//! `faults.txt` lists the faults, and marks in the tests' sources say which test shows which cell
//! ([`marks`]). This joins the two with the output of `cargo test` and writes docs/faults.md, or
//! checks that the page is what this run has shown. Each cell needs a test or a reason, and a marked
//! test must have run and passed: so the page claims nothing that tests have ceased to show.
//! `./test` runs it at its end.

mod faults;
mod log;
mod marks;
mod page;
mod store;
mod verdict;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use log::Log;
use verdict::Judgement;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/faults.md");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["--check", log] => run(Path::new(log)).and_then(|page| compare(&page)),
        ["--write", log] => run(Path::new(log)).and_then(|page| Ok(std::fs::write(PAGE, page)?)),
        _ => Err("usage: fault-matrix --check|--write OUTPUT_OF_CARGO_TEST".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fault-matrix: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The page that a run has shown.
fn run(log: &Path) -> Result<String, Box<dyn Error>> {
    let (groups, marks) = (faults::listed()?, marks::read(Path::new(ROOT))?);
    let log = Log::read(log)?;
    let Judgement { rows, errors, not_shown } = verdict::verdict(&groups, &marks, &log);
    for what in not_shown {
        println!("fault-matrix: not shown by this run: {what}");
    }
    if !errors.is_empty() {
        return Err(errors.join("\nfault-matrix: ").into());
    }
    Ok(page::page(&rows))
}

fn compare(page: &str) -> Result<(), Box<dyn Error>> {
    let written = std::fs::read_to_string(PAGE)?;
    let differs = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    match differs {
        _ if written == page => Ok(()),
        Some((new, old)) => Err(format!(
            "docs/faults.md is not what the tests show.\n  it says {old}\n  shown   {new}\n{AGAIN}"
        )
        .into()),
        None => {
            Err(format!("docs/faults.md is longer or shorter than what the tests show.\n{AGAIN}")
                .into())
        }
    }
}

const AGAIN: &str =
    "If that is right: cargo run --all-features --example fault-matrix -- --write target/test.log";
