//! What every store with servers must do about a machine's faults, in a test of
//! [`main`](super::main).

use std::time::Duration;

use fencelock_conformance::How;
use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_core::{ErrorKind, Locks, Result};
use futures_util::future::join_all;

use super::{Loss, NoDescriptors};
use crate::helpers::*;

/// While more than a quarter of the packets is lost, what is held stays, and four workers of these clients are
/// each granted a lock so many times, within a bound.
///
/// # Panics
/// When that is not so.
pub async fn lost_packets_only_slow_down(clients: &[Locks; 2], times: u32, bound: Duration) {
    let kept = acquire(&clients[0], "kept").await;
    let loss = Loss::of(Loss::SOME);
    let work = clients.iter().cycle().take(4).map(async |locks| {
        let mut worker = Worker::new();
        for _ in 0..times {
            let acquired = worker.acquire(locks, "one", How::Exclusive).await;
            let (guard, claim) = acquired.expect("granted");
            // Whether it worked is in the history.
            let _ = worker.release(guard, &claim).await;
        }
        worker.into_events()
    });
    let events = within(bound, "all work is done", join_all(work)).await;
    let lost = loss.lost();
    drop(loss);
    assert!(lost > 20, "only {lost} packets were lost");
    println!("{lost} packets were lost");
    assert!(kept.is_held(), "lost with some packets");
    assert_clean(events.into_iter().flatten().collect(), Rules::default());
    release(kept).await;
    for name in ["kept", "one"] {
        until_free(&clients[1], name).await;
    }
}

/// Without a free descriptor, connecting fails with an error that says so; `locks` continue to work.
///
/// # Panics
/// When that is not so.
pub async fn missing_descriptors_are_named(
    locks: &Locks,
    connect: impl AsyncFn() -> Result<Locks>,
) {
    let held = acquire(locks, "held").await;
    let none = NoDescriptors::left();
    let error = soon("connecting fails", connect()).await.expect_err("no descriptor is free");
    assert_kind(&error, ErrorKind::Unreachable);
    let why = format!("{error:?}");
    assert!(why.contains("open files") || why.contains("descriptor"), "{why}");
    let before = held.valid_until();
    until("the hold is renewed", async || held.valid_until() > before).await;
    release(acquire(locks, "another").await).await;
    drop(none);
    let newcomer = connect().await.expect("connected");
    assert!(is_busy(&newcomer, "held").await);
    release(held).await;
    release(acquire(&newcomer, "held").await).await;
}
