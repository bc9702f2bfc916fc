//! Local hand-offs when the grant that they share is lost, with its process, in the store, or with the
//! store's data: the store frees it as any other, and those who still wait lose nothing but time.

use fencelock_core::{FencingToken, Lock, LostReason};
use tokio::task::{JoinHandle, JoinSet};

use super::handoffs::{MOST, acquire, lock, settle};
use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::processes::peer::PeerError;
use crate::processes::peer::protocol::Want;
use crate::suite::waiting::spawn_waiter;
use crate::time::frozen_runtime::FrozenRuntime;

const GROUP: &str = "lost_handoffs";
const NEEDS: &[Need] = &[Need::LocalHandoffs];
const EXPIRE: &[Need] = &[Need::LocalHandoffs, Need::Backdoor(Backdoor::Expire)];
const SILENCE: &[Need] = &[Need::LocalHandoffs, Need::Silence];
const PROCESSES: &[Need] = &[Need::LocalHandoffs, Need::Backdoor(Backdoor::Processes)];
const LOSES: &[Need] =
    &[Need::LocalHandoffs, Need::TokensBeyondData, Need::Backdoor(Backdoor::LoseData)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_loss_ends_the_turn_and_keeps_the_waiters", EXPIRE, &lost),
    behaviour(GROUP, "an_evicted_tenure_is_lost", NEEDS, &evicted),
    behaviour(GROUP, "a_killed_process_frees_its_tenure", PROCESSES, &killed),
    behaviour(GROUP, "a_frozen_client_hands_on_nothing_after_its_thaw", SILENCE, &frozen),
    behaviour(GROUP, "tokens_rise_over_hand_offs_when_the_store_loses_its_data", LOSES, &data),
];

/// The last token that the store has reserved for the tenure whose first turn has this one.
fn last_reserved(context: &Context, first: FencingToken, most: u32) -> u64 {
    first.get() + u64::from(most.min(context.profile().max_local_handoffs)) - 1
}

fn assert_above(context: &Context, token: FencingToken, earlier: u64) {
    context.assert_final(token.get() > earlier, || {
        format!("token {token} was granted after {earlier}")
    });
}

async fn lost(context: Arc<Context>) {
    let name = context.name("lock");
    let one = work::client_that_renews_soon(&context).await;
    let two = context.client().await;
    let first = acquire(&context, &one, &name).await;
    let waiter = spawn_waiter(lock(&one, &name));
    settle().await;
    context.store().expire(&name).await.expect("the store forgets it");
    let other = context.acquire(&two, &name).await;
    context.within(context.patience() * 4, "the turn is lost", first.lost()).await;
    // Also while the lost guard is still there.
    context.until_queued(&two, &name, 1).await;
    assert!(!waiter.is_finished());
    work::release_is_not_held(&context, first).await;
    let token = other.fencing_token();
    context.release(other).await;
    let waiter = context.until_granted("the waiter is granted", waiter).await;
    assert!(waiter.fencing_token() > token);
    context.release(waiter).await;
}

async fn evicted(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let wanted = lock(&one, &name).ttl(SHORT_TTL);
    let guard = context.soon("a turn", wanted.acquire()).await.expect("acquired");
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        waiters.spawn(token_of_a_turn(wanted.clone()));
    }
    settle().await;
    let seen = context.soon("inspect answers", two.inspect(&name)).await.expect("answers");
    assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "a process has one claim");
    let evicting = two.evict(&name, &seen.holders[0].id);
    let was_there = context.soon("evict answers", evicting).await.expect("evicted");
    assert!(was_there, "evict reported that there is no such participant");
    assert_eq!(work::until_lost(&context, &guard).await, LostReason::TakenAway);
    let earlier = last_reserved(&context, guard.fencing_token(), MOST);
    // Also while the lost guard is still there.
    for token in context.soon("all waiters have had their turns", waiters.join_all()).await {
        assert_above(&context, token, earlier);
    }
    work::release_is_not_held(&context, guard).await;
}

async fn token_of_a_turn(lock: Lock) -> FencingToken {
    let guard = lock.acquire().await.expect("acquired");
    let token = guard.fencing_token();
    guard.release().await.expect("released");
    token
}

