//! `fencelock redlock` as an operator sees it, on real servers: what it prints, and its exit codes.

use std::time::{Duration, Instant};

use fencelock_testkit::servers::{RedisOptions, TestRedis};
use serde_json::Value;
use tokio::process::Command;

use crate::support::said;

/// A short delay, and a TTL that it covers.
const SHORT: &str = "restart_delay=3s&clock_tolerance=1s&ttl=500ms";
const PASSWORD: &str = "correct-horse";

async fn servers(options: &RedisOptions, count: usize) -> Vec<TestRedis> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(options.clone().start().await.expect("a redis-server starts"));
    }
    servers
}

fn url<'a>(login: &str, nodes: impl IntoIterator<Item = &'a TestRedis>, params: &str) -> String {
    let hosts: Vec<String> = nodes.into_iter().map(|node| node.addr().to_string()).collect();
    format!("redlock://{login}{}?{params}", hosts.join(","))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock"));
    command.arg("redlock").args(arguments).env_remove("FENCELOCK_URL").env_remove("RUST_LOG");
    command
}

/// Its exit code, output and complaints.
async fn run(arguments: &[&str]) -> (i32, String, String) {
    said(&command(arguments).output().await.expect("it runs"))
}

#[tokio::test]
async fn a_set_is_declared_new_shown_and_replaced() {
    let nodes = servers(&RedisOptions::new(), 4).await;
    let old = url("", &nodes[..3], SHORT);
    let new = url("", [&nodes[0], &nodes[1], &nodes[3]], &format!("{SHORT}&set_epoch=2"));
    let (code, printed, _) = run(&["status", &old]).await;
    assert_eq!(code, 69, "{printed}");
    assert_eq!(printed.matches("has no incarnation record").count(), 3, "{printed}");

    let from_environment = command(&["init"]).env("FENCELOCK_URL", &old).output().await;
    let (code, printed, error) = said(&from_environment.expect("it runs"));
    assert_eq!((code, &*printed, &*error), (0, "all nodes take part\n", ""));
    assert_eq!(run(&["init", &old]).await.0, 0, "again");

    let locks = fencelock::connect(&old).await.expect("connected");
    let guard = locks.lock("a").acquire().await.expect("granted");
    let from_environment =
        command(&["status", "--lock", "a"]).env("FENCELOCK_URL", &old).output().await;
    let (code, printed, error) = said(&from_environment.expect("it runs"));
    assert_eq!((code, &*error), (0, ""), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    let column = lines[0].find("STATE").expect("a column");
    for (line, node) in lines[1..].iter().zip(&nodes) {
        assert!(line.starts_with(&node.addr().to_string()), "{printed}");
        assert_eq!(&line[column..], "takes part", "{printed}");
    }
    assert!(printed.contains(&guard.fencing_token().to_string()), "{printed}");

    let (code, printed, error) = run(&["status", &old, "--lock", "a", "--json"]).await;
    assert_eq!((code, printed.lines().count()), (0, 1), "{error}");
    let line: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!((&line["taking_part"], &line["majority"]), (&3.into(), &2.into()), "{line}");
    let rows = line["nodes"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["state"] == "open" && row["clock_agrees"] == true));
    let held = |row: &&Value| row["lock"]["fence"] == guard.fencing_token().to_string();
    assert!(rows.iter().filter(held).count() >= 2, "{line}");
    let holder = &rows.iter().find(held).expect("a majority")["lock"]["holders"][0];
    assert_eq!(holder["token"], guard.fencing_token().to_string(), "{line}");
    locks.close().await.expect("closed");

    let start = Instant::now();
    let (code, printed, error) = run(&["replace", &old, &new, "--wait"]).await;
    assert_eq!((code, &*error), (0, ""));
    assert_eq!(printed, "the new set takes part in 3 s; waiting\nthe new set takes part\n");
    assert!(start.elapsed() >= Duration::from_secs(2));
    let (code, printed, _) = run(&["replace", &old, &new]).await;
    assert_eq!((code, &*printed), (0, "the new set takes part\n"), "again");
    assert_eq!(run(&["status", &new]).await.0, 0);
    let (code, printed, error) = run(&["status", &old, "--json"]).await;
    assert_eq!(code, 78, "{error}");
    let line: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(line["nodes"][0]["state"], "other_set", "{line}");
    assert_eq!(line["nodes"][0]["set"]["set_epoch"], 2, "{line}");
    assert_eq!(line["nodes"][2]["state"], "closed", "{line}");
}

