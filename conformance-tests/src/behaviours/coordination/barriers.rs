//! Barriers: nobody passes before all have arrived, round after round.

use std::sync::atomic::{AtomicU32, Ordering};

use fencelock_core::{Barrier, ErrorKind, Result, Trip};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::behaviours::prelude::*;

const GROUP: &str = "barriers";
const NEEDS: &[Need] = &[Need::Cells];
const LOSE_REPLY: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::LoseReply)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "nobody_passes_before_all_have_arrived", NEEDS, &together),
    behaviour(GROUP, "a_party_that_arrives_again_counts_once", NEEDS, &again),
    behaviour(GROUP, "an_arrival_whose_reply_was_lost_counts_once", LOSE_REPLY, &lost_replies),
    behaviour(GROUP, "a_party_that_gave_up_is_waited_for_again", NEEDS, &gave_up),
    behaviour(GROUP, "a_party_that_has_passed_before_can_give_up", NEEDS, &gave_up_later),
    behaviour(GROUP, "a_dropped_arrival_is_withdrawn", NEEDS, &dropped),
    behaviour(GROUP, "other_parties_are_refused_and_named", NEEDS, &parties),
    behaviour(GROUP, "a_removed_barrier_is_told", NEEDS, &removed),
    behaviour(GROUP, "a_barrier_of_one_is_no_barrier", NEEDS, &alone),
];

fn arrive(barrier: &Barrier) -> JoinHandle<Result<Trip>> {
    let barrier = barrier.clone();
    tokio::spawn(async move { barrier.arrive_and_wait().await })
}

async fn passed(context: &Context, arrived: JoinHandle<Result<Trip>>) -> u64 {
    let passed = context.soon("all pass", arrived).await.expect("no panic");
    passed.expect("passed").generation()
}

async fn remove(context: &Context, barrier: &Barrier) {
    context.soon("it is removed", barrier.remove()).await.expect("removed");
}

/// Awaits that so many wait at the barrier.
async fn until_arrived(context: &Context, barrier: &Barrier, count: u32) {
    let what = format!("{count} have arrived");
    context.until(&what, async || barrier.arrived().await.expect("an answer") == count).await;
}

async fn together(context: Arc<Context>) {
    const PARTIES: u32 = 6;
    const ROUNDS: u32 = 8;
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let locks = context.client().await;
        for _ in 0..PARTIES / 2 {
            let (barrier, arrived) = (locks.barrier("phase", PARTIES), inside.clone());
            tasks.spawn(async move {
                for round in 1..=ROUNDS {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let trip = barrier.arrive_and_wait().await.expect("passed");
                    let arrived = arrived.load(Ordering::SeqCst);
                    assert_eq!(trip.generation(), u64::from(round));
                    assert!(arrived >= round * PARTIES, "{arrived} had arrived in round {round}");
                    assert!(arrived < (round + 1) * PARTIES, "{arrived} in round {round}");
                }
            });
        }
    }
    context.within(context.patience() * 4, "all rounds are over", tasks.join_all()).await;
    remove(&context, &context.client().await.barrier("phase", PARTIES)).await;
}

async fn again(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 2), two.barrier("phase", 2));
    let waiting = [&here, &there, &here].map(|barrier| {
        let barrier = barrier.clone();
        tokio::spawn(async move { barrier.arrive_as("worker-1").await })
    });
    until_arrived(&context, &here, 1).await;
    let last = context.soon("the other arrives", there.arrive_as("worker-2")).await;
    assert_eq!(last.expect("passed").generation(), 1);
    // Those that had arrived by then pass; one that came after it is in the next round.
    let mut rounds = Vec::new();
    for waiting in waiting {
        if waiting.is_finished() {
            rounds.push(passed(&context, waiting).await);
        } else {
            waiting.abort();
        }
    }
    assert!(rounds.iter().all(|round| *round == 1));
    remove(&context, &here).await;
}

async fn lost_replies(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 2), two.barrier("phase", 2));
    for round in 1..=4 {
        let other = arrive(&there);
        context.inject_fault(NetworkFault::ReplyDropped).await;
        let trip = context.soon("passed", here.arrive_and_wait()).await.expect("passed");
        context.heal().await;
        context.assert_final(trip.generation() == round, || format!("{trip:?} in round {round}"));
        assert_eq!(passed(&context, other).await, round);
    }
    remove(&context, &here).await;
}

