//! Which seeds run, and what they must show: no violation, the same again for the same seed,
//! enough of everything to mean something, and every mutant found.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::catalogue::{By, CATALOGUE};
use crate::mutant::Mutant;
use crate::run::{Shown, Wrong, run};
use crate::scene::Kind;
use crate::world::history::Tally;

/// Seeds per kind of store, unless `SIM_SEEDS` says otherwise: half of them always the same.
const SEEDS: u64 = 5_000;
/// So many seeds show each mutant: most are shown by the first hundred.
const MUTANT_WITHIN: u64 = 5_000;
/// Of the machine's own time, which may stand still for a while.
const LONGEST: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn seeds() -> Vec<u64> {
    if let Some(seed) = number("SIM_SEED") {
        return vec![seed];
    }
    let count = number("SIM_SEEDS").unwrap_or(SEEDS);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let random_base = now * 1_000_000;
    let fixed = count.div_ceil(2);
    (1..=fixed).chain((1..=count - fixed).map(|seed| random_base + seed)).collect()
}

fn repeat(kind: Kind, seed: u64, wrong: &Wrong) -> String {
    format!(
        "{kind} store, seed {seed}: {}\n{}\nrepeat exactly this run, with all its events, by\n  \
         SIM_SEED={seed} cargo test -p fencelock-conformance --test simulation -- --exact \
         scenes::seeds::{kind}_store_keeps_its_promises\n",
        wrong.what,
        wrong.events,
        kind = kind.as_str(),
    )
}

/// What a worker is at, and since when.
type At = Mutex<Option<(u64, Instant)>>;

/// Runs all of them, on every processor, each alone in its own simulated world.
fn run_all(kind: Kind, seeds: &[u64]) -> Tally {
    let (next, sum, wrong) = (AtomicUsize::new(0), Mutex::<Tally>::default(), Mutex::new(None));
    let work = |at: &At| {
        let mut own = Tally::default();
        while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            *at.lock().expect("no panic inside") = Some((seed, Instant::now()));
            match run(kind, seed, None) {
                Ok(Shown { tally, .. }) => own.add(&tally),
                Err(it) => {
                    next.store(seeds.len(), Ordering::Relaxed);
                    let text = repeat(kind, seed, &it);
                    wrong.lock().expect("no panic inside").get_or_insert(text);
                }
            }
        }
        *at.lock().expect("no panic inside") = None;
        sum.lock().expect("no panic inside").add(&own);
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(seeds.len());
    let ats: Vec<At> = (0..workers).map(|_| At::default()).collect();
    thread::scope(|scope| {
        let (working, at_work) = mpsc::channel::<()>();
        for at in &ats {
            let (work, working) = (&work, working.clone());
            scope.spawn(move || {
                work(at);
                drop(working);
            });
        }
        drop(working);
        end_what_never_ends(kind, &ats, &at_work);
    });
    if let Some(text) = wrong.into_inner().expect("no panic inside") {
        panic!("{text}");
    }
    sum.into_inner().expect("no panic inside")
}

/// Nothing can stop a run that spins without an await; so it ends all tests, and says which it was.
fn end_what_never_ends(kind: Kind, ats: &[At], at_work: &mpsc::Receiver<()>) {
    while at_work.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        for at in ats {
            let at = *at.lock().expect("no panic inside");
            let Some((seed, _)) = at.filter(|(_, since)| since.elapsed() > LONGEST) else {
                continue;
            };
            let what = format!("has not ended within {LONGEST:?}, where most take a few ms");
            let text = repeat(kind, seed, &Wrong { what, events: String::new() });
            // Not `eprintln!`, whose text the harness keeps until the test has ended.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(1);
        }
    }
}

fn keeps_its_promises(kind: Kind) {
    let (seeds, started) = (seeds(), Instant::now());
    let sum = run_all(kind, &seeds);
    let took = started.elapsed();
    println!("{}: {} seeds in {took:.1?}, {sum:?}", kind.as_str(), seeds.len());
    if seeds.len() >= 2_000 {
        assert!(sum.granted > 0 && sum.cancelled > 0 && sum.lost > 0, "proves nothing: {sum:?}");
        assert!(sum.outlived > 0 && sum.outlasted > 0, "no pause was felt: {sum:?}");
        let driven = sum.unreachable > 0 && sum.faults > 0;
        assert!(kind == Kind::Memory || driven, "no fault had an effect: {sum:?}");
        assert!(sum.handed_on > 0, "no turn was handed on: {sum:?}");
    }
}

#[test]
fn memory_store_keeps_its_promises() {
    keeps_its_promises(Kind::Memory);
}

#[test]
fn leases_store_keeps_its_promises() {
    keeps_its_promises(Kind::Leases);
}

#[test]
fn sessions_store_keeps_its_promises() {
    keeps_its_promises(Kind::Sessions);
}

#[test]
fn a_seed_repeats_exactly() {
    for kind in Kind::ALL {
        for seed in 1..=40 {
            let fingerprint = || match run(kind, seed, None) {
                Ok(shown) => shown.fingerprint,
                Err(wrong) => panic!("{}", repeat(kind, seed, &wrong)),
            };
            assert_eq!(fingerprint(), fingerprint(), "{} store, seed {seed}", kind.as_str());
        }
    }
}

/// Runs seeds until one shows `mutant`; which one, and how.
fn hunt(kind: Kind, mutant: Mutant, within: u64) -> Option<(u64, String)> {
    (1..=within).find_map(|seed| run(kind, seed, Some(mutant)).err().map(|it| (seed, it.what)))
}

fn finds_all(kind: Kind, by: By, within: u64) {
    let mut missed = Vec::new();
    for (mutant, _) in CATALOGUE.iter().filter(|(_, all)| all.contains(&by)) {
        let mutant = *mutant;
        match hunt(kind, mutant, within) {
            Some((seed, what)) => println!("{mutant:?}: seed {seed}: {what}"),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "{within} seeds do not show {missed:?}");
}

#[test]
fn every_broken_store_with_leases_is_found() {
    finds_all(Kind::Leases, By::SeedsOfLeases, MUTANT_WITHIN);
}

#[test]
fn every_broken_store_with_sessions_is_found() {
    finds_all(Kind::Sessions, By::SeedsOfSessions, MUTANT_WITHIN);
}
