//! Several locks at once: all or none, whatever the order in which they are given.

use std::sync::atomic::{AtomicI64, Ordering};

use fencelock_core::memory::Memory;
use fencelock_core::{All, ErrorKind, Guards, Lock, Locks, LostReason, Mode, Result, all};
use rand::RngExt;
use rand::seq::SliceRandom;
use tokio::task::{JoinHandle, JoinSet};

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_WAIT;
use crate::cancel_points::at_every_await;

const GROUP: &str = "several";
const EXPIRE: &[Need] = &[Need::Backdoor(Backdoor::Expire)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "all_or_nothing", &[], &all_or_nothing),
    behaviour(GROUP, "opposite_orders_do_not_deadlock", &[], &opposite),
    behaviour(GROUP, "one_deadline_for_all", &[], &one_deadline),
    behaviour(GROUP, "a_try_of_several_leaves_nothing", &[], &tries),
    behaviour(GROUP, "the_same_lock_twice_is_one", &[], &twice),
    behaviour(
        GROUP,
        "a_reader_and_a_writer_of_one_lock_are_a_writer",
        &[Need::Shared],
        &reader_and_writer,
    ),
    behaviour(GROUP, "permits_twice_are_refused", &[Need::Permits], &permits_twice),
    behaviour(GROUP, "kinds_can_be_mixed", &[Need::Shared, Need::Permits], &mixed),
    behaviour(GROUP, "a_loss_of_one_is_a_loss_of_all", EXPIRE, &loss_of_one),
    behaviour(GROUP, "a_loss_while_waiting_begins_again", EXPIRE, &loss_while_waiting),
    behaviour(GROUP, "a_release_tries_all_and_tells_an_error", EXPIRE, &released),
    behaviour(GROUP, "hold_at_most_counts_from_the_last_grant", &[], &hold_at_most),
    behaviour(GROUP, "dropped_anywhere_several_leave_nothing", &[], &dropped),
    behaviour(GROUP, "work_under_several_releases_them", &[], &work_done),
    behaviour(GROUP, "a_loss_of_one_drops_the_work_under_several", &[], &work_lost),
    behaviour(GROUP, "dropped_anywhere_work_under_several_leaves_nothing", &[], &work_dropped),
    behaviour(GROUP, "two_stores_need_a_limit", &[], &two_stores),
    behaviour(GROUP, "money_that_moves_between_accounts_is_conserved", &[], &money),
];

fn names(context: &Context, count: usize) -> Vec<String> {
    (0..count).map(|index| context.name(&format!("lock {index}"))).collect()
}

fn exclusively(locks: &Locks, names: &[String]) -> Vec<Lock> {
    names.iter().map(|name| locks.lock(name)).collect()
}

fn spawn(all: All) -> JoinHandle<Result<Guards>> {
    tokio::spawn(async move { all.acquire().await })
}

async fn all_or_nothing(context: Arc<Context>) {
    let names = names(&context, 3);
    let (one, two) = (context.client().await, context.client().await);
    let last = context.acquire(&two, &names[2]).await;
    let waiting = spawn(all(exclusively(&one, &names)));
    context.until_queued(&two, &names[2], 1).await;
    work::assert_busy(&context, &two, &names[0]).await;
    context.release(last).await;
    let guards = context.soon("all are acquired", waiting).await.expect("no panic");
    let guards = guards.expect("acquired");
    assert!(guards.is_held() && guards.len() == 3 && !guards.is_empty());
    for (index, name) in names.iter().enumerate() {
        assert_eq!(guards[index].name().as_str(), name);
        work::assert_busy(&context, &two, name).await;
    }
    let worked = context.soon("the work is done", guards.run(async { 42 })).await;
    assert_eq!(worked.expect("held"), 42);
    context.soon("all are released", guards.release()).await.expect("released");
    for name in &names {
        assert!(work::is_free(&context, &two, name, How::Exclusive).await);
    }
    let none = context.soon("an answer", all([]).acquire()).await.expect("none is acquired");
    assert!(none.is_empty() && none.is_held());
}

async fn opposite(context: Arc<Context>) {
    let names = names(&context, 2);
    let mut tasks = JoinSet::new();
    for client in 0..4 {
        let locks = context.client().await;
        let mut names = names.clone();
        if client % 2 == 1 {
            names.reverse();
        }
        tasks.spawn(async move {
            for _ in 0..10 {
                let guards = all(exclusively(&locks, &names)).acquire().await.expect("acquired");
                assert_eq!(guards[0].name().as_str(), names[0]);
                tokio::task::yield_now().await;
                guards.release().await.expect("released");
            }
        });
    }
    context.within(context.patience() * 4, "no deadlock", tasks.join_all()).await;
}

