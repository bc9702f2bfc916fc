//! `Lock::with` releases whatever happens to the work.

use fencelock_core::ErrorKind;

use crate::behaviours::prelude::*;
use crate::cancel_points::at_every_await;

const GROUP: &str = "work_under_a_lock";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "it_releases_whatever_the_work_returns", &[], &returns),
    // Fault 47
    behaviour(GROUP, "a_panic_in_the_work_releases", &[], &panics),
    behaviour(GROUP, "a_loss_drops_the_work", &[], &lost),
    behaviour(
        GROUP,
        "a_silent_store_after_the_work_hides_no_result",
        &[Need::Backdoor(Backdoor::CutOff)],
        &silent,
    ),
    behaviour(GROUP, "dropped_anywhere_it_leaves_nothing", &[], &dropped),
];

async fn returns(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for wanted in [Ok(1), Err("no")] {
        let lock = one.lock(&name);
        let returned = lock.with(async |guard| {
            assert!(guard.is_held());
            work::assert_busy(&context, &two, &name).await;
            wanted
        });
        let returned = context.soon("the work is done", Box::pin(returned)).await;
        assert_eq!(returned.expect("held"), wanted);
        assert!(work::is_free(&context, &two, &name, How::Exclusive).await);
    }
}

async fn panics(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name);
    let panicking = tokio::spawn(async move {
        lock.with(async |_| std::panic::resume_unwind(Box::new("in the work"))).await
    });
    assert!(context.soon("the task ends", panicking).await.is_err());
    context.until_free(&locks, &name).await;
}

/// By its limit, so that every store can.
async fn lost(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name).hold_at_most(Duration::from_millis(100));
    let works = lock.with(async |_| std::future::pending::<()>().await);
    let error = context.soon("the work is dropped", works).await.expect_err("lost");
    work::assert_kind(&error, ErrorKind::Lost);
    context.until_free(&locks, &name).await;
}

/// Long enough for an answer on a busy machine.
const SILENCE: Duration = Duration::from_secs(1);

async fn silent(context: Arc<Context>) {
    let name = context.name("lock");
    let locks = context.client_with(|params| params.unreachable_after = SILENCE).await;
    let lock = locks.lock(&name);
    let works = lock.with(async |_| {
        context.inject_fault(NetworkFault::CutOff).await;
        42
    });
    let done = context.soon("the work is done", works).await;
    context.heal().await;
    assert_eq!(done.expect("the work ended while the lock was held"), 42);
    // The release continues in the background.
    let other = context.client().await;
    context.until_free(&other, &name).await;
}

async fn dropped(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let make = async || {
        let lock = locks.lock(&name);
        ((), async move { lock.with(async |_| tokio::task::yield_now().await).await })
    };
    at_every_await(context.patience(), make, async |(), done| {
        if let Some(done) = done {
            done.expect("no error");
        }
        context.until_free(&locks, &name).await;
    })
    .await;
}
