//! Readers, writers and permits: one lock per name in all modes, without starvation.

use fencelock_core::ErrorKind;
use tokio::time::Instant;

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::time::frozen_runtime::FrozenRuntime;

const GROUP: &str = "modes";
const SHARED: &[Need] = &[Need::Shared];
const PERMITS: &[Need] = &[Need::Permits];
const FAIR_SHARED: &[Need] = &[Need::Shared, Need::Arrival];
const FAIR_PERMITS: &[Need] = &[Need::Permits, Need::Arrival];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "readers_hold_together", SHARED, &readers),
    behaviour(GROUP, "readers_and_writers_exclude_each_other", SHARED, &writers),
    behaviour(GROUP, "readers_cannot_starve_a_writer", FAIR_SHARED, &|c| {
        big(c, How::Shared, How::Exclusive)
    }),
    behaviour(GROUP, "readers_after_a_writer_are_granted_together", SHARED, &together),
    behaviour(GROUP, "a_reader_does_not_renew_another_reader", DEAD_READER, &dead_reader),
    behaviour(GROUP, "permits_never_exceed_their_limit", PERMITS, &limit),
    behaviour(GROUP, "a_big_request_is_not_starved", FAIR_PERMITS, &|c| {
        big(c, permits(1, 4), permits(4, 4))
    }),
    behaviour(GROUP, "one_release_wakes_all_waiters_that_fit", PERMITS, &wakes_all),
    behaviour(GROUP, "each_claim_is_measured_by_its_own_limit", PERMITS, &mixed),
    behaviour(GROUP, "a_lost_holder_releases_its_permits", LOST_PERMITS, &lost_permits),
    behaviour(GROUP, "all_modes_of_a_name_are_one_lock", &[], &one_lock),
    behaviour(GROUP, "a_mode_the_store_lacks_is_refused", &[], &lacking),
];

const DEAD_READER: &[Need] = &[Need::Shared, Need::Silence];
const LOST_PERMITS: &[Need] = &[Need::Permits, Need::Silence];

const fn permits(n: u32, limit: u32) -> How {
    How::Permits { n, limit }
}

async fn readers(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let mut guards = Vec::new();
    for locks in [&one, &two, &one, &two] {
        guards.push(work::acquire(&context, locks, &name, How::Shared).await);
    }
    assert!(guards.iter().all(fencelock_core::Guard::is_held), "readers exclude each other");
    for guard in guards {
        work::assert_busy(&context, &one, &name).await;
        context.release(guard).await;
    }
    assert!(work::is_free(&context, &two, &name, How::Exclusive).await, "a reader is left");
}

async fn writers(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = work::acquire(&context, &one, &name, How::Exclusive).await;
    assert!(
        !work::is_free(&context, &two, &name, How::Shared).await,
        "a reader was granted while a writer holds"
    );
    context.release(writer).await;
    let reader = work::acquire(&context, &one, &name, How::Shared).await;
    work::assert_busy(&context, &two, &name).await;
    context.release(reader).await;
    let clients = (0..8).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let how = |index| if index % 4 == 0 { How::Exclusive } else { How::Shared };
    let events = work::contend(&context, clients.collect(), &name, 20, how).await;
    work::assert_history(&context, events);
}

/// Small requests begin before others end, for as long as a big one waits: only a queue lets it in.
async fn big(context: Arc<Context>, small: How, big: How) {
    let (name, one, two) = context.lock_of_two().await;
    let first = work::acquire(&context, &one, &name, small).await;
    let waiter = work::spawn_waiter(&two, &name, big);
    context.until_queued(&one, &name, 1).await;
    assert!(!work::is_free(&context, &one, &name, small).await, "{small:?} overtook {big:?}");
    let later = work::spawn_waiter(&one, &name, small);
    context.until_queued(&one, &name, 2).await;
    context.release(first).await;
    let waiter = context.until_granted("the big request is granted", waiter).await;
    assert!(!later.is_finished(), "{small:?} was granted while {big:?} holds");
    context.release(waiter).await;
    let later = context.until_granted("the later request is granted", later).await;
    context.release(later).await;
}

async fn together(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = work::acquire(&context, &one, &name, How::Exclusive).await;
    let mut waiters = Vec::new();
    for (index, locks) in [&one, &two, &one, &two].into_iter().enumerate() {
        waiters.push(work::spawn_waiter(locks, &name, How::Shared));
        context.until_queued(&one, &name, index + 1).await;
    }
    context.release(writer).await;
    // No reader releases before all of them hold.
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(context.until_granted("every reader is granted", waiter).await);
    }
    assert!(guards.iter().all(fencelock_core::Guard::is_held));
    for guard in guards {
        context.release(guard).await;
    }
}