async fn one_deadline(context: Arc<Context>) {
    let names = names(&context, 3);
    let (one, two) = (context.client().await, context.client().await);
    let last = context.acquire(&two, &names[2]).await;
    let limited = all(exclusively(&one, &names)).wait_at_most(SHORT_WAIT);
    let error = context.soon("an answer", limited.acquire()).await.expect_err("one is held");
    work::assert_kind(&error, ErrorKind::WaitTimedOut);
    assert_eq!(error.lock(), Some(&*names[2]));
    assert!(error.message().contains("2 of 3 locks"), "{error}");
    context.until_free(&two, &names[0]).await;
    context.until_free(&two, &names[1]).await;
    let own = all([one.lock(&names[0]).wait_at_most(SHORT_WAIT)]);
    let error = context.soon("an answer", own.acquire()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    context.release(last).await;
}

async fn tries(context: Arc<Context>) {
    let names = names(&context, 3);
    let (one, two) = (context.client().await, context.client().await);
    let middle = context.acquire(&two, &names[1]).await;
    let several = all(exclusively(&one, &names));
    for _ in 0..3 {
        let tried = context.soon("a try answers", several.try_acquire()).await;
        assert!(tried.expect("no error").is_none());
        context.until_free(&two, &names[0]).await;
        context.until_free(&two, &names[2]).await;
    }
    context.release(middle).await;
    let tried = context.soon("a try answers", several.try_acquire()).await.expect("no error");
    let guards = tried.expect("all are free");
    context.soon("all are released", guards.release()).await.expect("released");
}

async fn twice(context: Arc<Context>) {
    let names = names(&context, 2);
    let locks = context.client().await;
    let given = [&names[1], &names[0], &names[1]].map(|name| locks.lock(name));
    let guards = context.soon("acquired", all(given).acquire()).await.expect("acquired");
    assert_eq!(guards[0].fencing_token(), guards[2].fencing_token());
    assert_eq!(guards[1].name().as_str(), names[0]);
    assert_eq!(guards.into_vec().len(), 2);
}

async fn reader_and_writer(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.rw_lock(&name);
    for given in [[lock.read(), lock.write()], [lock.write(), lock.read()]] {
        let guards = context.soon("acquired", all(given).acquire()).await.expect("acquired");
        assert_eq!(guards[0].mode(), Mode::Exclusive);
        assert!(!work::is_free(&context, &two, &name, How::Shared).await);
        context.soon("released", guards.release()).await.expect("released");
    }
    let readers = all([lock.read(), lock.read()]);
    let guards = context.soon("acquired", readers.acquire()).await.expect("acquired");
    assert!(work::is_free(&context, &two, &name, How::Shared).await);
    context.soon("released", guards.release()).await.expect("released");
}

async fn permits_twice(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let permits = [locks.semaphore(&name, 3), locks.semaphore(&name, 3)];
    let error = context.soon("an answer", all(permits).acquire()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
}

async fn mixed(context: Arc<Context>) {
    let names = names(&context, 3);
    let locks = context.client().await;
    let given = [
        locks.semaphore(&names[2], 3).permits(2),
        locks.rw_lock(&names[1]).read(),
        locks.lock(&names[0]),
    ];
    let guards = context.soon("acquired", all(given).acquire()).await.expect("acquired");
    let modes: Vec<_> = (0..3).map(|index| guards[index].mode().as_str()).collect();
    assert_eq!(modes, ["permits", "shared", "exclusive"]);
    context.soon("released", guards.release()).await.expect("released");
}

async fn loss_of_one(context: Arc<Context>) {
    let names = names(&context, 3);
    let one = work::client_that_renews_soon(&context).await;
    let two = context.client().await;
    let several = all(exclusively(&one, &names));
    let guards = context.soon("acquired", several.acquire()).await.expect("acquired");
    let lose = async {
        context.store().expire(&names[1]).await.expect("the store forgets it");
        let next = context.acquire(&two, &names[1]).await;
        let _next = next;
        std::future::pending::<()>().await;
    };
    let ran = Box::pin(guards.run(lose));
    let ran = context.within(context.patience() * 4, "a loss", ran).await;
    let error = ran.expect_err("one was lost");
    work::assert_kind(&error, ErrorKind::Lost);
    assert_eq!(error.lock(), Some(&*names[1]));
    assert!(!guards.is_held() && guards[0].is_held() && guards.remaining() == Duration::ZERO);
    assert_eq!(context.soon("the loss", guards.lost()).await.0.as_str(), names[1]);
}

async fn loss_while_waiting(context: Arc<Context>) {
    let names = names(&context, 2);
    let one = work::client_that_renews_soon(&context).await;
    let two = context.client().await;
    let last = context.acquire(&two, &names[1]).await;
    let waiting = spawn(all(exclusively(&one, &names)));
    context.until_queued(&two, &names[1], 1).await;
    // The next in line: acquired afterwards, it could come behind the one that begins again, which waits
    // for the other lock.
    let lock = two.lock(&names[0]);
    let next = tokio::spawn(async move { lock.acquire().await });
    context.until_queued(&two, &names[0], 1).await;
    context.store().expire(&names[0]).await.expect("the store forgets it");
    let first = context.soon("the first is acquired", next).await.expect("no panic");
    let first = first.expect("acquired");
    // It queues for the first one again, and has left the other's queue.
    context.until_queued(&two, &names[1], 0).await;
    context.until_queued(&two, &names[0], 1).await;
    let token = first.fencing_token();
    context.release(last).await;
    context.release(first).await;
    let guards = context.soon("all are acquired", waiting).await.expect("no panic");
    let guards = guards.expect("acquired");
    assert!(guards.is_held() && guards[0].fencing_token() > token);
    context.soon("released", guards.release()).await.expect("released");
}

async fn released(context: Arc<Context>) {
    let names = names(&context, 3);
    let (one, two) = (context.client().await, context.client().await);
    let several = all(exclusively(&one, &names));
    let guards = context.soon("acquired", several.acquire()).await.expect("acquired");
    context.store().expire(&names[0]).await.expect("the store forgets it");
    let next = context.acquire(&two, &names[0]).await;
    let error = context.soon("an answer", guards.release()).await.expect_err("one was lost");
    work::assert_kind(&error, ErrorKind::NotHeld);
    assert_eq!(error.lock(), Some(&*names[0]));
    assert!(next.is_held());
    for name in &names[1..] {
        assert!(work::is_free(&context, &two, name, How::Exclusive).await);
    }
    context.release(next).await;
}

async fn hold_at_most(context: Arc<Context>) {
    const LIMIT: Duration = Duration::from_millis(200);
    let names = names(&context, 2);
    let (one, two) = (context.client().await, context.client().await);
    let last = context.acquire(&two, &names[1]).await;
    let limited = all([one.lock(&names[0]).hold_at_most(LIMIT), one.lock(&names[1])]);
    let waiting = spawn(limited);
    context.until_queued(&two, &names[1], 1).await;
    // Longer than the limit, which begins when all are held.
    context.sleep_until(&one, one.now() + LIMIT * 2).await;
    let before = one.now();
    context.release(last).await;
    let guards = context.soon("all are acquired", waiting).await.expect("no panic");
    let guards = guards.expect("acquired");
    assert!(guards[0].valid_until() <= one.now() + LIMIT && guards[0].valid_until() > before);
    let (name, reason) = context.soon("the limit ends", guards.lost()).await;
    assert_eq!((name.as_str(), reason), (&*names[0], LostReason::HoldLimit));
    assert!(guards[1].is_held());
    drop(guards);
}

async fn dropped(context: Arc<Context>) {
    let names = names(&context, 2);
    let (one, two) = (context.client().await, context.client().await);
    let make = async || {
        let several = all(exclusively(&one, &names));
        ((), async move { several.acquire().await })
    };
    at_every_await(context.patience(), make, async |(), acquired| {
        drop(acquired.map(|acquired| acquired.expect("no error")));
        for name in &names {
            context.until_free(&two, name).await;
        }
    })
    .await;
}

async fn work_done(context: Arc<Context>) {
    let names = names(&context, 3);
    let (one, two) = (context.client().await, context.client().await);
    let several = all(exclusively(&one, &names));
    for wanted in [Ok(1), Err("no")] {
        let works = several.with(async |guards| {
            assert!(guards.is_held() && guards[2].name().as_str() == names[2]);
            work::assert_busy(&context, &two, &names[1]).await;
            wanted
        });
        let done = context.soon("the work is done", Box::pin(works)).await;
        assert_eq!(done.expect("held"), wanted);
        for name in &names {
            assert!(work::is_free(&context, &two, name, How::Exclusive).await);
        }
    }
    let last = context.acquire(&two, &names[2]).await;
    let tried = several.try_with(async |_| panic!("one of them is held"));
    assert!(context.soon("a try answers", Box::pin(tried)).await.expect("no error").is_none());
    context.release(last).await;
    context.until_free(&two, &names[0]).await;
    let tried = several.try_with(async |guards| guards.len());
    let done = context.soon("a try answers", Box::pin(tried)).await.expect("no error");
    assert_eq!(done, Some(3));
    let panicking = tokio::spawn(async move {
        several.with(async |_| std::panic::resume_unwind(Box::new("in the work"))).await
    });
    assert!(context.soon("the task ends", panicking).await.is_err());
    context.until_free(&two, &names[0]).await;
    context.until_free(&two, &names[2]).await;
}

/// By the limit of one, so that every store can.
async fn work_lost(context: Arc<Context>) {
    let names = names(&context, 2);
    let locks = context.client().await;
    let limited = locks.lock(&names[1]).hold_at_most(Duration::from_millis(100));
    let several = all([locks.lock(&names[0]), limited]);
    let works = several.with(async |_| std::future::pending::<()>().await);
    let error = context.soon("the work is dropped", Box::pin(works)).await.expect_err("lost");
    work::assert_kind(&error, ErrorKind::Lost);
    assert_eq!(error.lock(), Some(&*names[1]));
    context.until_free(&locks, &names[0]).await;
    context.until_free(&locks, &names[1]).await;
}

async fn work_dropped(context: Arc<Context>) {
    let names = names(&context, 2);
    let locks = context.client().await;
    let make = async || {
        let several = all(exclusively(&locks, &names));
        ((), async move { several.with(async |_| tokio::task::yield_now().await).await })
    };
    at_every_await(context.patience(), make, async |(), done| {
        if let Some(done) = done {
            done.expect("no error");
        }
        for name in &names {
            context.until_free(&locks, name).await;
        }
    })
    .await;
}

async fn two_stores(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, other) = (context.client().await, Memory::new());
    let other = other.locks(Default::default()).expect("a memory store");
    let several = all([locks.lock(&name), other.lock(&name)]);
    let error = context.soon("an answer", several.acquire()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    let limited = several.wait_at_most(context.patience());
    let guards = context.soon("acquired", limited.acquire()).await.expect("acquired");
    assert_eq!(guards.into_vec().len(), 2);
}

/// Ten clients, each in random orders, on accounts that lose updates without their locks.
async fn money(context: Arc<Context>) {
    const CLIENTS: usize = 10;
    const ROUNDS: usize = 8;
    let names = names(&context, 12);
    let accounts: Arc<Vec<AtomicI64>> = Arc::new(names.iter().map(|_| AtomicI64::new(0)).collect());
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let locks = context.client().await;
        let (names, accounts, mut random) = (names.clone(), accounts.clone(), context.random());
        for _ in 0..client {
            random.random::<u64>();
        }
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let mut chosen: Vec<usize> = (0..names.len()).collect();
                chosen.shuffle(&mut random);
                chosen.truncate(2 + random.random_range(0..3));
                let several = all(chosen.iter().map(|account| locks.lock(&names[*account])));
                let guards = several.acquire().await.expect("acquired");
                let moved = async {
                    let read: Vec<i64> = chosen
                        .iter()
                        .map(|account| accounts[*account].load(Ordering::Relaxed))
                        .collect();
                    tokio::task::yield_now().await;
                    let last = chosen.len() - 1;
                    for (index, account) in chosen.iter().enumerate() {
                        let change = if index == last { -(last as i64) } else { 1 };
                        accounts[*account].store(read[index] + change, Ordering::Relaxed);
                    }
                };
                guards.run(moved).await.expect("held");
                guards.release().await.expect("released");
            }
        });
    }
    context.within(context.patience() * 4, "no deadlock", tasks.join_all()).await;
    let sum: i64 = accounts.iter().map(|account| account.load(Ordering::Relaxed)).sum();
    context.assert_final(sum == 0, || format!("{sum} was lost or made: two held one account"));
}