async fn killed(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let peer = Arc::new(context.peer().await);
    let want = |slot| Want::Acquire {
        slot,
        name: name.clone(),
        how: How::Exclusive,
        wait_at_most: None,
        ttl: Some(SHORT_TTL),
        local_handoffs: MOST,
    };
    let first = context.soon("a process has a turn", peer.granted(want(1))).await;
    let earlier = last_reserved(&context, FencingToken::new(first.expect("acquired")), MOST);
    let of_its_own = [2, 3].map(|slot| {
        let (peer, want) = (peer.clone(), want(slot));
        tokio::spawn(async move { peer.granted(want).await })
    });
    settle().await;
    let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    // Its own waiters have no claim.
    context.until_queued(&locks, &name, 1).await;
    assert!(context.soon("it answers", peer.is_held(1)).await.expect("it answers"));
    assert!(!of_its_own.iter().any(JoinHandle::is_finished));
    peer.send_kill().expect("killed");
    for waiter in of_its_own {
        let ended = context.soon("its waiters end with it", waiter).await;
        assert_eq!(ended.expect("no panic"), Err(PeerError::Gone));
    }
    let bound = context.silence_frees_within(SHORT_TTL);
    let next = context.within(bound, "the waiter elsewhere is granted", waiter).await;
    let next = next.expect("no panic").expect("granted");
    assert_above(&context, next.fencing_token(), earlier);
    context.release(next).await;
}

/// A turn that ends too late must not begin the next one.
async fn frozen(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let frozen_runtime = FrozenRuntime::new();
    let frozen_client = context.client_on(&frozen_runtime).await;
    let wanted = lock(&frozen_client, &name).ttl(SHORT_TTL);
    let begun = frozen_runtime.run(async move {
        let first = wanted.acquire().await.expect("acquired");
        let waiter = spawn_waiter(wanted);
        settle().await;
        (first, waiter)
    });
    let (first, waiter) = context.soon("a client has a turn and a waiter", begun).await;
    let earlier = last_reserved(&context, first.fencing_token(), MOST);
    let bound = context.silence_frees_within(SHORT_TTL);
    let wanted = locks.lock(&name);
    let next = context.within(bound, "another client is granted", wanted.acquire()).await;
    let next = next.expect("granted");
    assert_above(&context, next.fencing_token(), earlier);
    // Dropped before the client's tasks continue.
    drop(first);
    let settled = frozen_runtime.run(async move {
        settle().await;
        (waiter.is_finished(), waiter)
    });
    let (has_a_turn, waiter) = context.soon("the client is thawed", settled).await;
    let is_alone = !has_a_turn && next.is_held();
    context.assert_final(is_alone, || "the turn of a lost tenure was handed on".to_owned());
    let token = next.fencing_token();
    context.release(next).await;
    let granted = frozen_runtime.run(async move {
        let last = waiter.await.expect("no panic").expect("granted");
        let token = last.fencing_token();
        last.release().await.map(|()| token)
    });
    let last = context.within(context.patience() * 4, "the waiter is granted", granted).await;
    assert_above(&context, last.expect("released"), token.get());
    let closing = frozen_runtime.run(async move { frozen_client.close().await });
    context.soon("the client closes", closing).await.expect("closed");
}

/// Turns before and after each loss; later tokens are also above those that no turn used.
async fn data(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    // As many as a store reserves at most.
    let most = context.profile().max_local_handoffs.min(1_024);
    let wanted = locks.lock(&name).local_handoffs(most).ttl(SHORT_TTL);
    let mut earlier = 0;
    for _ in 0..3 {
        let first = context.soon("a turn", wanted.acquire()).await.expect("acquired");
        let token = first.fencing_token();
        assert_above(&context, token, earlier);
        let waiter = spawn_waiter(wanted.clone());
        settle().await;
        context.release(first).await;
        let second = context.until_granted("the waiter has its turn", waiter).await;
        assert_above(&context, second.fencing_token(), token.get());
        // On a busy machine it may be the first one of another tenure.
        let last = last_reserved(&context, token, most);
        earlier = match second.fencing_token().get() <= last {
            true => last,
            false => last_reserved(&context, second.fencing_token(), most),
        };
        context.store().lose_data().await.expect("the data is lost");
        work::until_lost(&context, &second).await;
    }
}
