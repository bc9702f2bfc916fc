//! The guards of an owner share one hold: entered again at once, released by the last.

use fencelock_core::{ErrorKind, Guard, Locks, LostReason, Mode, Owner};
use futures_util::FutureExt;

use crate::behaviours::prelude::*;
use crate::suite::waiting::spawn_waiter;

const GROUP: &str = "owners";
const EXPIRE: &[Need] = &[Need::Backdoor(Backdoor::Expire)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(
        GROUP,
        "an_owner_enters_again_while_cut_off",
        &[Need::Backdoor(Backdoor::CutOff)],
        &cut_off,
    ),
    behaviour(GROUP, "an_owner_enters_again_past_a_waiting_writer", &[], &past_a_waiter),
    behaviour(GROUP, "the_lock_is_free_only_after_the_last_guard", &[], &last),
    behaviour(GROUP, "two_tasks_of_an_owner_ask_once", &[], &ask_once),
    behaviour(GROUP, "two_tries_of_an_owner_both_have_it", &[], &tries),
    behaviour(GROUP, "a_dropped_first_acquisition_leaves_the_second_to_ask", &[], &first_dropped),
    behaviour(GROUP, "a_loss_ends_all_guards_of_an_owner", EXPIRE, &lost),
    behaviour(GROUP, "an_owner_acquires_anew_after_a_loss", &[], &anew),
    behaviour(
        GROUP,
        "a_writer_may_read_again_and_stays_the_writer",
        &[Need::Shared],
        &writer_reads,
    ),
    behaviour(
        GROUP,
        "a_reader_of_an_owner_is_refused_the_write_at_once",
        &[Need::Shared],
        &reader_writes,
    ),
    behaviour(GROUP, "permits_have_no_owner", &[Need::Permits], &permits),
    behaviour(GROUP, "two_owners_exclude_each_other", &[], &two_owners),
    behaviour(GROUP, "an_inner_limit_ends_the_inner_guard_only", &[], &inner),
    behaviour(GROUP, "a_forgotten_inner_guard_with_a_limit_frees_the_lock", &[], &forgotten),
    behaviour(GROUP, "a_close_ends_all_guards_of_an_owner", &[], &closed),
    behaviour(GROUP, "a_wait_for_oneself_is_told", &[], &told),
];

/// A limit that is reached soon.
const LIMIT: Duration = Duration::from_millis(100);

async fn acquire(context: &Context, locks: &Locks, name: &str, owner: &Owner) -> Guard {
    let lock = locks.lock(name).owned_by(owner);
    context.soon("the owner acquires it", lock.acquire()).await.expect("acquired")
}

async fn cut_off(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let outer = acquire(&context, &locks, &name, &owner).await;
    context.inject_fault(NetworkFault::CutOff).await;
    let inner = locks.lock(&name).owned_by(&owner).acquire().now_or_never();
    let inner = inner.expect("no request is sent").expect("acquired");
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    inner.release().now_or_never().expect("no request is sent").expect("released");
    context.heal().await;
    context.release(outer).await;
}

async fn past_a_waiter(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let outer = acquire(&context, &one, &name, &owner).await;
    let waiter = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&one, &name, 1).await;
    let inner = acquire(&context, &one, &name, &owner).await;
    context.release(outer).await;
    context.until_queued(&one, &name, 1).await;
    context.release(inner).await;
    let waiter = context.until_granted("the waiter is granted", waiter).await;
    context.release(waiter).await;
}

/// In any order of releases and drops.
async fn last(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    for first in 0..3 {
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(acquire(&context, &one, &name, &owner).await);
        }
        let token = guards[0].fencing_token();
        assert!(guards.iter().all(|guard| guard.fencing_token() == token));
        drop(guards.remove(first));
        context.release(guards.remove(first % 2)).await;
        let left = guards.remove(0);
        assert!(left.is_held());
        work::assert_busy(&context, &two, &name).await;
        context.release(left).await;
        assert!(work::is_free(&context, &two, &name, How::Exclusive).await);
        assert_eq!(format!("{owner:?}"), "Owner { locks: 0 }", "it remembers nothing");
    }
}

