//! The examples keep what they promise, on each store: they end with an error if not.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use fencelock_testkit::deployments::{Fault, Kind, Library, Wiring};
use fencelock_testkit::servers::{TestPostgres, TestRedis, TestZooKeeper};
use tokio::process::Command;
use tokio::task::JoinSet;

/// Cargo builds the examples in a directory next to that of this test.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a test knows its program");
    let target = this.parent().and_then(Path::parent).expect("it is in target/debug/deps");
    let program = target.join("examples").join(name);
    let path = program.display();
    assert!(
        program.exists(),
        "no {path}: before `cargo test --test` comes `cargo build --examples`"
    );
    program
}

/// How an example is told its store.
#[derive(Clone, Copy)]
enum Told {
    ByArgument,
    ByEnvironment,
}

/// How an example has ended, and what it has printed.
async fn output(name: &str, url: &str, told: Told, more: &[&str]) -> (ExitStatus, String) {
    let mut command = Command::new(program(name));
    match told {
        Told::ByArgument => command.arg(url).env("FENCELOCK_URL", "none://"),
        Told::ByEnvironment => command.env("FENCELOCK_URL", url),
    };
    let running = command.args(more).stdin(Stdio::null()).kill_on_drop(true).output();
    let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
    let Output { status, stdout, stderr } = ended.expect("it ends").expect("it starts");
    let printed = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    println!("== {name} {url} {more:?}\n{printed}");
    (status, printed.into_owned())
}

async fn run(name: String, url: String, told: Told) {
    let (status, _) = output(&name, &url, told, &[]).await;
    assert!(status.success(), "{name} {url}: {status}");
}

/// Has its data in PostgreSQL, and so tests of its own.
const GUARDED_STOCK: &str = "guarded_stock";

/// All at once: most of their time is sleep.
async fn all_run(url: &str, told: Told) {
    let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"));
    let mut examples = JoinSet::new();
    for source in sources.expect("the examples are there") {
        let file = source.expect("they can be listed").file_name();
        let name = file.to_string_lossy().trim_end_matches(".rs").to_owned();
        if name != GUARDED_STOCK {
            examples.spawn(run(name, url.to_owned(), told));
        }
    }
    assert_eq!(examples.len(), 10);
    examples.join_all().await;
}

#[tokio::test]
async fn the_examples_keep_their_promises_in_memory() {
    all_run("mem://", Told::ByArgument).await;
}

#[tokio::test]
async fn the_examples_keep_their_promises_on_files() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    all_run(&url, Told::ByEnvironment).await;
}

#[tokio::test]
async fn the_examples_keep_their_promises_on_postgres() {
    let server = TestPostgres::start().await.unwrap();
    all_run(&server.url(), Told::ByArgument).await;
}

#[tokio::test]
async fn the_examples_keep_their_promises_on_redis() {
    let server = TestRedis::start().await.unwrap();
    all_run(&server.url(), Told::ByArgument).await;
}

#[tokio::test]
async fn the_examples_keep_their_promises_on_zookeeper() {
    let server = TestZooKeeper::standalone().await.unwrap();
    // So that the node which is killed is followed soon.
    let url = format!("zk://{}?session=3s", server.connect_string());
    all_run(&url, Told::ByArgument).await;
}

/// Their checks can fail: without its latch, a batch is added up too early.
#[tokio::test]
async fn without_what_they_show_the_examples_fail() {
    for (name, told) in [
        ("batch", "the reducer has the results of all shards"),
        ("nightly_job", "two nodes were at work at a time"),
        ("order_numbers", "each number is drawn once"),
        ("phases", "each shop knows the sales of all"),
    ] {
        let (status, printed) = output(name, "mem://", Told::ByArgument, &["--without"]).await;
        assert!(!status.success() && printed.contains(told), "{name} --without: {status}");
    }
}

/// How the stock is sold with these arguments, and what is said about it.
async fn stock(url: &str, more: &[&str]) -> (bool, String) {
    let (status, printed) = output(GUARDED_STOCK, url, Told::ByArgument, more).await;
    (status.success(), printed)
}

const NONE_TWICE: &str = "20 lamps, 20 sales: none was sold twice";
const SOME_TWICE: &str = "paused buyers sold some again";

#[tokio::test]
async fn no_lamp_is_sold_twice_with_a_check_and_some_are_without() {
    let (postgres, redis) = tokio::join!(TestPostgres::start(), TestRedis::start());
    let (url, lock_url) = (postgres.as_ref().unwrap().url(), redis.as_ref().unwrap().url());
    let (sold_once, printed) = stock(&url, &[]).await;
    assert!(sold_once && printed.contains(NONE_TWICE), "{printed}");
    // Refused by the database before, ended by it in the middle, and not overtaken in the middle.
    for says in [
        "was paused before its sale: nothing sold: lock lost",
        "SQLSTATE 25P03",
        "had a slow sale: sold",
    ] {
        assert!(printed.contains(says), "{says} is missing: {printed}");
    }
    let (sold_once, printed) = stock(&url, &["--without"]).await;
    assert!(!sold_once && printed.contains(SOME_TWICE), "{printed}");

    let (sold_once, printed) = stock(&url, &[&lock_url]).await;
    assert!(sold_once && printed.contains(NONE_TWICE), "{printed}");
    assert!(printed.contains("SQLSTATE FL001"), "{printed}");
    let (sold_once, printed) = stock(&url, &[&lock_url, "--without"]).await;
    assert!(!sold_once && printed.contains(SOME_TWICE), "{printed}");
}

const LIBRARY: Library = Library {
    connect: |url| {
        let url = url.to_owned();
        Box::pin(async move { fencelock::connect(&url).await })
    },
    declare_new: |url| {
        let url = url.to_owned();
        Box::pin(async move { fencelock::redlock::init(&url).await })
    },
};

/// Grants are given again and again before their time, and held beyond it.
#[tokio::test]
async fn no_lamp_is_sold_twice_while_the_clock_of_the_server_jumps() {
    let store = Kind::Postgres.start(LIBRARY, Wiring::Proxied).await.unwrap();
    let [clock] = store.clocks() else {
        eprintln!("NOT TESTED: without a C compiler no clock can jump");
        return;
    };
    let url = store.url();
    let jumps = async {
        loop {
            for seconds in [5, 0] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                clock.is_ahead_by(seconds).unwrap();
            }
        }
    };
    let (sold_once, printed) = tokio::select! {
        ended = stock(&url, &[]) => ended,
        () = jumps => unreachable!("it has no end"),
    };
    assert!(clock.is_in_use().unwrap(), "the server has this clock");
    assert!(sold_once && printed.contains(NONE_TWICE), "{printed}");
}

/// The standby has not got the last half second: sales, and the grants of the lock. It has lost both.
#[tokio::test]
async fn no_lamp_is_sold_twice_while_the_primary_fails_over() {
    let store = Kind::PostgresFailover.start(LIBRARY, Wiring::Direct).await.unwrap();
    let url = store.url();
    let failover = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        store.inflict(Fault::MasterKilled, Duration::from_secs(1)).await.unwrap();
    };
    let ((sold_once, printed), ()) = tokio::join!(stock(&url, &[]), failover);
    assert!(sold_once && printed.contains(NONE_TWICE), "{printed}");
    assert!(printed.contains("was overtaken: nothing sold"), "it was sold out before: {printed}");
}
