//! `inspect` shows holders and waiters to operators; `evict` removes one of them.

use fencelock_core::{LostReason, Mode, ParticipantId};

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;

const GROUP: &str = "inspecting";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "holders_and_waiters_are_shown_with_their_labels", &[], &seen),
    behaviour(GROUP, "modes_are_shown", &[], &modes),
    // Fault 25
    behaviour(GROUP, "an_evicted_holder_is_lost", &[], &evict),
    behaviour(GROUP, "an_evicted_waiter_does_not_block_the_queue", &[], &evict_waiter),
    behaviour(GROUP, "evicting_an_unknown_participant_changes_nothing", &[], &evict_unknown),
    behaviour(GROUP, "the_raw_store_agrees", &[Need::Backdoor(Backdoor::Inspect)], &behind),
];

async fn seen(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let seen = context.soon("inspect answers", one.inspect(&name)).await.expect("answers");
    assert!(seen.holders.is_empty() && seen.waiters.is_empty(), "{seen:?}");
    let lock = one.lock(&name).label("nightly billing");
    let guard = work::acquire_lock(&context, &lock).await;
    let lock = two.lock(&name).label("hourly report");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    context.until_queued(&one, &name, 1).await;
    for locks in [&one, &two] {
        let seen = context.soon("inspect answers", locks.inspect(&name)).await.expect("answers");
        let words = |all: &[fencelock_core::Participant]| {
            all.iter().map(|it| format!("{:?}", it.label)).collect::<Vec<_>>()
        };
        assert_eq!(seen.holders.len(), 1);
        assert!(words(&seen.holders)[0].contains("nightly billing"), "{seen:?}");
        assert!(words(&seen.waiters)[0].contains("hourly report"), "{seen:?}");
        assert_ne!(seen.holders[0].id, seen.waiters[0].id);
        assert_eq!(seen.holders[0].mode, Mode::Exclusive);
    }
    context.release(guard).await;
    let guard = context.until_granted("the waiter is granted", waiter).await;
    let seen = context.soon("inspect answers", one.inspect(&name)).await.expect("answers");
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{seen:?}");
    assert!(format!("{:?}", seen.holders[0].label).contains("hourly report"), "{seen:?}");
    context.release(guard).await;
}

async fn modes(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let modes = context.profile().modes;
    let ways = [
        Some(How::Exclusive),
        modes.shared.then_some(How::Shared),
        modes.permits.then_some(How::Permits { n: 2, limit: 5 }),
    ];
    for how in ways.into_iter().flatten() {
        let guard = work::acquire(&context, &locks, &name, how).await;
        let seen = context.soon("inspect answers", locks.inspect(&name)).await.expect("answers");
        let seen: Vec<Mode> = seen.holders.iter().map(|holder| holder.mode).collect();
        assert_eq!(seen, [guard.mode()]);
        let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
        context.until_queued(&locks, &name, 1).await;
        let holders = context.soon("it answers", locks.inspect_holders(&name)).await;
        let holders = holders.expect("answers").holders;
        assert_eq!(holders.iter().map(|holder| holder.mode).collect::<Vec<_>>(), [guard.mode()]);
        waiter.abort();
        context.until_queued(&locks, &name, 0).await;
        context.release(guard).await;
    }
}

/// The holder must also be notified, and must not renew the lock back.
async fn evict(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    let seen = context.soon("inspect answers", two.inspect(&name)).await.expect("answers");
    let evicting = two.evict(&name, &seen.holders[0].id);
    assert!(
        context.soon("evict answers", evicting).await.expect("evicted"),
        "evict reported that there is no such participant"
    );
    let reason = work::until_lost(&context, &guard).await;
    assert_eq!(reason, LostReason::TakenAway);
    let next = context.soon("a try answers", two.lock(&name).try_acquire()).await;
    let next = next.expect("no error").expect("the holder was evicted, so it is free");
    work::release_is_not_held(&context, guard).await;
    work::assert_busy(&context, &one, &name).await;
    context.release(next).await;
    let evicting = two.evict(&name, &seen.holders[0].id);
    assert!(!context.soon("evict answers", evicting).await.expect("no error"), "evicted twice");
}

async fn evict_waiter(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    let first = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&one, &name, 1).await;
    let seen = context.soon("inspect answers", one.inspect(&name)).await.expect("answers");
    let second = work::spawn_waiter(&one, &name, How::Exclusive);
    context.until_queued(&one, &name, 2).await;
    let evicting = one.evict(&name, &seen.waiters[0].id);
    assert!(
        context.soon("evict answers", evicting).await.expect("evicted"),
        "evict reported that there is no such participant"
    );
    assert!(holder.is_held());
    // The evicted one may queue again, at the end and as another participant, or give up.
    let is_over = async || {
        let seen = one.inspect(&name).await;
        first.is_finished() || seen.is_ok_and(|seen| seen.waiters.len() == 2)
    };
    context.until("the evicted one has queued again, or given up", is_over).await;
    let again = one.evict(&name, &seen.waiters[0].id);
    assert!(!context.soon("evict answers", again).await.expect("no error"), "evicted twice");
    context.release(holder).await;
    let second = context.until_granted("the next waiter is granted", second).await;
    first.abort();
    context.release(second).await;
}

async fn evict_unknown(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let seen = context.soon("inspect answers", locks.inspect(&name)).await.expect("answers");
    let id = seen.holders[0].id.clone();
    context.release(guard).await;
    let next = context.acquire(&locks, &name).await;
    assert!(
        !context.soon("evict answers", locks.evict(&name, &id)).await.expect("no error"),
        "an old id evicted a new holder"
    );
    for odd in ["", "no such id", "999999999999999999999", "../x", "\0"] {
        // Refused or not found, but never another participant.
        let evicted =
            context.soon("evict answers", locks.evict(&name, &ParticipantId::new(odd))).await;
        assert!(!evicted.unwrap_or(false), "{odd:?} evicted a participant");
    }
    assert!(next.is_held());
    work::assert_busy(&context, &locks, &name).await;
    context.release(next).await;
}

async fn behind(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let store = context.store();
    assert!(!store.is_locked(&name).await.expect("inspected"));
    let guard = context.acquire(&locks, &name).await;
    assert!(store.is_locked(&name).await.expect("inspected"), "a guard, but nothing in the store");
    assert!(
        !store.leftovers().await.expect("inspected").is_empty(),
        "the inspection finds nothing"
    );
    context.release(guard).await;
    assert!(!store.is_locked(&name).await.expect("inspected"), "released, but still in the store");
}
