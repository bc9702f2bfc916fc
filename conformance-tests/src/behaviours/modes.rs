//! Readers, writers and permits: one lock per name, whatever the mode, and nobody starves.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::ErrorKind;
use tokio::time::Instant;

use super::behaviour;
use super::work::{self, SHORT_TTL};
use crate::context::Context;
use crate::island::Island;
use crate::needs::Need;
use crate::peer::protocol::How;
use crate::suite::Behaviour;

const GROUP: &str = "modes";
const SHARED: &[Need] = &[Need::Shared];
const PERMITS: &[Need] = &[Need::Permits];
const FAIR_SHARED: &[Need] = &[Need::Shared, Need::Arrival];
const FAIR_PERMITS: &[Need] = &[Need::Permits, Need::Arrival];

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "readers_hold_together", SHARED, |c| Box::pin(readers(c))),
    behaviour(GROUP, "readers_and_writers_exclude_each_other", SHARED, |c| Box::pin(writers(c))),
    behaviour(GROUP, "readers_cannot_starve_a_writer", FAIR_SHARED, |c| Box::pin(starved(c))),
    behaviour(GROUP, "writer_reader_writer_take_turns", SHARED, |c| Box::pin(turns(c))),
    behaviour(GROUP, "readers_behind_a_writer_come_together", SHARED, |c| Box::pin(together(c))),
    behaviour(GROUP, "a_reader_keeps_no_other_reader_alive", DEAD_READER, |c| {
        Box::pin(dead_reader(c))
    }),
    behaviour(GROUP, "permits_never_exceed_their_limit", PERMITS, |c| Box::pin(limit(c))),
    behaviour(GROUP, "several_permits_are_taken_at_once", PERMITS, |c| Box::pin(several(c))),
    behaviour(GROUP, "a_big_request_is_not_starved", FAIR_PERMITS, |c| Box::pin(big(c))),
    behaviour(GROUP, "one_release_wakes_all_who_fit", PERMITS, |c| Box::pin(wakes_all(c))),
    behaviour(GROUP, "each_claim_is_measured_by_its_own_limit", PERMITS, |c| Box::pin(mixed(c))),
    behaviour(GROUP, "a_lost_holder_gives_its_permits_back", LOST_PERMITS, |c| {
        Box::pin(lost_permits(c))
    }),
    behaviour(GROUP, "all_modes_of_a_name_are_one_lock", &[], |c| Box::pin(one_lock(c))),
    behaviour(GROUP, "all_modes_contend_for_one_lock", BOTH, |c| Box::pin(mixture(c))),
    behaviour(GROUP, "a_mode_the_store_lacks_is_refused", &[], |c| Box::pin(lacking(c))),
];

const BOTH: &[Need] = &[Need::Shared, Need::Permits];
const DEAD_READER: &[Need] = &[Need::Shared, Need::Silence];
const LOST_PERMITS: &[Need] = &[Need::Permits, Need::Silence];

const fn permits(n: u32, limit: u32) -> How {
    How::Permits { n, limit }
}

async fn readers(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let mut guards = Vec::new();
    for locks in [&one, &two, &one, &two] {
        guards.push(work::hold(&context, locks, &name, How::Shared).await);
    }
    assert!(guards.iter().all(fencelock_core::Guard::is_held), "readers exclude each other");
    for guard in guards {
        work::assert_busy(&context, &one, &name).await;
        context.give_back(guard).await;
    }
    assert!(work::is_free(&context, &two, &name, How::Exclusive).await, "a reader is left");
}

async fn writers(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let writer = work::hold(&context, &one, &name, How::Exclusive).await;
    assert!(!work::is_free(&context, &two, &name, How::Shared).await, "read beside a writer");
    context.give_back(writer).await;
    let reader = work::hold(&context, &one, &name, How::Shared).await;
    work::assert_busy(&context, &two, &name).await;
    context.give_back(reader).await;
    let crowd = (0..8).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let how = |index| if index % 4 == 0 { How::Exclusive } else { How::Shared };
    let events = work::contend(&context, crowd.collect(), &name, 20, how).await;
    work::judge(&context, events);
}

