//! The guarantee table of the README is what the stores' profiles say, or this fails and prints
//! what it should be.

use std::time::Duration;

use fencelock::{Liveness, Locks, Profile};
use fencelock_testkit::servers::{PostgresOptions, RedisOptions, ZooKeeperOptions};

const BEGIN: &str =
    "<!-- guarantees: made by `cargo test -p fencelock --test all guarantees` -->\n";
const END: &str = "<!-- end of guarantees -->";

fn table(stores: &[(&str, Locks)]) -> String {
    let mut table = String::from(
        "| store | scope | waiters are granted | lock is freed after a crash | modes | its fencing token rises | its cells live | exclusion fails when |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (url, locks) in stores {
        table += &row(url, locks.profile());
    }
    table
}

fn row(url: &str, profile: &Profile) -> String {
    let Profile { reach, order, liveness, tokens, .. } = profile;
    let ttl = if *liveness == Liveness::Lease { " (default 30 s)" } else { "" };
    let mut modes = vec!["exclusive"];
    modes.extend(profile.modes.shared.then_some("shared"));
    modes.extend(profile.modes.permits.then_some("permits"));
    let modes = modes.join(", ");
    let fails = match &*profile.exclusion_fails_when {
        [] => "never".to_owned(),
        reasons => reasons.join("; "),
    };
    let cells = profile.cells.map_or_else(|| "none".to_owned(), |cells| cells.to_string());
    format!(
        "| `{url}` | {reach} | {order} | {liveness}{ttl} | {modes} | {tokens} | {cells} | {fails} |\n"
    )
}

#[tokio::test]
async fn the_readme_says_what_the_stores_promise() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file://{}", directory.path().display());
    // As durable as one server can be: what remains is what no setting prevents.
    let server = RedisOptions::new().append_only().start().await.unwrap();
    let redis = format!("redis://{}", server.addr());
    let node = || RedisOptions::new().start();
    let nodes = tokio::try_join!(node(), node(), node()).unwrap();
    let nodes = [nodes.0, nodes.1, nodes.2];
    let redlock = nodes.each_ref().map(|node| node.addr().to_string());
    let redlock = format!("redlock://{}", redlock.join(","));
    let postgres = PostgresOptions::new().durable().start().await.unwrap();
    // With the tick of the server's own example, so that its bounds are those of most.
    let ticks = ZooKeeperOptions::new().tick_time(Duration::from_secs(2));
    let ensemble = ticks.standalone().await.unwrap();
    let zookeeper = format!("zk://{}", ensemble.connect_string());
    let stores = [
        ("mem://", fencelock::connect("mem://").await.unwrap()),
        ("file:///DIR", fencelock::connect(&file).await.unwrap()),
        ("postgres://USER@HOST/DATABASE", fencelock::connect(&postgres.url()).await.unwrap()),
        ("redis://HOST", fencelock::connect(&redis).await.unwrap()),
        ("redlock://H1,H2,H3", fencelock::connect(&redlock).await.unwrap()),
        ("zk://HOSTS", fencelock::connect(&zookeeper).await.unwrap()),
    ];
    let table = table(&stores);
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once(BEGIN).expect("the README marks where the table begins");
    let (written, _) = rest.split_once(END).expect("the README marks where the table ends");
    assert!(written == table, "the README's guarantee table should read:\n\n{table}");
}
