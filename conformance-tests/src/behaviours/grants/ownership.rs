//! A lock belongs to its guard, and only that guard can release it (invariant 3).

use fencelock_core::ErrorKind;

use crate::behaviours::prelude::*;
use crate::behaviours::work::{BRIEFLY, SHORT_TTL};
use crate::time::frozen_runtime::FrozenRuntime;

const GROUP: &str = "ownership";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "release_frees_the_lock", &[], &release),
    // Fault 48
    behaviour(GROUP, "a_stale_release_does_not_free_a_successor", &[], &stale),
    // Fault 48
    behaviour(GROUP, "a_stale_drop_does_not_free_a_successor", &[], &stale_drop),
    // Fault 3
    behaviour(GROUP, "a_thawed_holder_does_not_free_a_successor", &[Need::Silence], &thawed),
    behaviour(GROUP, "drop_releases", &[], &dropped),
    // Fault 46
    behaviour(GROUP, "drop_on_a_plain_thread_releases", &[], &plain_thread),
    // Fault 46
    behaviour(GROUP, "a_guard_outlives_its_runtime_without_harm", &[], &no_runtime),
    behaviour(GROUP, "a_release_frees_only_its_own_lock", &[], &only_own),
];

async fn release(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for how in work::single_modes(&context) {
        for locks in [&one, &two, &one] {
            let guard = work::acquire(&context, locks, &name, how).await;
            assert!(guard.is_held());
            context.release(guard).await;
        }
    }
}

/// The proof of ownership is the acquisition's, not the process's or the `Lock`'s
/// (distributed-lock 0.2 freed a successor).
async fn stale(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for successor in [&one, &two] {
        let lock = one.lock(&name).hold_at_most(BRIEFLY);
        let old = work::acquire_lock(&context, &lock).await;
        work::until_lost(&context, &old).await;
        let new = context.acquire(successor, &name).await;
        work::release_is_not_held(&context, old).await;
        assert!(new.is_held());
        work::assert_busy(&context, &two, &name).await;
        context.release(new).await;
    }
}

async fn stale_drop(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.lock(&name).hold_at_most(BRIEFLY);
    let old = work::acquire_lock(&context, &lock).await;
    work::until_lost(&context, &old).await;
    let new = context.acquire(&two, &name).await;
    drop(old);
    // Its clean-up, if there were one, would be done before this client's connection ends.
    context.soon("the old holder's client closes", one.close()).await.expect("closed");
    work::assert_busy(&context, &two, &name).await;
    assert!(new.is_held());
    context.release(new).await;
}

/// It releases what it lost when it wakes up, late: the store must know whose lock that was.
async fn thawed(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let frozen = context.client_on(&frozen_runtime).await;
    let lock = frozen.lock(&name).ttl(SHORT_TTL / 2);
    let old = frozen_runtime.run(async move { work::in_time(&lock, SHORT_TTL / 2).await }).await;
    let two = context.client().await;
    let bound = context.silence_frees_within(SHORT_TTL / 2);
    let waits = two.lock(&name);
    let new = context.within(bound, "the frozen holder's lock is free", waits.acquire()).await;
    let new = new.expect("granted");
    assert!(!old.is_held(), "the old holder still believes in it");
    let thawing = frozen_runtime.run(async move {
        let released = old.release().await;
        let closed = frozen.close().await;
        (released, closed)
    });
    let (released, closed) = context.soon("the thawed client cleans up", thawing).await;
    let error = released.expect_err("the thawed holder released what it had lost");
    work::assert_kind(&error, ErrorKind::NotHeld);
    closed.expect("closed");
    work::assert_busy(&context, &two, &name).await;
    assert!(new.is_held());
    context.release(new).await;
}

async fn dropped(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for how in work::single_modes(&context) {
        let guard = work::acquire(&context, &one, &name, how).await;
        let waiter = work::spawn_waiter(&two, &name, how);
        context.until_queued(&two, &name, 1).await;
        drop(guard);
        let next = context.until_granted("a dropped guard's lock is granted", waiter).await;
        context.release(next).await;
    }
}

async fn plain_thread(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let thread = std::thread::spawn(move || drop(guard));
    let next = context.acquire(&locks, &name).await;
    thread.join().expect("dropping a guard without a runtime must not panic");
    context.release(next).await;
}

async fn no_runtime(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let client = context.client_on(&frozen_runtime).await;
    let lock = client.lock(&name).ttl(SHORT_TTL / 2);
    let guard = frozen_runtime.run(async move { work::in_time(&lock, SHORT_TTL / 2).await }).await;
    tokio::task::spawn_blocking(move || drop(frozen_runtime)).await.expect("the runtime ends");
    assert!(!guard.is_held(), "a guard that is no longer renewed is reported as held");
    context.soon("the guard is lost with its runtime", guard.lost()).await;
    let lock = client.lock(&name);
    let refused = context.soon("a client without a runtime answers", lock.acquire()).await;
    work::assert_kind(&refused.expect_err("it could not be renewed"), ErrorKind::Closed);
    drop(lock);
    drop(guard);
    drop(client);
    let two = context.client().await;
    let bound = context.silence_frees_within(SHORT_TTL / 2);
    let lock = two.lock(&name);
    let next = context.within(bound, "its lock becomes free", lock.acquire()).await;
    context.release(next.expect("granted")).await;
}

async fn only_own(context: Arc<Context>) {
    let (name, other) = (context.name("lock"), context.name("other"));
    let locks = context.client().await;
    let (one, two) = (context.acquire(&locks, &name).await, context.acquire(&locks, &other).await);
    context.release(one).await;
    assert!(two.is_held());
    work::assert_busy(&context, &locks, &other).await;
    assert!(work::is_free(&context, &locks, &name, How::Exclusive).await);
    context.release(two).await;
}