async fn ask_once(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let holder = context.acquire(&two, &name).await;
    let waiters = [(); 4].map(|()| spawn_waiter(one.lock(&name).owned_by(&owner)));
    context.until_queued(&two, &name, 1).await;
    let lock = one.lock(&name).owned_by(&owner);
    let tried = context.soon("a try of the owner answers", lock.try_acquire()).await;
    let tried = tried.expect("no error");
    assert!(tried.is_none(), "nobody of the owner holds it");
    context.release(holder).await;
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(context.until_granted("a task of the owner has it", waiter).await);
    }
    let token = guards[0].fencing_token();
    assert!(guards.iter().all(|guard| guard.fencing_token() == token && guard.is_held()));
    for guard in guards {
        context.release(guard).await;
    }
}

async fn tries(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let lock = locks.lock(&name).owned_by(&owner);
    let both = async { tokio::join!(lock.try_acquire(), lock.try_acquire()) };
    let (one, two) = context.soon("both answer", both).await;
    let (one, two) = (one.expect("no error"), two.expect("no error"));
    let (one, two) = (one.expect("it is free"), two.expect("its owner has it"));
    assert_eq!(one.fencing_token(), two.fencing_token());
    context.release(one).await;
    context.release(two).await;
}

async fn first_dropped(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let holder = context.acquire(&two, &name).await;
    let first = spawn_waiter(one.lock(&name).owned_by(&owner));
    context.until_queued(&two, &name, 1).await;
    let second = spawn_waiter(one.lock(&name).owned_by(&owner));
    first.abort();
    let _ = context.soon("the first one ends", first).await;
    context.release(holder).await;
    let second = context.until_granted("the second one is granted", second).await;
    context.release(second).await;
}

async fn lost(context: Arc<Context>) {
    let name = context.name("lock");
    let (two, owner) = (context.client().await, Owner::new());
    let one = work::client_that_renews_soon(&context).await;
    let outer = acquire(&context, &one, &name, &owner).await;
    let inner = acquire(&context, &one, &name, &owner).await;
    let holder = take_away(&context, &two, &name).await;
    let reason = context.within(context.patience() * 4, "a guard is lost", inner.lost()).await;
    assert_eq!(context.soon("the other is lost too", outer.lost()).await, reason);
    assert!(!inner.is_held() && !outer.is_held());
    work::release_is_not_held(&context, inner).await;
    work::release_is_not_held(&context, outer).await;
    assert!(holder.is_held());
    context.release(holder).await;
}

/// The store forgets the grant, and grants it to another client.
async fn take_away(context: &Context, locks: &Locks, name: &str) -> Guard {
    context.store().expire(name).await.expect("the store forgets it");
    context.acquire(locks, name).await
}

/// By its limit, so that every store can: a hold that has ended is not joined, whatever ended it.
async fn anew(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let limited = locks.lock(&name).owned_by(&owner).hold_at_most(LIMIT);
    let stale = context.soon("the owner acquires it", limited.acquire()).await.expect("acquired");
    work::until_lost(&context, &stale).await;
    let fresh = acquire(&context, &locks, &name, &owner).await;
    assert!(fresh.is_held() && fresh.fencing_token() > stale.fencing_token());
    drop(stale);
    let again = acquire(&context, &locks, &name, &owner).await;
    assert_eq!(again.fencing_token(), fresh.fencing_token());
    context.release(fresh).await;
    context.release(again).await;
}

async fn writer_reads(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let lock = one.rw_lock(&name);
    let writing = lock.write().owned_by(&owner);
    let writer = context.soon("a writer", writing.acquire()).await.expect("acquired");
    let reading = lock.read().owned_by(&owner);
    let reader = context.soon("a reader", reading.acquire()).await.expect("acquired");
    assert_eq!(reader.mode(), Mode::Exclusive);
    context.release(writer).await;
    assert!(!work::is_free(&context, &two, &name, How::Shared).await, "the writer is held");
    context.release(reader).await;
}

