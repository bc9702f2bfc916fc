//! Any reply may be lost: a retry finds the lock already acquired or already released (faults 7 to
//! 9, lessons 16 and 17).

use fencelock_core::Snapshot;
use tokio::time::sleep;

use crate::behaviours::prelude::*;

const GROUP: &str = "replies";
const NEEDS: &[Need] = &[Need::Backdoor(Backdoor::LoseReply)];
const LEASE: &[Need] = &[Need::Backdoor(Backdoor::LoseReply), Need::Lease];
const RENEWED: &[Need] = &[Need::Backdoor(Backdoor::LoseReply), Need::Renewal];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    // Fault 7
    behaviour(GROUP, "a_grant_whose_reply_was_lost_is_found_again", NEEDS, &grant),
    // Fault 7
    behaviour(GROUP, "a_grant_found_again_is_relied_on_only_for_its_lease", LEASE, &lease),
    // Fault 7
    behaviour(GROUP, "a_queue_place_whose_reply_was_lost_is_found_again", NEEDS, &place),
    // Fault 8
    behaviour(GROUP, "a_release_whose_reply_was_lost_is_a_release", NEEDS, &release),
    // Fault 9
    behaviour(GROUP, "a_renewal_whose_reply_was_lost_is_repeated", RENEWED, &renewal),
    // Fault 7
    behaviour(GROUP, "an_acquire_dropped_after_a_lost_reply_leaves_nothing", NEEDS, &dropped),
];

async fn lose_next(context: &Context) {
    context.inject_fault(NetworkFault::ReplyDropped).await;
}

async fn grant(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for how in work::single_modes(&context) {
        lose_next(&context).await;
        let guard = work::acquire(&context, &one, &name, how).await;
        let its = Some(guard.fencing_token());
        let alone = |seen: &Snapshot| match (&seen.holders[..], &seen.waiters[..]) {
            ([holder], []) => holder.token.is_none() || holder.token == its,
            _ => false,
        };
        context
            .until_seen("this grant is the only holder, and there is no waiter", &two, &name, alone)
            .await;
        context.release(guard).await;
        context.until_free(&two, &name).await;
        lose_next(&context).await;
        let tried = context.soon("a try answers", how.lock(&one, &name).try_acquire()).await;
        let guard = tried.expect("no error").expect("free, so a try succeeds");
        context.release(guard).await;
    }
}

/// The repeated request may extend the lease in the store, or leave it; the holder must not count a
/// lease that the store did not extend from the repetition.
async fn lease(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let ttl = context.patience().min(Duration::from_secs(4));
    lose_next(&context).await;
    let lock = one.lock(&name).fixed_lease(ttl);
    let guard = work::acquire_lock(&context, &lock).await;
    context.sleep_until(&two, guard.valid_until() - ttl / 2).await;
    let next = async {
        loop {
            let tried = two.lock(&name).try_acquire().await.expect("a try answers");
            let first_is_held = guard.is_held();
            if let Some(next) = tried {
                context.assert_final(!first_is_held, || {
                    "two holders: the first relies on a longer lease than the store kept".to_owned()
                });
                return next;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let next = context.within(context.silence_frees_within(ttl), "the lease ends", next).await;
    work::release_is_not_held(&context, guard).await;
    context.release(next).await;
}

/// Otherwise it waits for its own orphaned queue entry (go-zookeeper #229).
async fn place(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    lose_next(&context).await;
    let waiter = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&one, &name, 1).await;
    context.release(holder).await;
    let guard = context.until_granted("the waiter is granted", waiter).await;
    context.release(guard).await;
}

/// redisson #4871: "not yours", although it had worked; etcd #22082: a repeat freed the next one.
async fn release(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for _ in 0..3 {
        let guard = context.acquire(&one, &name).await;
        let next = work::spawn_waiter(&two, &name, How::Exclusive);
        context.until_queued(&one, &name, 1).await;
        lose_next(&context).await;
        context.release(guard).await;
        let next = context.until_granted("the next one is granted", next).await;
        assert!(next.is_held());
        work::assert_busy(&context, &one, &name).await;
        context.release(next).await;
    }
}

async fn renewal(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.lock(&name).ttl(context.patience().min(Duration::from_secs(6)));
    let guard = work::acquire_lock(&context, &lock).await;
    for _ in 0..3 {
        let before = guard.valid_until();
        lose_next(&context).await;
        context.until("it is renewed nevertheless", async || guard.valid_until() > before).await;
        assert!(guard.is_held(), "a lost reply has lost the lock");
    }
    work::assert_busy(&context, &two, &name).await;
    context.release(guard).await;
}

async fn dropped(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    lose_next(&context).await;
    let waiter = work::spawn_waiter(&one, &name, How::Exclusive);
    tokio::task::yield_now().await;
    waiter.abort();
    let _ = waiter.await;
    // If the request was not sent, another reply is lost, which is just as good.
    let next = context.acquire(&two, &name).await;
    context.release(next).await;
}
