//! Shared by the tests: a server, with a proxy, clients of the library and of the user's own.
//!
//! Bounds are generous: they distinguish late on a busy machine from never, and are not promises.

use fencelock_conformance::waiting::Waiter;
use fencelock_core::{Error, ErrorKind, Guard, Locks, Result, url};
use fencelock_postgres::SCHEME;
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::TestPostgres;
use tokio::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

/// The schema of URLs that name none.
pub(crate) const SCHEMA: &str = "fencelock";

/// Connects like a user's program.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    catch_panics();
    url::connect(&[SCHEME], url).await
}

/// Connects in a single attempt.
pub(crate) async fn connect_once(url: &str) -> Result<Locks> {
    catch_panics();
    url::connect_within(&[SCHEME], url, ms(0)).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    connect_retrying(|| try_connect(url)).await
}

/// Of this kind, with these words in it or in one of its causes.
#[track_caller]
pub(crate) fn assert_says(error: &Error, kind: ErrorKind, words: &str) {
    assert_kind(error, kind);
    let said = error_chain(error);
    assert!(said.contains(words), "{said}");
}

/// The error of a single attempt to connect.
pub(crate) async fn connect_error(url: &str) -> Error {
    soon("one attempt to connect ends", connect_once(url)).await.expect_err("it must fail")
}

/// A database, reachable directly and through a proxy.
pub(crate) struct Testbed {
    pub(crate) server: TestPostgres,
    pub(crate) proxy: Proxy,
}

impl Testbed {
    pub(crate) async fn start() -> Testbed {
        Testbed::of(database().await).await
    }

    pub(crate) async fn of(server: TestPostgres) -> Testbed {
        let proxy = Proxy::framed(server.addr(), framing::postgres).await.expect("a proxy starts");
        Testbed { server, proxy }
    }

    /// A client that connects through the proxy, with these URL parameters.
    pub(crate) async fn through_proxy(&self, params: &str) -> Locks {
        let url = self.server.url_through(&self.proxy.addr().to_string());
        connect(&format!("{url}?{params}")).await
    }

    /// A client that the proxy's faults do not reach.
    pub(crate) async fn direct(&self, params: &str) -> Locks {
        direct(&self.server, params).await
    }
}

/// A database of the test's own, on the server that most tests share.
pub(crate) async fn database() -> TestPostgres {
    TestPostgres::shared().await.expect("there is a server")
}

/// A server of the test's own, for tests that break it, or change what all of its databases have.
pub(crate) async fn own_server() -> TestPostgres {
    TestPostgres::start().await.expect("a server starts")
}

pub(crate) async fn direct(server: &TestPostgres, params: &str) -> Locks {
    connect(&with_params(server, params)).await
}

pub(crate) fn with_params(server: &TestPostgres, params: &str) -> String {
    format!("{}?{params}", server.url())
}

/// Runs statements as the superuser.
pub(crate) async fn sql(server: &TestPostgres, statements: &str) -> String {
    server.sql(statements).await.unwrap_or_else(|error| panic!("{statements}: {error}"))
}

/// A connection of the user's own.
pub(crate) async fn user(server: &TestPostgres) -> Client {
    user_at(&server.url()).await.expect("the user connects")
}

pub(crate) async fn user_at(url: &str) -> std::result::Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Releases what is held, and then what its waiter gets.
pub(crate) async fn hand_over(held: Guard, waiter: Waiter) {
    release(held).await;
    release(until_granted(waiter).await).await;
}

/// A waiter in the queue, as the last of `count`.
pub(crate) async fn queued(locks: &Locks, name: &str, count: usize) -> Waiter {
    let waiter = spawn_waiter(locks, name);
    until_queued(locks, name, count).await;
    waiter
}

/// A lock that `one` holds, and a waiter of `other` in its queue.
pub(crate) async fn contested(one: &Locks, other: &Locks, name: &str) -> (Guard, Waiter) {
    let (held, waiter) = (acquire(one, name).await, spawn_waiter(other, name));
    until_queued(one, name, 1).await;
    (held, waiter)
}