async fn reader_writes(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let lock = locks.rw_lock(&name);
    let reading = lock.read().owned_by(&owner);
    let reader = context.soon("a reader", reading.acquire()).await.expect("acquired");
    let second = context.soon("a second reader", reading.acquire()).await.expect("acquired");
    let writing = lock.write().owned_by(&owner);
    let error = context.soon("an answer", writing.acquire()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(reader.is_held() && second.is_held());
    context.release(reader).await;
    context.release(second).await;
    let writer = context.soon("a writer", writing.acquire()).await.expect("acquired");
    context.release(writer).await;
}

async fn permits(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let lock = locks.semaphore(&name, 3).owned_by(&owner);
    let error = context.soon("an answer", lock.acquire()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
}

async fn two_owners(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let (one, two) = (Owner::new(), Owner::new());
    let guard = acquire(&context, &locks, &name, &one).await;
    for lock in [locks.lock(&name).owned_by(&two), locks.lock(&name)] {
        let tried = context.soon("a try answers", lock.try_acquire()).await.expect("no error");
        assert!(tried.is_none(), "granted to two owners");
    }
    let same = one.clone();
    let clone = acquire(&context, &locks, &name, &same).await;
    context.release(clone).await;
    context.release(guard).await;
}

async fn inner(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let outer = acquire(&context, &locks, &name, &owner).await;
    let limited = locks.lock(&name).owned_by(&owner).hold_at_most(LIMIT);
    let inner = context.soon("entered again", limited.acquire()).await.expect("acquired");
    assert!(inner.valid_until() <= locks.now() + LIMIT);
    assert_eq!(work::until_lost(&context, &inner).await, LostReason::HoldLimit);
    assert!(outer.is_held());
    work::release_is_not_held(&context, inner).await;
    let worked = context.soon("the outer guard works", outer.run(async { 1 })).await;
    assert_eq!(worked.expect("held"), 1);
    context.release(outer).await;
}

async fn forgotten(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let outer = acquire(&context, &one, &name, &owner).await;
    let limited = one.lock(&name).owned_by(&owner).hold_at_most(LIMIT);
    let inner = context.soon("entered again", limited.acquire()).await.expect("acquired");
    std::mem::forget(inner);
    context.release(outer).await;
    let next = context.acquire(&two, &name).await;
    context.release(next).await;
}

async fn closed(context: Arc<Context>) {
    let name = context.name("lock");
    let (locks, owner) = (context.client().await, Owner::new());
    let outer = acquire(&context, &locks, &name, &owner).await;
    let inner = acquire(&context, &locks, &name, &owner).await;
    context.soon("the client closes", locks.close()).await.expect("closed");
    for guard in [outer, inner] {
        assert_eq!(work::until_lost(&context, &guard).await, LostReason::Closed);
        work::release_is_not_held(&context, guard).await;
    }
    let lock = locks.lock(&name).owned_by(&owner);
    let error = context.soon("an answer", lock.acquire()).await.expect_err("closed");
    work::assert_kind(&error, ErrorKind::Closed);
}

async fn told(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = context.acquire(&one, &name).await;
    for limit in [Duration::ZERO, work::SHORT_WAIT] {
        let again = one.lock(&name).wait_at_most(limit);
        let error = context.soon("an answer", again.acquire()).await.expect_err("it is held");
        let token = guard.fencing_token().to_string();
        assert!(error.message().contains("this client holds it itself"), "{error}");
        assert!(error.message().contains(&token), "{error}");
        let other = two.lock(&name).wait_at_most(limit);
        let error = context.soon("an answer", other.acquire()).await.expect_err("it is held");
        assert!(!error.message().contains("itself"), "{error}");
    }
    context.release(guard).await;
}
