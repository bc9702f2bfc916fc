//! A writer becomes a reader, with no moment in which it is neither.

use std::sync::atomic::{AtomicU32, Ordering};

use fencelock_core::{ErrorKind, Guard, Locks, Mode, Operation, Owner, Snapshot};
use futures_util::FutureExt;

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::cancel_points::DroppedAfter;
use crate::suite::waiting::{assert_kind, spawn_waiter};

const GROUP: &str = "downgrade";
const NEEDS: &[Need] = &[Need::Downgrade];
const IN_ORDER: &[Need] = &[Need::Downgrade, Need::Arrival];
const EXPIRE: &[Need] = &[Need::Downgrade, Need::Backdoor(Backdoor::Expire)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_downgraded_writer_lets_readers_in", NEEDS, &readers),
    behaviour(GROUP, "a_downgraded_writer_keeps_writers_out", NEEDS, &writers),
    behaviour(GROUP, "readers_that_wait_are_let_in_at_once", NEEDS, &waiting),
    behaviour(GROUP, "readers_behind_a_waiting_writer_stay_out", IN_ORDER, &behind),
    behaviour(GROUP, "no_writer_comes_between_under_stress", NEEDS, &stress),
    behaviour(GROUP, "a_downgrade_keeps_the_token", NEEDS, &token),
    behaviour(
        GROUP,
        "a_downgraded_guard_is_renewed",
        &[Need::Downgrade, Need::Lease, Need::Renewal],
        &renewed,
    ),
    behaviour(
        GROUP,
        "a_downgrade_whose_reply_was_lost_is_found_again",
        &[Need::Downgrade, Need::Backdoor(Backdoor::LoseReply)],
        &reply,
    ),
    behaviour(
        GROUP,
        "an_unanswered_downgrade_counts_as_reading",
        &[Need::Downgrade, Need::Backdoor(Backdoor::CutOff)],
        &unanswered,
    ),
    behaviour(GROUP, "a_downgrade_dropped_anywhere_leaves_nothing_after_release", NEEDS, &dropped),
    behaviour(GROUP, "a_downgrade_after_a_loss_is_a_loss", EXPIRE, &lost),
    behaviour(GROUP, "a_second_downgrade_changes_nothing", NEEDS, &twice),
    behaviour(GROUP, "other_guards_have_no_downgrade", &[], &others),
    behaviour(GROUP, "an_owner_downgrades_its_only_guard", NEEDS, &owner),
    behaviour(GROUP, "a_downgraded_writer_is_shown_as_a_reader", NEEDS, &shown),
    behaviour(GROUP, "a_downgraded_writer_can_be_evicted", NEEDS, &evicted),
];

async fn write(context: &Context, locks: &Locks, name: &str) -> Guard {
    let lock = locks.rw_lock(name).write();
    context.soon("a writer acquires it", lock.acquire()).await.expect("acquired")
}

async fn read(context: &Context, locks: &Locks, name: &str) -> Guard {
    let lock = locks.rw_lock(name).read();
    context.soon("a reader acquires it", lock.acquire()).await.expect("acquired")
}

async fn downgrade(context: &Context, guard: &Guard) {
    context.soon("the downgrade is confirmed", guard.downgrade()).await.expect("downgraded");
    assert!(guard.is_held() && guard.mode() == Mode::Shared);
}

async fn readers(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    assert!(!work::is_free(&context, &two, &name, How::Shared).await, "a writer is alone");
    downgrade(&context, &writer).await;
    assert!(work::is_free(&context, &two, &name, How::Shared).await, "a try gets in");
    let reader = read(&context, &two, &name).await;
    assert!(writer.is_held() && reader.is_held());
    // In either order of their ends, the lock is free after the second.
    context.release(writer).await;
    assert!(!work::is_free(&context, &one, &name, How::Exclusive).await, "a reader is left");
    context.release(reader).await;
    assert!(work::is_free(&context, &one, &name, How::Exclusive).await);
}

async fn writers(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    downgrade(&context, &writer).await;
    assert!(!work::is_free(&context, &two, &name, How::Exclusive).await);
    let next = spawn_waiter(two.rw_lock(&name).write());
    context.until_queued(&one, &name, 1).await;
    assert!(writer.is_held());
    let token = writer.fencing_token();
    context.release(writer).await;
    let next = context.until_granted("the next writer is granted", next).await;
    assert!(next.fencing_token() > token);
    context.release(next).await;
}

