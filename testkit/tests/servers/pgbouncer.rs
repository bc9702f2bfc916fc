//! pgbouncer in front of a PostgreSQL server.

use std::time::Duration;

use fencelock_testkit::servers::{PgBouncerOptions, TestPostgres};
use tokio_postgres::Client;

use crate::deployments::value;
use crate::postgres::connect;
use crate::{is_running, within};

/// Which session of the server runs this.
async fn session(client: &Client) -> String {
    value(client, "SELECT pg_backend_pid()").await
}

#[tokio::test]
async fn clients_share_a_session_in_transaction_mode() {
    let postgres = TestPostgres::start().await.unwrap();
    let pooler = PgBouncerOptions::new().pool_size(1).start(postgres.addr()).await.unwrap();
    let (one, two) = (connect(&pooler.url()).await, connect(&pooler.url()).await);
    assert_eq!(session(&one).await, session(&two).await);
    assert!(pooler.console("SHOW POOLS").await.unwrap().contains("|transaction"));

    one.batch_execute("BEGIN").await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(200), session(&two));
    assert!(waits.await.is_err(), "the only session is in a transaction");
    one.batch_execute("COMMIT").await.unwrap();
    within(session(&connect(&pooler.url()).await)).await;
    let pid = pooler.pid();
    drop(pooler);
    assert!(!is_running(pid));
}
