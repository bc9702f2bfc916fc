//! `fencelock-lab bench` on a Postgres server.

use fencelock_testkit::servers::TestPostgres;
use serde_json::Value;

use crate::support::{command, output};

/// Runs it on this server, with three clients that have a lock each, and returns what it printed.
async fn bench(server: &TestPostgres, options: &[&str]) -> String {
    let arguments = [&server.url(), "uncontended", "3", "0.2"];
    let output = output(command("bench", &arguments).args(options)).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn limits_are_measured_beside_the_store() {
    let server = TestPostgres::start().await.expect("a server");
    let printed = bench(&server, &["--limits"]).await;
    let lines: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let stores: Vec<_> = lines.iter().map(|line| line["store"].as_str().expect("a word")).collect();
    let limits = ["two SELECT 1", "pg_advisory_lock", "SELECT FOR UPDATE"];
    assert_eq!(stores[0], "postgres", "{printed}");
    assert_eq!(stores[1..], limits.map(|limit| format!("limit: {limit}")), "{printed}");
    for line in &lines {
        assert!(line["pairs_per_s"].as_f64() > Some(0.0) && line["clients"] == 3, "{printed}");
    }
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'fencelock_bench%'";
    assert_eq!(server.sql(tables).await.expect("it answers"), "0");
}

/// The schema has a function of the name of one of the server's.
#[tokio::test]
async fn a_role_whose_search_path_begins_with_the_schema_is_served() {
    let server = TestPostgres::start().await.expect("a server");
    bench(&server, &[]).await;
    let path = "ALTER ROLE fencelock SET search_path = fencelock, pg_catalog";
    server.sql(path).await.expect("it answers");
    bench(&server, &[]).await;
}