/// Reads begin before others end, for as long as the writer waits: only a queue lets it in.
async fn starved(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let first = work::hold(&context, &one, &name, How::Shared).await;
    let writer = work::wait_for(&two, &name, How::Exclusive);
    context.queued(&one, &name, 1).await;
    assert!(!work::is_free(&context, &one, &name, How::Shared).await, "a reader overtook a writer");
    let reader = work::wait_for(&one, &name, How::Shared);
    context.queued(&one, &name, 2).await;
    context.give_back(first).await;
    let writer = work::granted(&context, "the writer is granted", writer).await;
    assert!(!reader.is_finished(), "read beside a writer");
    context.give_back(writer).await;
    let reader = work::granted(&context, "the reader is granted", reader).await;
    context.give_back(reader).await;
}

/// kazoo #649: this order never ended.
async fn turns(context: Arc<Context>) {
    let name = context.name("lock");
    let locks = context.client().await;
    let first = work::hold(&context, &locks, &name, How::Exclusive).await;
    let mut waiters = Vec::new();
    for (index, how) in [How::Shared, How::Exclusive, How::Shared].into_iter().enumerate() {
        waiters.push(work::wait_for(&locks, &name, how));
        context.queued(&locks, &name, index + 1).await;
    }
    context.give_back(first).await;
    let ending = async {
        for waiter in waiters {
            let guard = waiter.await.expect("no panic").expect("granted");
            guard.release().await.expect("released");
        }
    };
    context.soon("reader, writer and reader had their turns", ending).await;
}

async fn together(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let writer = work::hold(&context, &one, &name, How::Exclusive).await;
    let mut waiters = Vec::new();
    for (index, locks) in [&one, &two, &one, &two].into_iter().enumerate() {
        waiters.push(work::wait_for(locks, &name, How::Shared));
        context.queued(&one, &name, index + 1).await;
    }
    context.give_back(writer).await;
    // Nobody releases before all hold.
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(work::granted(&context, "every reader is granted", waiter).await);
    }
    assert!(guards.iter().all(fencelock_core::Guard::is_held));
    for guard in guards {
        context.give_back(guard).await;
    }
}

/// redisson #7098: one reader's renewal kept a dead reader's hold.
async fn dead_reader(context: Arc<Context>) {
    let name = context.name("lock");
    let island = Island::new();
    let frozen = context.client_on(&island).await;
    let lock = frozen.rw_lock(&name).read().ttl(SHORT_TTL);
    let dead = island.run(async move { lock.acquire().await }).await.expect("acquired");
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
    let writer = work::wait_for(&locks, &name, How::Exclusive);
    context.give_back(alive).await;
    let writer = work::granted(&context, "the writer is granted", writer).await;
    assert!(!dead.is_held());
    context.give_back(writer).await;
    let ending = island.run(async move {
        drop(dead);
        frozen.close().await
    });
    context.soon("the dead reader's client closes", ending).await.expect("closed");
}

async fn limit(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let crowd = (0..9).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let how = |index| permits(1 + u32::try_from(index).unwrap_or(0) % 3, 4);
    let events = work::contend(&context, crowd.collect(), &name, 20, how).await;
    work::judge(&context, events);
    let all = work::hold(&context, &one, &name, permits(4, 4)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, 4)).await, "five of four are out");
    context.give_back(all).await;
}

async fn several(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let three = work::hold(&context, &one, &name, permits(3, 5)).await;
    assert!(!work::is_free(&context, &two, &name, permits(3, 5)).await, "six of five are out");
    let rest = work::hold(&context, &two, &name, permits(2, 5)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, 5)).await, "six of five are out");
    context.give_back(three).await;
    let again = work::hold(&context, &two, &name, permits(3, 5)).await;
    context.give_back(again).await;
    context.give_back(rest).await;
}

/// Small requests that come later do not pass a big one by.
async fn big(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let small = work::hold(&context, &one, &name, permits(1, 4)).await;
    let big = work::wait_for(&two, &name, permits(4, 4));
    context.queued(&one, &name, 1).await;
    assert!(!work::is_free(&context, &one, &name, permits(1, 4)).await, "a small one overtook");
    let later = work::wait_for(&one, &name, permits(1, 4));
    context.queued(&one, &name, 2).await;
    context.give_back(small).await;
    let big = work::granted(&context, "the big request is granted", big).await;
    assert!(!later.is_finished(), "five of four are out");
    context.give_back(big).await;
    let later = work::granted(&context, "the later request is granted", later).await;
    context.give_back(later).await;
}

