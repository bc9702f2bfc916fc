//! PostgreSQL.

use fencelock_testkit::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_testkit::servers::{PostgresOptions, ServerError, TestPostgres};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::within;

/// Connects as a user's program does. The connection's task ends with the client.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = within(tokio_postgres::connect(url, NoTls)).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn the_death_of_one_backend_ends_all_sessions_without_a_restart() {
    let postgres = TestPostgres::start().await.unwrap();
    postgres.sql("CREATE TABLE t AS SELECT 7 AS n").await.unwrap();
    let client = connect(&postgres.url()).await;
    let started = "SELECT pg_postmaster_start_time()";
    let (pid, since) = (postgres.pid(), postgres.sql(started).await.unwrap());
    within(postgres.kill_backend()).await.unwrap();
    assert!(client.query_one("SELECT 1", &[]).await.is_err());
    assert_eq!(postgres.sql("SELECT n FROM t").await.unwrap(), "7");
    assert_eq!((postgres.pid(), postgres.sql(started).await.unwrap()), (pid, since));
}

#[tokio::test]
async fn the_reply_of_one_statement_is_lost_after_it_took_effect() {
    let postgres = TestPostgres::start().await.unwrap();
    let proxy = Proxy::framed(postgres.addr(), framing::postgres).await.unwrap();
    let client = connect(&postgres.url_through(&proxy.addr().to_string())).await;
    client.batch_execute("CREATE TABLE n (n int); INSERT INTO n VALUES (0)").await.unwrap();
    assert_eq!(proxy.stats().requests, 1, "the login is none");
    let add = client.prepare("UPDATE n SET n = n + 1 RETURNING n").await.unwrap();
    let armed = DropReply::nth(2, AfterDrop::Reset).matching(|request| request.starts_with(b"B"));
    proxy.drop_reply(armed).unwrap();
    let first = client.query_one(&add, &[]).await.unwrap();
    assert_eq!(first.get::<_, i32>(0), 1);
    let lost = within(client.query_one(&add, &[])).await.unwrap_err();
    assert!(lost.code().is_none(), "{lost}");
    within(proxy.dropped_reply()).await;
    assert_eq!(postgres.sql("SELECT n FROM n").await.unwrap(), "2");
    let stats = proxy.stats();
    assert_eq!((stats.requests - stats.replies, stats.garbled), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn notifications_are_no_replies_and_are_not_held_back() {
    let postgres = TestPostgres::start().await.unwrap();
    let proxy = Proxy::framed(postgres.addr(), framing::postgres).await.unwrap();
    let url = postgres.url_through(&proxy.addr().to_string());
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let (pushed, mut pushes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(notification) = message {
                pushed.send(notification.payload().to_owned()).unwrap();
            }
        }
    });
    client.batch_execute("LISTEN here").await.unwrap();
    let before = proxy.stats();
    postgres.sql("SELECT pg_notify('here', 'idle')").await.unwrap();
    assert_eq!(within(pushes.recv()).await.unwrap(), "idle");
    assert_eq!(proxy.stats().replies, before.replies);
    // Its own arrives with the reply.
    client.batch_execute("NOTIFY here, 'own'").await.unwrap();
    assert_eq!(within(pushes.recv()).await.unwrap(), "own");
    let stats = proxy.stats();
    assert_eq!((stats.replies, stats.garbled), (before.replies + 1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_missing_postgres_is_reported_with_its_package() {
    let error = PostgresOptions::new().programs("/nonexistent").start().await.unwrap_err();
    assert!(matches!(error, ServerError::NotInstalled { .. }));
    let text = error.to_string();
    assert!(text.contains("/nonexistent/postgres"), "{text}");
    assert!(text.ends_with("apt-get install postgresql"), "{text}");
}

#[tokio::test]
async fn a_postgres_that_refuses_to_start_is_reported_with_its_log() {
    let error = PostgresOptions::new().setting("no_such_setting", "1").start().await.unwrap_err();
    assert!(matches!(error, ServerError::NotReady { .. }));
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}