async fn waiting(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, three) =
        (context.client().await, context.client().await, context.client().await);
    let writer = write(&context, &one, &name).await;
    let waiting = [&one, &two, &three, &three].map(|it| spawn_waiter(it.rw_lock(&name).read()));
    context.until_queued(&one, &name, 4).await;
    downgrade(&context, &writer).await;
    let mut readers = Vec::new();
    for waiter in waiting {
        readers.push(context.until_granted("a reader is let in", waiter).await);
    }
    assert!(writer.is_held() && readers.iter().all(Guard::is_held));
    for reader in readers {
        context.release(reader).await;
    }
    context.release(writer).await;
}

/// One client each, so that no other order of theirs is the order of arrival.
async fn behind(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, three) =
        (context.client().await, context.client().await, context.client().await);
    let holder = write(&context, &one, &name).await;
    let reading = spawn_waiter(two.rw_lock(&name).read());
    context.until_queued(&one, &name, 1).await;
    let writing = spawn_waiter(three.rw_lock(&name).write());
    context.until_queued(&one, &name, 2).await;
    let late = spawn_waiter(two.rw_lock(&name).read());
    context.until_queued(&one, &name, 3).await;
    downgrade(&context, &holder).await;
    let reader = context.until_granted("the reader ahead is let in", reading).await;
    context.until_queued(&one, &name, 2).await;
    assert!(!work::is_free(&context, &two, &name, How::Shared).await, "a try does not overtake");
    context.release(holder).await;
    context.until_queued(&one, &name, 2).await;
    context.release(reader).await;
    let writer = context.until_granted("the writer is granted", writing).await;
    context.until_queued(&one, &name, 1).await;
    context.release(writer).await;
    let late = context.until_granted("the late reader is granted", late).await;
    context.release(late).await;
}

/// Writers change a number and go on reading it: no other may have changed it meanwhile.
async fn stress(context: Arc<Context>) {
    const ROUNDS: u32 = 25;
    let name = context.name("lock");
    let number = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locks = context.client().await;
        for is_writer in [true, false] {
            let (lock, number) = (locks.rw_lock(&name), number.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let asked = if is_writer { lock.write() } else { lock.read() };
                    let guard = asked.acquire().await.expect("acquired");
                    let mine = match is_writer {
                        true => number.fetch_add(1, Ordering::SeqCst) + 1,
                        false => number.load(Ordering::SeqCst),
                    };
                    if is_writer {
                        guard.downgrade().await.expect("downgraded");
                    }
                    tokio::task::yield_now().await;
                    assert_eq!(number.load(Ordering::SeqCst), mine, "a writer came between");
                    guard.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        let ended = context.within(context.patience() * 4, "a task ends", task).await;
        ended.expect("no panic");
    }
    assert_eq!(number.load(Ordering::SeqCst), 3 * ROUNDS);
}

async fn token(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    let token = writer.fencing_token();
    downgrade(&context, &writer).await;
    assert_eq!(writer.fencing_token(), token);
    let keeps = |seen: &Snapshot| match &seen.holders[..] {
        [holder] => holder.token.is_none_or(|seen| seen == token),
        _ => false,
    };
    context.until_seen("the store has the same token", &two, &name, keeps).await;
    let reader = read(&context, &two, &name).await;
    assert!(reader.fencing_token() > token);
    context.release(writer).await;
    context.release(reader).await;
}

async fn renewed(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.rw_lock(&name).write().ttl(SHORT_TTL);
    let writer = work::acquire_lock(&context, &lock).await;
    downgrade(&context, &writer).await;
    let far = one.now() + SHORT_TTL * 2;
    context.until("it is renewed", async || writer.valid_until() > far).await;
    assert!(!work::is_free(&context, &two, &name, How::Exclusive).await);
    context.release(writer).await;
    assert!(work::is_free(&context, &two, &name, How::Exclusive).await);
}

async fn reply(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    context.inject_fault(NetworkFault::ReplyDropped).await;
    downgrade(&context, &writer).await;
    let reader = read(&context, &two, &name).await;
    context.release(writer).await;
    context.release(reader).await;
    context.until_free(&two, &name).await;
}

async fn unanswered(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    context.inject_fault(NetworkFault::CutOff).await;
    let mut asking = Box::pin(writer.downgrade());
    assert!(asking.as_mut().now_or_never().is_none(), "nobody answers");
    assert_eq!(writer.mode(), Mode::Shared, "it may have been carried out");
    drop(asking);
    assert_eq!(writer.mode(), Mode::Shared);
    context.heal().await;
    let again = context.within(context.patience() * 4, "an answer", writer.downgrade()).await;
    match again {
        Ok(()) => {
            let reader = read(&context, &two, &name).await;
            context.release(reader).await;
            context.release(writer).await;
        }
        // The silence was longer than the lease.
        Err(error) => {
            assert_kind(&error, ErrorKind::Lost);
            drop(writer);
        }
    }
    context.until_free(&two, &name).await;
}

async fn dropped(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for polls in 0.. {
        let writer = write(&context, &one, &name).await;
        let done = DroppedAfter::polls(polls, writer.downgrade()).await;
        // From whatever the store has made of it.
        match polls % 2 {
            0 => context.release(writer).await,
            _ => drop(writer),
        }
        context.until_free(&two, &name).await;
        assert!(work::is_free(&context, &two, &name, How::Exclusive).await);
        if done.is_some() {
            break;
        }
    }
}

async fn lost(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    context.store().expire(&name).await.expect("the store forgets it");
    let usurper = write(&context, &two, &name).await;
    let asked = context.within(context.patience() * 4, "an answer", writer.downgrade()).await;
    let error = asked.expect_err("it was lost");
    assert_kind(&error, ErrorKind::Lost);
    assert_eq!(error.operation(), Some(Operation::Downgrade));
    assert!(!writer.is_held() && usurper.is_held());
    assert!(!work::is_free(&context, &one, &name, How::Shared).await, "the other still writes");
    context.release(usurper).await;
}

async fn twice(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    let both = async { tokio::join!(writer.downgrade(), writer.downgrade()) };
    let (first, second) = context.soon("both answer", both).await;
    first.expect("downgraded");
    second.expect("downgraded");
    downgrade(&context, &writer).await;
    let reader = read(&context, &two, &name).await;
    reader.downgrade().now_or_never().expect("no request").expect("it reads already");
    context.release(writer).await;
    context.release(reader).await;
}

async fn others(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let error = guard.downgrade().now_or_never().expect("no request").expect_err("not a writer");
    assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("rw_lock(name).write()"), "{error}");
    assert!(guard.is_held() && guard.mode() == Mode::Exclusive);
    context.release(guard).await;
    if context.profile().modes.shared && !context.profile().downgrade {
        let writer = write(&context, &locks, &name).await;
        let error = writer.downgrade().now_or_never().expect("no request").expect_err("it cannot");
        assert_kind(&error, ErrorKind::Unsupported);
        assert_eq!(writer.mode(), Mode::Exclusive);
        context.release(writer).await;
    }
}

