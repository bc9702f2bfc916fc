//! A server that restarts, crashes, freezes, does not serve, is held up, or loses data.

use std::time::Duration;

use fencelock_core::{ErrorKind, Guard, Locks};
use fencelock_testkit::scenes;
use fencelock_testkit::servers::PostgresOptions;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::*;

/// A holder and three waiters in two clients, before a fault.
async fn held_and_wanted(
    one: &Locks,
    other: &Locks,
) -> (Guard, Vec<tokio::task::JoinHandle<fencelock_core::Result<Guard>>>) {
    let kept = acquire(one, "lock").await;
    let mut waiters = Vec::new();
    for locks in [other, one, other] {
        waiters.push(spawn_waiter(locks, "lock"));
        until_queued(locks, "lock", waiters.len()).await;
    }
    (kept, waiters)
}

/// Row 18: a crash, and its recovery. A grant was on the disk before it was answered; a place in the queue
/// may be lost, and is taken anew.
/// Fault 18: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_the_holder_still_has_the_lock_and_all_waiters_get_it() {
    let server = PostgresOptions::new().durable().start().await.unwrap();
    let (one, other) = (direct(&server, "ttl=30s").await, direct(&server, "ttl=30s").await);
    let (kept, waiters) = held_and_wanted(&one, &other).await;
    for _ in 0..2 {
        server.kill().unwrap();
        server.restart().await.unwrap();
        assert!(is_busy(&other, "lock").await);
        until_renewed(&one, &kept, ms(30_000)).await;
    }
    let token = kept.fencing_token();
    release(kept).await;
    let tokens = in_turns(waiters).await;
    assert!(tokens.len() == 3 && tokens.is_sorted() && tokens[0] > token, "{tokens:?}, {token:?}");
    drained(&server).await;
}

/// The death of any process of the server makes it end all sessions and recover.
/// Fault 50: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_death_of_another_backend_the_holder_still_has_the_lock() {
    let server = PostgresOptions::new().durable().start().await.unwrap();
    let (one, other) = (direct(&server, "ttl=30s").await, direct(&server, "ttl=30s").await);
    let mut last = None;
    for _ in 0..2 {
        let (kept, waiters) = held_and_wanted(&one, &other).await;
        assert!(last < Some(kept.fencing_token()));
        server.kill_backend().await.unwrap();
        assert!(is_busy(&other, "lock").await);
        until_renewed(&one, &kept, ms(30_000)).await;
        let token = kept.fencing_token();
        release(kept).await;
        let tokens = in_turns(waiters).await;
        assert!(tokens.len() == 3 && tokens.is_sorted() && tokens[0] > token, "{tokens:?}");
        last = tokens.last().copied();
    }
    drained(&server).await;
}

/// Row 19.
/// Fault 19: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_on_a_frozen_server_are_lost_in_time_and_it_works_again_afterwards() {
    let server = own_server().await;
    let locks = direct(&server, "ttl=1s").await;
    scenes::frozen(&server, &locks).await;
    drained(&server).await;
}

/// Row 20: a server that is told to end waits for its clients, and serves no new ones: 57P03, as while it
/// starts.
/// Fault 20: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_serve_is_reported_and_waited_for() {
    let server = own_server().await;
    let locks = direct(&server, "ttl=20s").await;
    let (kept, waiter) = contested(&locks, &locks, "lock").await;
    let id = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    until("it serves no new clients", async || {
        let error = connect_error(&server.url()).await;
        assert_kind(&error, ErrorKind::Unreachable);
        error_chain(&error).contains("starting or stopping")
    })
    .await;
    // The session that it waits for still works.
    release(acquire(&locks, "other").await).await;
    let fresh = tokio::spawn({
        let url = with_params(&server, "ttl=20s");
        async move { connect(&url).await.lock("lock").acquire().await }
    });
    server.restart().await.unwrap();
    until_renewed(&locks, &kept, ms(20_000)).await;
    release(kept).await;
    assert_eq!(in_turns([waiter, fresh]).await.len(), 2);
    drained(&server).await;
}

/// A migration, a dump or another program's lock holds all steps up: they end with an error in time, and
/// go on after it.
/// Fault 51: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_tables_are_locked_everything_is_bounded_and_then_continues() {
    let server = database().await;
    let locks = direct(&server, "ttl=30s").await;
    let user = user(&server).await;
    let run = async |sql: &str| user.batch_execute(sql).await.unwrap();
    let lock = run("BEGIN; LOCK TABLE fencelock.locks IN EXCLUSIVE MODE");
    everything_is_bounded(&locks, lock, run("ROLLBACK")).await;
    drained(&server).await;
}

/// Row 25: rows that are deleted by hand.
/// Fault 25: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_rows_are_noticed_by_the_next_renewal_and_the_token_still_rises() {
    let server = database().await;
    let (one, other) = (direct(&server, "ttl=9s").await, direct(&server, "ttl=30s").await);
    for delete in [
        "DELETE FROM fencelock.locks; DELETE FROM fencelock.claims",
        "TRUNCATE fencelock.locks, fencelock.claims, fencelock.processes",
    ] {
        let (lost, waiter) = contested(&one, &other, "lock").await;
        sql(&server, delete).await;
        // Without the answer to its next renewal it would be lost at the end of its lease.
        let until = lost.valid_until();
        soon("the holder is notified", lost.lost()).await;
        assert!(one.now() < until, "not by its next renewal");
        let next = until_granted(waiter).await;
        assert!(next.fencing_token() > lost.fencing_token());
        let releasing = soon("its release ends", lost.release()).await;
        assert_kind(&releasing.unwrap_err(), ErrorKind::NotHeld);
        release(next).await;
        drained(&server).await;
    }
}

/// The queue of a process is gone, as when it was stopped for longer than its waiters live: all of them queue again,
/// and not only those that a look asks about.
/// Fault 25: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_of_a_lost_queue_queue_again() {
    const WAITERS: usize = 40;
    let server = database().await;
    let (one, other) = (direct(&server, "").await, direct(&server, "").await);
    let held = acquire(&one, "lock").await;
    let waiters: Vec<_> = (0..WAITERS).map(|_| spawn_waiter(&other, "lock")).collect();
    until_queued(&one, "lock", WAITERS).await;
    sql(&server, "DELETE FROM fencelock.claims").await;
    until_queued(&one, "lock", WAITERS).await;
    release(held).await;
    for waiter in waiters {
        waiter.abort();
    }
}

/// A schema that was dropped: an error that says how to make it again, and it is made by the next client.
/// Fault 25: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_was_dropped_is_reported() {
    let server = database().await;
    let locks = direct(&server, "ttl=3s").await;
    let lost = acquire(&locks, "lock").await;
    sql(&server, "DROP SCHEMA fencelock CASCADE").await;
    let error = acquire_error(&locks, "other", Duration::from_secs(1)).await;
    assert!(error_chain(&error).contains("fencelock postgres schema"), "{}", error_chain(&error));
    soon("the holder is notified", lost.lost()).await;
    let token = lost.fencing_token();
    drop(lost);
    let again = direct(&server, "").await;
    let guard = acquire(&again, "lock").await;
    assert!(guard.fencing_token() > token);
    release(guard).await;
    release(acquire(&locks, "lock").await).await;
    drained(&server).await;
}
