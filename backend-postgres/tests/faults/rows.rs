//! A row that another program keeps locked: its lock stands still, and no other.

use fencelock_core::ErrorKind;

use super::support::*;

/// A session that has forgotten its COMMIT, or that an operator left open.
/// Fault 51: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_kept_locked_costs_its_own_lock_and_no_other() {
    const OTHERS: usize = 70;
    let server = start().await;
    let locks = direct(&server, "ttl=3s").await;
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
            tokio::spawn(async move { acquire_error(&locks, "stuck", ms(4000)).await })
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