async fn owner(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two, owner) = (context.client().await, context.client().await, Owner::new());
    let writing = one.rw_lock(&name).write().owned_by(&owner);
    let outer = context.soon("a writer", writing.acquire()).await.expect("acquired");
    let inner = context.soon("again", writing.acquire()).await.expect("acquired");
    let error = outer.downgrade().now_or_never().expect("no request").expect_err("inner writes");
    assert_kind(&error, ErrorKind::InvalidArgument);
    assert_eq!((outer.mode(), inner.mode()), (Mode::Exclusive, Mode::Exclusive));
    context.release(inner).await;
    downgrade(&context, &outer).await;
    let error = writing.acquire().now_or_never().expect("no request").expect_err("it reads now");
    assert_kind(&error, ErrorKind::InvalidArgument);
    let reading = one.rw_lock(&name).read().owned_by(&owner);
    let again = reading.acquire().now_or_never().expect("no request").expect("it may read");
    let reader = read(&context, &two, &name).await;
    for guard in [outer, again, reader] {
        context.release(guard).await;
    }
}

async fn shown(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.rw_lock(&name).write().label("the writer");
    let writer = context.soon("a writer", lock.acquire()).await.expect("acquired");
    downgrade(&context, &writer).await;
    let reader = read(&context, &two, &name).await;
    let both_read = |seen: &Snapshot| {
        let is_labelled = |label: &fencelock_core::Label| label.as_str().contains("the writer");
        seen.holders.len() == 2
            && seen.waiters.is_empty()
            && seen.holders.iter().all(|holder| holder.mode == Mode::Shared)
            && seen.holders.iter().any(|holder| holder.label.as_ref().is_some_and(is_labelled))
    };
    context.until_seen("two readers, one with the writer's label", &two, &name, both_read).await;
    let holders = context.soon("a snapshot", two.inspect_holders(&name)).await;
    assert!(both_read(&holders.expect("seen")), "the same holders without the waiters");
    context.release(writer).await;
    context.release(reader).await;
}

async fn evicted(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let writer = write(&context, &one, &name).await;
    downgrade(&context, &writer).await;
    let seen = context.soon("a snapshot", two.inspect(&name)).await.expect("seen");
    let [holder] = &seen.holders[..] else { panic!("one holder: {seen:?}") };
    let evicted = context.soon("the eviction", two.evict(&name, &holder.id)).await;
    assert!(evicted.expect("no error"), "it was there");
    work::until_lost(&context, &writer).await;
    context.until_free(&two, &name).await;
    drop(writer);
}