#[tokio::test]
async fn exit_codes_distinguish_the_failures() {
    let nodes = servers(&RedisOptions::new(), 4).await;
    let old = url("", &nodes[..3], SHORT);
    for usage in
        [&[][..], &["int"], &["init"], &["status"], &["replace", &old], &["init", &old, "x"]]
    {
        assert_eq!(run(usage).await.0, 64, "{usage:?}");
    }
    assert_eq!(run(&["--help"]).await.0, 0);
    let same = old.clone();
    for configuration in [
        &["init", "redis://127.0.0.1"][..],
        &["status", "redlock://a,b"],
        &["status", &old, "--lock", ""],
        &["replace", &old, &same],
    ] {
        let (code, _, error) = run(configuration).await;
        assert_eq!(code, 78, "{configuration:?}: {error}");
        assert!(error.starts_with("fencelock: ") && error.lines().count() == 1, "{error}");
    }

    nodes[2].kill().expect("killed");
    let gone = nodes[2].addr().to_string();
    let (code, _, error) = run(&["init", &old]).await;
    assert_eq!(code, 69, "{error}");
    assert!(error.contains(&gone), "{error}");
    nodes[2].restart().await.expect("back");
    assert_eq!(run(&["init", &old]).await.0, 0);
    nodes[2].kill().expect("killed");
    let (code, printed, _) = run(&["status", &old]).await;
    assert_eq!(code, 0, "a majority takes part: {printed}");
    let row = printed.lines().find(|line| line.starts_with(&gone)).expect("its row");
    assert!(row.contains("cannot connect"), "{row}");
    let three_away = url("", &nodes[1..], &format!("{SHORT}&set_epoch=2"));
    assert_eq!(run(&["replace", &old, &three_away]).await.0, 69);
    // A node that has left permanently is named.
    let new = url("", [&nodes[0], &nodes[1], &nodes[3]], &format!("{SHORT}&set_epoch=2"));
    let (code, printed, error) = run(&["replace", &old, &new]).await;
    assert_eq!((code, &*printed), (0, "the new set takes part in 3 s\n"), "{error}");
    assert!(error.contains(&gone) && error.contains("never start it again"), "{error}");
    nodes[1].kill().expect("killed");
    let (code, printed, error) = run(&["status", &new]).await;
    assert_eq!(code, 69, "{printed}");
    assert!(error.contains(" of 3 nodes take part, and 2 must"), "{error}");
    // One clock alone agrees with none.
    nodes[3].kill().expect("killed");
    let (_, printed, _) = run(&["status", &new]).await;
    assert!(!printed.contains("clock does not agree"), "{printed}");
}

#[tokio::test]
async fn no_password_is_ever_shown() {
    let nodes = servers(&RedisOptions::new().password(PASSWORD), 4).await;
    let (right, wrong) = (format!(":{PASSWORD}@"), "jobs:wrong-staple@".to_owned());
    let set =
        |login: &str, epoch: u32| url(login, &nodes[..3], &format!("{SHORT}&set_epoch={epoch}"));
    let away = format!("redlock://{right}127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    let broken = format!("redlock://{right}a,b");
    let unknown = format!("pigeon://{right}a,b,c");
    let cases: &[(&[&str], i32)] = &[
        (&["init", &set(&wrong, 1)], 78),
        (&["status", &set(&wrong, 1)], 78),
        (&["status", &set(&wrong, 1), "--json"], 78),
        (&["replace", &set(&wrong, 1), &set(&wrong, 2)], 78),
        (&["init", &set("", 1)], 78),
        (&["init", &away], 69),
        (&["status", &away, "--lock", "a"], 69),
        (&["init", &broken], 78),
        (&["init", &unknown], 78),
        (&["replace", &broken, &unknown], 78),
        (&["init", &set(&right, 1)], 0),
        (&["status", &set(&right, 1), "--lock", "a"], 0),
        (&["replace", &set(&right, 1), &set(&right, 1)], 78),
        (&["replace", &set(&right, 1), &set(&right, 2)], 0),
        (&["init", &set(&right, 1)], 78),
        (&["status", &set(&right, 1)], 78),
    ];
    for (arguments, expected) in cases {
        let (code, printed, error) = run(arguments).await;
        assert_eq!(code, *expected, "{arguments:?}: {printed}{error}");
        for secret in [PASSWORD, "wrong-staple"] {
            assert!(!printed.contains(secret) && !error.contains(secret), "{printed}{error}");
        }
    }
}