/// While nothing is answered, waits end in time, and all continues afterwards.
pub(crate) async fn everything_is_bounded(
    locks: &Locks,
    stop: impl Future<Output = ()>,
    go_on: impl Future<Output = ()>,
) {
    let (kept, given) = (acquire(locks, "kept").await, acquire(locks, "given").await);
    let waiter = queued(locks, "kept", 1).await;
    stop.await;
    let releasing = tokio::spawn(given.release());
    assert_kind(&acquire_error(locks, "other", ms(1500)).await, ErrorKind::Unreachable);
    let fresh = spawn_waiter(locks, "fresh");
    go_on.await;
    soon("the release succeeds", releasing).await.expect("it ends").expect("released");
    release(until_granted(fresh).await).await;
    until_renewed(locks, &kept, ms(30_000)).await;
    hand_over(kept, waiter).await;
}

/// Where the user's program writes, if its token is checked.
pub(crate) async fn table_of_writes(server: &TestPostgres) {
    user(server).await.batch_execute("CREATE TABLE public.writes (n int)").await.expect("a table");
}

/// A write in one transaction with the check of its token.
pub(crate) async fn guarded_write(server: &TestPostgres, guard: &Guard, n: i32) -> Result<()> {
    let mut client = user(server).await;
    let transaction = client.transaction().await.expect("a transaction");
    fencelock_postgres::run_check(&transaction, &guard.check()?).await?;
    write(&transaction, n).await;
    transaction.commit().await.expect("it is committed");
    Ok(())
}

pub(crate) async fn write(client: &impl tokio_postgres::GenericClient, n: i32) {
    let write = format!("INSERT INTO public.writes VALUES ({n})");
    client.batch_execute(&write).await.expect("written");
}

pub(crate) async fn writes(server: &TestPostgres) -> String {
    sql(server, "SELECT string_agg(n::text, ',' ORDER BY n) FROM public.writes").await
}

/// The library's sessions of this database, of any role: a condition on `pg_stat_activity`.
pub(crate) const IS_OURS: &str =
    "datname = current_database() AND application_name ~ '^fencelock_'";

/// The number of the library's sessions.
pub(crate) async fn sessions(server: &TestPostgres) -> usize {
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {IS_OURS}");
    sql(server, &count).await.parse().expect("a number")
}

/// Ends the library's sessions, and not those of the user.
pub(crate) async fn end_ours(server: &TestPostgres) {
    let end =
        format!("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {IS_OURS}");
    sql(server, &end).await;
}

/// Settings of the role's sessions in this database.
pub(crate) async fn set_for_clients(server: &TestPostgres, setting: &str) {
    let database = server.database_name();
    sql(server, &format!("ALTER ROLE fencelock IN DATABASE {database} {setting}")).await;
}

/// Ends the notifications of clients that connect from now on: the library's functions find this one before
/// the server's own.
pub(crate) async fn mute(server: &TestPostgres) {
    drop(direct(server, "").await);
    let mute = "CREATE FUNCTION fencelock.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''; \
                GRANT EXECUTE ON FUNCTION fencelock.pg_notify TO PUBLIC";
    sql(server, mute).await;
}

/// How long hand-overs from `one` to `other` took, the shortest first.
pub(crate) async fn hand_overs(one: &Locks, other: &Locks) -> Vec<Duration> {
    let mut late = Vec::new();
    for _ in 0..3 {
        let (held, waiter) = contested(one, other, "lock").await;
        tokio::time::sleep(ms(30)).await;
        release(held).await;
        let released = Instant::now();
        let guard = until_granted(waiter).await;
        late.push(released.elapsed());
        release(guard).await;
    }
    late.sort_unstable();
    late
}

/// Awaits that holders and waiters have left nothing.
pub(crate) async fn drained(server: &TestPostgres) {
    let mut left = Vec::new();
    let empty = tokio::time::timeout(PATIENCE, async {
        loop {
            left = server.tables(SCHEMA).claims("").await.expect("the tables are read");
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(ms(10)).await;
        }
    });
    let drained = empty.await;
    assert!(drained.is_ok(), "still there: {left:?}");
    assert_no_panics();
}
