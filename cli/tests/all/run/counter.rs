//! Many processes count in one unprotected file, and lose no update, also when they are killed.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use crate::support::{Scratch, pid};

#[test]
fn kills_lose_no_increment() {
    count_under_fire(12, 10, Duration::from_millis(150));
}

mod long {
    #[test]
    #[ignore = "in ./test --long: takes minutes"]
    fn two_hundred_processes_under_fire() {
        super::count_under_fire(200, 50, super::Duration::from_millis(100));
    }
}

/// The counter is the last line of a log, and adding is appending, which a kill cannot halve. Two
/// that count at the same time append the same number. Most kills from outside meet waiters, so
/// some holders kill their own wrapper, the watchdog's parent, and continue for as long as they can.
const APPEND: &str = r#"
doom() { read -r _ _ _ wrapper _ < /proc/$PPID/stat; kill -KILL $wrapper; }
[ "$DOOM" = before ] && doom
n=$(tail -n 1 log)
[ "$DOOM" = between ] && doom
echo $((${n%% *} + 1)) $FENCELOCK_TOKEN >> log
[ "$DOOM" = after ] && doom
exit 0
"#;

fn count_under_fire(processes: u64, times: u64, pause: Duration) {
    let here = Scratch::new();
    std::fs::write(here.path("log"), "0 0\n").expect("it works");
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (done, killed) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..processes {
            let (here, done, killed) = (&here, &done, &killed);
            scope.spawn(move || {
                let random = rand::rngs::StdRng::seed_from_u64(seed ^ number);
                client(here, times, random, pause, done, killed);
            });
        }
    });
    let log = std::fs::read_to_string(here.path("log")).expect("it works");
    let mut last = (0, 0);
    for line in log.lines().skip(1) {
        let (count, token) = line.split_once(' ').expect("it works");
        let now: (u64, u64) = (count.parse().expect("it works"), token.parse().expect("it works"));
        assert_eq!(now.0, last.0 + 1, "an increment was lost");
        assert!(now.1 > last.1, "a token fell");
        last = now;
    }
    let (done, killed) = (done.into_inner(), killed.into_inner());
    assert_eq!(done, processes * times);
    assert!((done..=done + killed).contains(&last.0), "{} of {done} and {killed} killed", last.0);
    println!(
        "{processes} processes x {times}, {killed} killed: {} in {:.1?}",
        last.0,
        start.elapsed()
    );
}

/// Repeats until enough runs have completed; some are killed at a random moment.
fn client(
    here: &Scratch,
    times: u64,
    mut random: rand::rngs::StdRng,
    pause: Duration,
    done: &AtomicU64,
    killed: &AtomicU64,
) {
    let mut left = times;
    while left > 0 {
        let doom = ["before", "between", "after"].get(random.random_range(0..30)).unwrap_or(&"");
        let mut run = here.run(&["counter", "--", "sh", "-c", APPEND]);
        let mut run = run.env("DOOM", doom).stdin(Stdio::null()).spawn().expect("it works");
        if random.random_bool(0.2) {
            std::thread::sleep(pause.mul_f64(random.random()));
            let _ = rustix::process::kill_process(pid(&run.id().to_string()), Signal::KILL);
        }
        match run.wait().expect("it works").code() {
            Some(0) => {
                left -= 1;
                done.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                killed.fetch_add(1, Ordering::Relaxed);
            }
            Some(code) => panic!("exit code {code}"),
        }
    }
}
