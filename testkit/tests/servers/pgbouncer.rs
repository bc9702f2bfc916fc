//! pgbouncer in front of a PostgreSQL server.

use std::time::Duration;

use fencelock_testkit::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_testkit::servers::{
    PgBouncerOptions, PoolMode, ServerError, TestPgBouncer, TestPostgres,
};
use tokio_postgres::{Client, NoTls};

use crate::{is_running, within};

async fn connect(url: &str) -> Client {
    let (client, connection) = within(tokio_postgres::connect(url, NoTls)).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Which session of the server runs this.
async fn session(client: &Client) -> String {
    let rows = client.simple_query("SELECT pg_backend_pid()").await.unwrap();
    let rows = rows.into_iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    rows.last().unwrap()
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

#[tokio::test]
async fn clients_have_their_own_sessions_in_session_mode() {
    let postgres = TestPostgres::start().await.unwrap();
    let options = PgBouncerOptions::new().mode(PoolMode::Session).pool_size(2);
    let pooler = options.start(postgres.addr()).await.unwrap();
    let (one, two) = (connect(&pooler.url()).await, connect(&pooler.url()).await);
    let (first, second) = (session(&one).await, session(&two).await);
    assert_ne!(first, second);
    assert_eq!(session(&one).await, first);
}

#[tokio::test]
async fn a_paused_pooler_holds_statements_and_a_restarted_one_ends_connections() {
    let postgres = TestPostgres::start().await.unwrap();
    let pooler = TestPgBouncer::start(postgres.addr()).await.unwrap();
    let client = connect(&pooler.url()).await;
    session(&client).await;
    pooler.console("PAUSE").await.unwrap();
    let asked = session(&client);
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err());
    pooler.console("RESUME").await.unwrap();
    within(asked).await;

    let first = pooler.pid();
    within(pooler.restart()).await.unwrap();
    assert_ne!(pooler.pid(), first);
    assert!(client.batch_execute("SELECT 1").await.is_err());
    session(&connect(&pooler.url()).await).await;
}

#[tokio::test]
async fn a_pooler_finds_a_server_that_was_restarted() {
    let postgres = TestPostgres::start().await.unwrap();
    let pooler = TestPgBouncer::start(postgres.addr()).await.unwrap();
    let first = session(&connect(&pooler.url()).await).await;
    postgres.kill().unwrap();
    postgres.restart().await.unwrap();
    let next = within(async {
        loop {
            // It may hand out a session that has ended.
            let (client, connection) = tokio_postgres::connect(&pooler.url(), NoTls).await.unwrap();
            tokio::spawn(connection);
            if client.batch_execute("SELECT 1").await.is_ok() {
                return session(&client).await;
            }
        }
    });
    assert_ne!(next.await, first);
}

#[tokio::test]
async fn the_reply_of_one_statement_is_lost_in_front_of_a_pooler() {
    let postgres = TestPostgres::start().await.unwrap();
    let pooler = TestPgBouncer::start(postgres.addr()).await.unwrap();
    let proxy = Proxy::framed(pooler.addr(), framing::postgres).await.unwrap();
    let client = connect(&postgres.url_through(&proxy.addr().to_string())).await;
    client.batch_execute("CREATE TABLE n (n int)").await.unwrap();
    proxy.drop_reply(DropReply::first(AfterDrop::Reset)).unwrap();
    let insert = "INSERT INTO n VALUES (1)";
    assert!(within(client.batch_execute(insert)).await.unwrap_err().code().is_none());
    within(proxy.dropped_reply()).await;
    assert_eq!(postgres.sql("SELECT count(*) FROM n").await.unwrap(), "1");
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.replies, stats.garbled), (2, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_missing_pgbouncer_is_reported_with_its_package() {
    let postgres = TestPostgres::start().await.unwrap();
    let absent = PgBouncerOptions::new().program("/nonexistent/pgbouncer");
    let error = absent.start(postgres.addr()).await.unwrap_err();
    assert!(matches!(error, ServerError::NotInstalled { .. }));
    assert!(error.to_string().ends_with("apt-get install pgbouncer"), "{error}");
}
