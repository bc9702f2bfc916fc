use fencelock_testkit::servers::{TestCluster, TestRedis};

use super::{leaves_nothing, run};
use crate::support::keys;

/// Behaviours that take many names, and in many ways; each group by itself.
const GROUPS: [&str; 2] = ["names::", "processes::"];
/// The minimal permissions of a user of locks, from docs/redis.md.
const DOCUMENT: &str = include_str!("../../../../docs/redis.md");

/// Keys of others, some of which look much like the suite's.
async fn used_by_others(server: &TestRedis, command: &[&str]) {
    for key in [
        "lock:orders",
        "{lock:orders}:f",
        "conformance-0123456789abcdef0123456789abcdef:lock",
        "{conformance-0123456789abcdef0123456789abcdef:lock}:f",
        "lock:conformance-",
    ] {
        // On a cluster each node takes what is its own.
        let _ = server.command(&[command, &[key, "1"]].concat()).await;
    }
}

#[tokio::test]
async fn an_interrupted_run_leaves_nothing_in_redis() {
    let server = TestRedis::start().await.expect("a redis-server starts");
    used_by_others(&server, &["SET"]).await;
    leaves_nothing(&server.url(), async || keys(&server).await, |keys| keys.len() > 100).await;
}

#[tokio::test]
async fn every_master_of_a_cluster_is_cleared() {
    let cluster = TestCluster::start().await.expect("a cluster starts");
    for node in cluster.nodes() {
        used_by_others(node, &["SET"]).await;
    }
    cluster.replicas_caught_up().await.expect("replicas follow");
    let all = async || {
        let mut all = Vec::new();
        for node in cluster.nodes() {
            all.push(keys(node).await);
        }
        all
    };
    let before = all().await;
    let (code, said) = run(&cluster.url(), &["--filter", "names::"]).await;
    assert_eq!(code, 0, "{said}");
    cluster.replicas_caught_up().await.expect("replicas follow");
    assert_eq!(all().await, before, "{said}");
}

/// A user with the documented rights and these.
async fn allow(server: &TestRedis, more: &[&str]) -> String {
    let line = DOCUMENT.lines().find(|line| line.starts_with("ACL SETUSER jobs on >PASSWORD "));
    let rules: Vec<&str> = line.expect("the document has the line").split(' ').skip(5).collect();
    // Before Redis 7 a new user may use all channels.
    let user = ["ACL", "SETUSER", "jobs", "reset", "resetchannels", "on", ">correct-horse"];
    server.command(&[&user, &*rules, more].concat()).await.expect("a user");
    format!("redis://jobs:correct-horse@{}", server.addr())
}

/// What the document says that the command needs besides.
fn more_for_the_suite() -> &'static str {
    let line = DOCUMENT.lines().find(|line| line.starts_with("- `fencelock-lab conformance`"));
    line.and_then(|line| line.split('`').nth(3)).expect("docs/redis.md has the line")
}

#[tokio::test]
async fn without_the_right_to_scan_it_reports_what_stays_and_for_how_long() {
    let server = TestRedis::start().await.expect("a redis-server starts");
    used_by_others(&server, &["SET"]).await;
    let before = keys(&server).await;
    assert_eq!(before.len(), 5);
    let url = allow(&server, &[]).await;
    let (code, said) = run(&url, &["--filter", "names::"]).await;
    assert_eq!(code, 0, "{said}");
    for word in [
        "not all that begins with \"lock:conformance-",
        "'scan' command",
        "fencing tokens",
        "expires within a day",
    ] {
        assert!(said.contains(word), "{word} in {said}");
    }
    assert!(!said.contains("correct-horse"), "{said}");
    let left = keys(&server).await;
    assert!(left.len() > before.len() + 100, "{} keys are left", left.len());
    for key in left.iter().filter(|key| !before.contains(key)) {
        let expires = server.command(&["PTTL", key]).await.expect("it answers");
        let expires: i64 = expires.parse().expect("a number");
        // Some names contain line ends, and their parts are not keys.
        let is_part = expires == -2;
        assert!(is_part || (1..=86_400_000).contains(&expires), "{key} expires in {expires} ms");
    }

    server.command(&["FLUSHALL"]).await.expect("it forgets");
    used_by_others(&server, &["SET"]).await;
    let url = allow(&server, &[more_for_the_suite()]).await;
    for group in GROUPS {
        let (code, said) = run(&url, &["--filter", group]).await;
        assert_eq!((code, keys(&server).await), (0, before.clone()), "after {group}: {said}");
    }
}

#[tokio::test]
async fn a_run_with_failures_leaves_nothing_either() {
    let server = TestRedis::start().await.expect("a redis-server starts");
    // Readers and permits are counted by it.
    let url = allow(&server, &[more_for_the_suite(), "-zincrby"]).await;
    let (code, said) = run(&url, &["--fail-fast", "--filter", "modes::"]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(" failed"), "{said}");
    assert_eq!(keys(&server).await, Vec::<String>::new(), "{said}");
}
