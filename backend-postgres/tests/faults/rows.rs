//! A row that another program keeps locked: its lock stands still, and no other.

use fencelock_core::ErrorKind;

use super::support::*;

/// A session that has forgotten its COMMIT, or that an operator left open.
/// Fault 51: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_kept_locked_costs_its_own_lock_and_no_other() {
    const OTHERS: usize = 70;
    let server = database().await;
    let locks = direct(&server, "ttl=9s").await;
    let stuck = acquire(&locks, "stuck").await;
    let mut others = Vec::new();
    for n in 0..OTHERS {
        others.push(acquire(&locks, &format!("other {n}")).await);
    }
    let user = user(&server).await;
    let token = stuck.fencing_token();
    let lock = format!("BEGIN; SELECT FROM fencelock.locks WHERE token = {token} FOR UPDATE");
    user.batch_execute(&lock).await.expect("the row is locked");
    soon("its lock is lost", stuck.lost()).await;
    // A crowd that wants it, for longer than a lease.
    let crowd: Vec<_> = (0..OTHERS)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { acquire_error(&locks, "stuck", ms(10_000)).await })
        })
        .collect();
    for error in crowd {
        let error = soon("an attempt ends", error).await.unwrap();
        assert!(
            [ErrorKind::Unreachable, ErrorKind::WaitTimedOut].contains(&error.kind()),
            "{error}"
        );
        release(acquire(&locks, "free").await).await;
    }
    for other in others {
        assert!(other.is_held(), "another lock was lost");
        release(other).await;
    }
    let waiter = spawn_waiter(&locks, "stuck");
    drop(user);
    release(until_granted(waiter).await).await;
}

/// The row of a waiter: looks meet it, at which the waiters of other locks, and the process, depend.
/// Fault 51: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_s_row_that_is_kept_locked_costs_its_own_lock_and_no_other() {
    const STUCK: usize = 10;
    let server = database().await;
    let (locks, holder) = (direct(&server, "ttl=9s").await, direct(&server, "ttl=30s").await);
    let kept = acquire(&locks, "kept").await;
    let _other = acquire(&holder, "other").await;
    let (mut stuck, mut readers) = (Vec::new(), Vec::new());
    for n in 0..STUCK {
        let (locks, name) = (locks.clone(), format!("stuck {n}"));
        stuck.push(acquire(&holder, &name).await);
        let reader = locks.rw_lock(&name).read();
        readers.push(tokio::spawn(async move { reader.acquire().await }));
        until_queued(&holder, &name, 1).await;
    }
    let waiter = spawn_waiter(&locks, "other");
    until_queued(&holder, "other", 1).await;
    let user = user(&server).await;
    user.batch_execute("BEGIN; SELECT FROM fencelock.claims WHERE mode = 's' FOR UPDATE")
        .await
        .unwrap();
    // What a release would hand off, a look is to find: its holder is gone.
    let gone = "UPDATE fencelock.locks SET owner = NULL, until = 0 WHERE key <> 'lock:kept'";
    sql(&server, gone).await;
    release(until_granted(waiter).await).await;
    let deadline = async || sql(&server, "SELECT max(deadline) FROM fencelock.processes").await;
    for _ in 0..4 {
        let last = deadline().await;
        until("the process shows that it lives", async || deadline().await != last).await;
    }
    assert!(kept.is_held(), "another lock was lost");
    release(kept).await;
    drop(user);
    for reader in readers {
        release(soon("it is granted", reader).await.unwrap().unwrap()).await;
    }
}
