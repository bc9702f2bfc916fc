//! The user's transactions that check a token: whatever happens to the lock and to its holder, only one
//! history is written.

use std::process::{Child, Command, Stdio};

use fencelock_core::{ErrorKind, Locks};
use fencelock_testkit::proxy::Close;
use fencelock_testkit::proxy::NewConnections;
use fencelock_testkit::servers::TestPostgres;
use tokio_postgres::error::SqlState;

use crate::support::*;

/// A check behind a statement that has failed: nothing that a retry in the same transaction helps.
/// Fault 57: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_in_a_failed_transaction_is_refused() {
    let server = database().await;
    let locks = direct(&server, "ttl=30s").await;
    let held = acquire(&locks, "lock").await;
    let mut client = user(&server).await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("SELECT 1 / 0").await.unwrap_err();
    let check = held.check().unwrap();
    let error = fencelock_postgres::run_check(&transaction, &check).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert!(!error.is_retryable() && error.to_string().contains("has failed already"), "{error}");
    transaction.rollback().await.unwrap();
    fencelock_postgres::run_check(&client, &check).await.unwrap();
    release(held).await;
    drained(&server).await;
}

/// The lease ends during the transaction: no other claim is granted before it ends, and it is committed.
/// Fault 57: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_guarded_transaction_is_open_no_other_claim_is_granted() {
    let testbed = Testbed::start().await;
    let (one, other) = (testbed.through_proxy("ttl=2s").await, testbed.direct("ttl=30s").await);
    table_of_writes(&testbed.server).await;
    for end in ["its lease", "its release"] {
        let held = acquire(&one, "lock").await;
        let mut client = user(&testbed.server).await;
        let transaction = client.transaction().await.unwrap();
        let check = held.check().unwrap();
        fencelock_postgres::run_check(&transaction, &check).await.unwrap();
        let waiter = spawn_waiter(&other, "lock");
        if end == "its lease" {
            testbed.proxy.cut(Close::Reset, NewConnections::Refused).await.unwrap();
            // The program is not silent meanwhile: the server would end its transaction.
            until("the holder is notified", async || {
                transaction.batch_execute("SELECT 1").await.unwrap();
                !held.is_held()
            })
            .await;
            drop(held);
        } else {
            release(held).await;
        }
        // Longer than the look that hands off what has ended.
        for _ in 0..15 {
            tokio::time::sleep(ms(100)).await;
            transaction.batch_execute("SELECT 1").await.unwrap();
        }
        assert!(!waiter.is_finished(), "granted after the end of {end}, before the commit");
        let locked_out = other.lock("lock").try_acquire().await.unwrap();
        assert!(locked_out.is_none(), "granted to a try");
        write(&transaction, 1).await;
        transaction.commit().await.expect("it is committed");
        let next = until_granted(waiter).await;
        let stale = fencelock_postgres::run_check(&client, &check).await.unwrap_err();
        assert_kind(&stale, ErrorKind::Lost);
        guarded_write(&testbed.server, &next, 2).await.unwrap();
        release(next).await;
        testbed.proxy.heal().await.unwrap();
    }
    assert_eq!(writes(&testbed.server).await, "1,1,2,2");
    drained(&testbed.server).await;
}

const CHILD: &str = "FENCELOCK_FAULTS_URL";
const TTL: u64 = 1500;

/// The holder is stopped in its transaction. Its connection stays, and would keep the lock for ever.
/// Fault 56: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_stopped_in_a_guarded_transaction_is_passed_over() {
    let server = database().await;
    table_of_writes(&server).await;
    let other = direct(&server, "ttl=30s").await;
    let child = start_child(&server);
    until("the child is in its transaction", async || {
        let written = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND state = 'idle in transaction'
                         AND query ~ '^INSERT'";
        sql(&server, written).await == "1"
    })
    .await;
    stop_process(&child).await;
    let next = soon("the next is granted", other.lock("lock").acquire()).await.unwrap();
    guarded_write(&server, &next, 2).await.unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let ended = soon("the child ends", ended).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.contains("heard 25P03"), "{said}");
    assert_eq!(writes(&server).await, "2");
    release(next).await;
    drained(&server).await;
}

fn start_child(server: &TestPostgres) -> Child {
    let program = std::env::current_exe().expect("it is known");
    Command::new(program)
        .args(["--exact", "guarded::child_that_is_stopped", "--ignored", "--nocapture"])
        .env(CHILD, server.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

#[tokio::test]
#[ignore = "is started by a_holder_that_is_stopped_in_a_guarded_transaction_is_passed_over"]
async fn child_that_is_stopped() {
    let url = std::env::var(CHILD).expect("a URL");
    let locks: Locks = connect(&format!("{url}?ttl={TTL}ms")).await;
    let held = acquire(&locks, "lock").await;
    let (mut client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connected");
    // What the server says last comes when nothing was asked: the connection's task has it.
    let connection = tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    fencelock_postgres::run_check(&transaction, &held.check().unwrap()).await.unwrap();
    write(&transaction, 1).await;
    let ended = soon("the server ends the connection", connection).await.unwrap().unwrap_err();
    println!("\nheard {}", ended.code().map_or("nothing", |state| state.code()));
    assert!(transaction.commit().await.is_err());
    let error = soon("a check is refused", async {
        loop {
            match held.check() {
                Ok(_) => tokio::time::sleep(ms(10)).await,
                Err(error) => return error,
            }
        }
    })
    .await;
    assert_kind(&error, ErrorKind::NotHeld);
}

/// A client that is only silent: the same, without its process being stopped.
/// Fault 56: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_silent_in_a_guarded_transaction_is_ended_although_its_lock_is_renewed() {
    let server = database().await;
    let (one, other) = (direct(&server, "ttl=1s").await, direct(&server, "ttl=30s").await);
    let held = acquire(&one, "lock").await;
    let (mut client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    fencelock_postgres::run_check(&transaction, &held.check().unwrap()).await.unwrap();
    let ended = soon("the server ends the connection", connection).await.unwrap().unwrap_err();
    assert_eq!(ended.code().map(SqlState::code), Some("25P03"));
    drop(transaction);
    until_renewed(&one, &held, ms(1000)).await;
    let waiter = spawn_waiter(&other, "lock");
    hand_over(held, waiter).await;
    drained(&server).await;
}