async fn gave_up(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 2), two.barrier("phase", 2));
    let limited = here.clone().wait_at_most(Duration::from_millis(50));
    let error = context.soon("it gives up", limited.arrive_and_wait()).await.expect_err("alone");
    work::assert_kind(&error, ErrorKind::WaitTimedOut);
    assert!(error.to_string().contains("not all of 2 parties"), "{error}");
    let first = arrive(&there);
    until_arrived(&context, &here, 1).await;
    assert!(!first.is_finished(), "it passed with one that gave up");
    assert_eq!(passed(&context, arrive(&here)).await, 1);
    assert_eq!(passed(&context, first).await, 1);
    remove(&context, &here).await;
}

/// The barrier remembers it from the round before, in which it has passed under the same name.
async fn gave_up_later(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 2), two.barrier("phase", 2));
    let limited = here.clone().wait_at_most(Duration::from_millis(50));
    for round in 1..=3 {
        let both = async { tokio::join!(here.arrive_as("one"), there.arrive_as("two")) };
        let (first, second) = context.soon("both pass", both).await;
        let passed = [first, second].map(|trip| trip.expect("passed").generation());
        assert_eq!(passed, [round; 2]);
        let gave_up = context.soon("it gives up", limited.arrive_as("one")).await;
        work::assert_kind(&gave_up.expect_err("alone"), ErrorKind::WaitTimedOut);
        assert_eq!(there.arrived().await.expect("an answer"), 0, "it counts, and has given up");
    }
    remove(&context, &here).await;
}

async fn dropped(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 3), two.barrier("phase", 3));
    let staying = arrive(&there);
    until_arrived(&context, &there, 1).await;
    for polls in 0..8 {
        let client = context.client().await;
        let barrier = client.barrier("phase", 3);
        // It waits for the others after a few polls, and is dropped there.
        let dropped = crate::cancel_points::DroppedAfter::polls(polls, barrier.arrive_and_wait());
        let done = timeout(Duration::from_millis(30), dropped).await;
        assert!(matches!(done, Ok(None) | Err(_)), "only two of three are there: {done:?}");
        // The withdrawal is made in the background; until then the arrival may be on its way, and counts once it
        // is there. `close` waits for both.
        context.soon("the client closes", client.close()).await.expect("closed");
        until_arrived(&context, &there, 1).await;
    }
    let leaving = arrive(&here);
    until_arrived(&context, &there, 2).await;
    leaving.abort();
    until_arrived(&context, &there, 1).await;
    let (third, fourth) = (arrive(&there), context.client().await.barrier("phase", 3));
    until_arrived(&context, &there, 2).await;
    assert!(!staying.is_finished() && !third.is_finished(), "a dropped one still counts");
    assert_eq!(passed(&context, arrive(&fourth)).await, 1);
    assert_eq!(passed(&context, staying).await, 1);
    assert_eq!(passed(&context, third).await, 1);
    remove(&context, &there).await;
}

async fn parties(context: Arc<Context>) {
    let locks = context.client().await;
    let barrier = locks.barrier("phase", 2);
    let waiting = arrive(&barrier);
    until_arrived(&context, &barrier, 1).await;
    let other = locks.barrier("phase", 3);
    let error = context.soon("an answer", other.arrive_and_wait()).await.expect_err("refused");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    let error = error.to_string();
    assert!(error.contains("for 2 parties, not 3"), "{error}");
    for wrong in [0, 513] {
        let error = locks.barrier("other", wrong).arrive_and_wait().await.expect_err("range");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
    assert_eq!(passed(&context, arrive(&barrier)).await, 1);
    assert_eq!(passed(&context, waiting).await, 1);
    remove(&context, &barrier).await;
}

async fn removed(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.barrier("phase", 3), two.barrier("phase", 3));
    let waiting = arrive(&there);
    until_arrived(&context, &here, 1).await;
    remove(&context, &here).await;
    let ended = context.soon("the waiter is told", waiting).await.expect("no panic");
    work::assert_kind(&ended.expect_err("removed"), ErrorKind::Lost);
}

async fn alone(context: Arc<Context>) {
    let barrier = context.client().await.barrier("phase", 1);
    for round in 1..=3 {
        assert_eq!(passed(&context, arrive(&barrier)).await, round);
    }
    remove(&context, &barrier).await;
}