/// redisson #6664: waiters for permits were never woken.
async fn wakes_all(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let mut slow = 0;
    for _ in 0..8 {
        let all = work::hold(&context, &one, &name, permits(3, 3)).await;
        let mut waiters = Vec::new();
        for (index, locks) in [&one, &two, &one].into_iter().enumerate() {
            waiters.push(work::wait_for(locks, &name, permits(1, 3)));
            context.queued(&one, &name, index + 1).await;
        }
        let started = Instant::now();
        context.give_back(all).await;
        let mut guards = Vec::new();
        for waiter in waiters {
            guards.push(work::granted(&context, "all who fit are granted", waiter).await);
        }
        // Else a safety look found them.
        slow += u32::from(started.elapsed() > Duration::from_millis(500));
        for guard in guards {
            context.give_back(guard).await;
        }
    }
    assert!(slow < 4, "in {slow} of 8 rounds some who fitted were not woken");
}

/// So a limit changes by claiming with another one.
async fn mixed(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let old = work::hold(&context, &one, &name, permits(2, 2)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, 2)).await, "three of two are out");
    let raised = work::hold(&context, &two, &name, permits(1, 3)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, 3)).await, "four of three are out");
    context.give_back(old).await;
    assert!(work::is_free(&context, &one, &name, permits(1, 2)).await);
    assert!(!work::is_free(&context, &one, &name, permits(1, 1)).await, "two of one are out");
    context.give_back(raised).await;
    let most = work::hold(&context, &one, &name, permits(u32::MAX, u32::MAX)).await;
    assert!(!work::is_free(&context, &two, &name, permits(1, u32::MAX)).await, "an overflow");
    context.give_back(most).await;
}

/// redisson #2933, CURATOR-462: a crash leaked permits.
async fn lost_permits(context: Arc<Context>) {
    let name = context.name("lock");
    let island = Island::new();
    let frozen = context.client_on(&island).await;
    let lock = frozen.semaphore(&name, 3).permits(2).ttl(SHORT_TTL / 2);
    let lost = island.run(async move { lock.acquire().await }).await.expect("acquired");
    let locks = context.client().await;
    let lock = locks.semaphore(&name, 3).permits(3);
    let bound = context.silence_frees_within(SHORT_TTL / 2);
    let all = context.within(bound, "all permits are back", lock.acquire()).await.expect("granted");
    assert!(!lost.is_held());
    let ending = island.run(async move {
        drop(lost);
        frozen.close().await
    });
    context.soon("the frozen client closes", ending).await.expect("closed");
    context.give_back(all).await;
}

async fn one_lock(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let modes = context.profile().modes;
    let mut ways = vec![How::Exclusive];
    ways.extend(modes.shared.then_some(How::Shared));
    ways.extend(modes.permits.then_some(permits(1, 4)));
    for held in &ways {
        let guard = work::hold(&context, &one, &name, *held).await;
        assert_eq!(How::of(&guard), *held);
        for wanted in ways.iter().filter(|wanted| *wanted != held) {
            let free = work::is_free(&context, &two, &name, *wanted).await;
            assert!(!free, "{wanted:?} was granted beside {held:?}");
        }
        for wanted in ways.iter().filter(|wanted| *wanted != held) {
            let waiter = work::wait_for(&two, &name, *wanted);
            context.queued(&one, &name, 1).await;
            waiter.abort();
            context.queued(&one, &name, 0).await;
        }
        context.give_back(guard).await;
    }
}

async fn mixture(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let crowd = (0..9).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let ways = [How::Exclusive, How::Shared, permits(1, 2), permits(2, 3), How::Shared];
    let events =
        work::contend(&context, crowd.collect(), &name, 20, |index| ways[index % ways.len()]).await;
    work::judge(&context, events);
}

async fn lacking(context: Arc<Context>) {
    let name = context.name("lock");
    let locks = context.client().await;
    let modes = context.profile().modes;
    for (has, how) in [(modes.shared, How::Shared), (modes.permits, permits(1, 2))] {
        let lock = how.lock(&locks, &name);
        let acquired = context.soon("an answer", lock.acquire()).await;
        match acquired {
            Ok(guard) => {
                assert!(has, "granted as {how:?}, which the profile denies");
                context.give_back(guard).await;
            }
            Err(error) => {
                assert!(!has, "refused as {how:?}, which the profile promises: {error}");
                work::assert_kind(&error, ErrorKind::Unsupported);
            }
        }
    }
}