/// redisson #7098: one reader's renewal kept a dead reader's hold.
async fn dead_reader(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let frozen = context.client_on(&frozen_runtime).await;
    let lock = frozen.rw_lock(&name).read().ttl(SHORT_TTL);
    let dead = frozen_runtime.run(async move { work::in_time(&lock, SHORT_TTL).await }).await;
    let locks = context.client().await;
    let alive = locks.rw_lock(&name).read().ttl(SHORT_TTL);
    let alive = context.soon("a second reader is granted", alive.acquire()).await.expect("granted");
    let bound = context.silence_frees_within(SHORT_TTL);
    context
        .until_within(bound, "the dead reader is gone", async || {
            assert!(alive.is_held(), "the living reader is lost");
            locks.inspect(&name).await.expect("inspect answers").holders.len() == 1
        })
        .await;
    let writer = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.release(alive).await;
    let writer = context.until_granted("the writer is granted", writer).await;
    assert!(!dead.is_held());
    context.release(writer).await;
    let ending = frozen_runtime.run(async move {
        drop(dead);
        frozen.close().await
    });
    context.soon("the dead reader's client closes", ending).await.expect("closed");
}

async fn limit(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let clients = (0..9).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let how = |index| permits(1 + u32::try_from(index).unwrap_or(0) % 3, 4);
    let events = work::contend(&context, clients.collect(), &name, 20, how).await;
    work::assert_history(&context, events);
    let all = work::acquire(&context, &one, &name, permits(4, 4)).await;
    assert!(
        !work::is_free(&context, &two, &name, permits(1, 4)).await,
        "five of four permits are held"
    );
    context.release(all).await;
}

/// redisson #6664: waiters for permits were never woken.
async fn wakes_all(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let mut slow = 0;
    for _ in 0..8 {
        let all = work::acquire(&context, &one, &name, permits(3, 3)).await;
        let mut waiters = Vec::new();
        for (index, locks) in [&one, &two, &one].into_iter().enumerate() {
            waiters.push(work::spawn_waiter(locks, &name, permits(1, 3)));
            context.until_queued(&one, &name, index + 1).await;
        }
        let started = Instant::now();
        context.release(all).await;
        let mut guards = Vec::new();
        for waiter in waiters {
            guards.push(context.until_granted("every waiter that fits is granted", waiter).await);
        }
        // Otherwise a waiter check found them.
        slow += u32::from(started.elapsed() > Duration::from_millis(500));
        for guard in guards {
            context.release(guard).await;
        }
    }
    assert!(slow < 4, "in {slow} of 8 rounds some waiters that fitted were not woken");
}

/// So a limit changes by claiming with another one.
async fn mixed(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let old = work::acquire(&context, &one, &name, permits(2, 2)).await;
    assert!(
        !work::is_free(&context, &two, &name, permits(1, 2)).await,
        "three of two permits are held"
    );
    let raised = work::acquire(&context, &two, &name, permits(1, 3)).await;
    assert!(
        !work::is_free(&context, &two, &name, permits(1, 3)).await,
        "four of three permits are held"
    );
    context.release(old).await;
    assert!(work::is_free(&context, &one, &name, permits(1, 2)).await);
    assert!(
        !work::is_free(&context, &one, &name, permits(1, 1)).await,
        "two of one permits are held"
    );
    context.release(raised).await;
    let most = work::acquire(&context, &one, &name, permits(u32::MAX, u32::MAX)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, u32::MAX)).await, "an overflow");
    context.release(most).await;
}

/// redisson #2933, CURATOR-462: a crash leaked permits.
async fn lost_permits(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let frozen = context.client_on(&frozen_runtime).await;
    let lock = frozen.semaphore(&name, 3).permits(2).ttl(SHORT_TTL / 2);
    let lost = frozen_runtime.run(async move { work::in_time(&lock, SHORT_TTL / 2).await }).await;
    let locks = context.client().await;
    let lock = locks.semaphore(&name, 3).permits(3);
    let bound = context.silence_frees_within(SHORT_TTL / 2);
    let all = context.within(bound, "all permits are back", lock.acquire()).await.expect("granted");
    assert!(!lost.is_held());
    let ending = frozen_runtime.run(async move {
        drop(lost);
        frozen.close().await
    });
    context.soon("the frozen client closes", ending).await.expect("closed");
    context.release(all).await;
}

async fn one_lock(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let modes = context.profile().modes;
    let mut ways = vec![How::Exclusive];
    ways.extend(modes.shared.then_some(How::Shared));
    ways.extend(modes.permits.then_some(permits(1, 4)));
    for held in &ways {
        let guard = work::acquire(&context, &one, &name, *held).await;
        assert_eq!(How::of(&guard), *held);
        for wanted in ways.iter().filter(|wanted| *wanted != held) {
            let free = work::is_free(&context, &two, &name, *wanted).await;
            assert!(!free, "{wanted:?} was granted together with {held:?}");
        }
        for wanted in ways.iter().filter(|wanted| *wanted != held) {
            let waiter = work::spawn_waiter(&two, &name, *wanted);
            context.until_queued(&one, &name, 1).await;
            waiter.abort();
            context.until_queued(&one, &name, 0).await;
        }
        context.release(guard).await;
    }
}

async fn lacking(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let modes = context.profile().modes;
    for (has, how) in [(modes.shared, How::Shared), (modes.permits, permits(1, 2))] {
        let lock = how.lock(&locks, &name);
        let acquired = context.soon("an answer", lock.acquire()).await;
        match acquired {
            Ok(guard) => {
                assert!(has, "granted as {how:?}, which the profile denies");
                context.release(guard).await;
            }
            Err(error) => {
                assert!(!has, "refused as {how:?}, which the profile promises: {error}");
                work::assert_kind(&error, ErrorKind::Unsupported);
            }
        }
    }
}
