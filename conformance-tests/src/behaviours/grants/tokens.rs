//! Fencing tokens: they protect the resource when everything else has failed (invariant 5).

use fencelock_core::{FencingToken, RenewalPlan};

use crate::behaviours::prelude::*;
use crate::behaviours::work::{BRIEFLY, SHORT_TTL};
use crate::history::checker::Rules;
use crate::history::{ClaimId, What, Worker};
use crate::processes::register::ProtectedRegister;

const GROUP: &str = "tokens";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "tokens_of_exclusive_grants_rise", &[], &rise),
    behaviour(GROUP, "tokens_rise_across_losses", &[], &losses),
    behaviour(GROUP, "tokens_rise_after_all_clients_have_left", &[], &all_left),
    behaviour(GROUP, "tokens_rise_over_other_modes", &[], &modes),
    behaviour(GROUP, "tokens_of_shared_grants_are_unique", &[Need::Shared], &|c| {
        unique(c, How::Shared)
    }),
    behaviour(GROUP, "tokens_of_permits_are_unique", &[Need::Permits], &|c| {
        unique(c, How::Permits { n: 1, limit: 8 })
    }),
    behaviour(GROUP, "a_token_stays_the_same_for_the_whole_grant", &[], &constant),
    behaviour(GROUP, "a_later_epoch_beats_every_token", &[], &epochs),
    behaviour(GROUP, "a_stale_write_is_rejected", &[], &register),
    // Faults 17, 25
    behaviour(GROUP, "tokens_rise_when_the_store_loses_its_data", LOSES, &data),
];

const LOSES: &[Need] = &[Need::TokensBeyondData, Need::Backdoor(Backdoor::LoseData)];

fn assert_rises(context: &Context, last: &mut Option<FencingToken>, next: FencingToken) {
    let rises = Some(next) > *last && i64::from(next) > 0;
    let earlier = last.map_or(0, i64::from);
    context.assert_final(rises, || format!("token {next} was granted after token {earlier}"));
    *last = Some(next);
}

async fn rise(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let mut last = None;
    for locks in [&one, &two, &two, &one, &one] {
        let guard = context.acquire(locks, &name).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        let waiter = work::spawn_waiter(locks, &name, How::Exclusive);
        context.until_queued(locks, &name, 1).await;
        context.release(guard).await;
        let guard = context.until_granted("the waiter is granted", waiter).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        drop(guard);
    }
}

async fn losses(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let mut last = None;
    for locks in [&one, &two, &one] {
        let lock = locks.lock(&name).hold_at_most(BRIEFLY);
        let guard = work::acquire_lock(&context, &lock).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        work::until_lost(&context, &guard).await;
        let lease = Duration::from_millis(100);
        let lock = locks.lock(&name).fixed_lease(lease);
        let guard = context.soon("acquired", work::in_time(&lock, lease)).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        work::until_lost(&context, &guard).await;
        let guard = context.acquire(locks, &name).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        let seen = context.soon("inspect answers", one.inspect(&name)).await.expect("answers");
        for holder in seen.holders {
            two.evict(&name, &holder.id).await.expect("evicted");
        }
        drop(guard);
    }
}

/// A counter in the lock's own key restarts with the next client.
async fn all_left(context: Arc<Context>) {
    let name = context.name("lock");
    let mut last = None;
    for _ in 0..3 {
        let locks = context.connect(&context.params()).await;
        let guard = context.acquire(&locks, &name).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        context.release(guard).await;
        context.soon("the last client closes", locks.close()).await.expect("closed");
    }
}

async fn modes(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let modes = context.profile().modes;
    let mut last = None;
    let others = [
        modes.shared.then_some(How::Shared),
        modes.permits.then_some(How::Permits { n: 1, limit: 2 }),
    ];
    for other in others.into_iter().flatten().chain([How::Exclusive]) {
        let guard = context.acquire(&locks, &name).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        context.release(guard).await;
        let guard = work::acquire(&context, &locks, &name, other).await;
        context.release(guard).await;
    }
}

async fn unique(context: Arc<Context>, how: How) {
    let (name, one, two) = context.lock_of_two().await;
    let clients = (0..8).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let events = work::contend(&context, clients.collect(), &name, 20, |_| how).await;
    work::assert_history(&context, events);
}

async fn constant(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    let (token, until) = (guard.fencing_token(), guard.valid_until());
    if context.profile().renewal != RenewalPlan::None {
        context.until("it is renewed", async || guard.valid_until() > until).await;
    }
    assert_eq!(guard.fencing_token(), token);
    let seen = context.soon("inspect answers", locks.inspect(&name)).await.expect("answers");
    if let Some(known) = seen.holders.first().and_then(|holder| holder.token) {
        assert_eq!(known, token, "inspect shows another token");
    }
    drop(guard);
}

async fn epochs(context: Arc<Context>) {
    let name = context.name("lock");
    let mut last = None;
    for epoch in [0, 1, 2, 127] {
        let locks = context.client_with(|params| params.token_epoch = epoch).await;
        for _ in 0..2 {
            let guard = context.acquire(&locks, &name).await;
            let token = guard.fencing_token();
            assert_rises(&context, &mut last, token);
            assert_eq!(token.get() >> 56, u64::from(epoch), "the epoch is not on top");
            context.release(guard).await;
        }
    }
}

/// A holder that ignores its loss: the register that checks rejects it; the one that does not
/// shows the damage, which proves that the case is real.
async fn register(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let (checking, trusting) = (ProtectedRegister::checking(), ProtectedRegister::trusting());
    let (mut old, mut new) = (Worker::new(), Worker::new());
    let lock = one.lock(&name).hold_at_most(BRIEFLY);
    let acquired = old.acquire_lock(&lock, &name, How::Exclusive);
    let (stale, first) = context.soon("acquired", acquired).await.expect("acquired");
    work::until_lost(&context, &stale).await;
    old.observe(&stale, &first);
    let acquired = new.acquire(&two, &name, How::Exclusive);
    let (guard, second) = context.soon("acquired", acquired).await.expect("acquired");
    let write = |worker: &mut Worker, claim: &ClaimId, token: FencingToken, value| {
        let token = token.get();
        trusting.write(token, value);
        let accepted = checking.write(token, value);
        worker.record(claim, What::Wrote { token, accepted });
        accepted
    };
    assert!(write(&mut new, &second, guard.fencing_token(), 2));
    let is_refused = !write(&mut old, &first, stale.fencing_token(), 1);
    context.assert_final(is_refused, || "a stale write was accepted".to_owned());
    assert!(write(&mut new, &second, guard.fencing_token(), 3));
    assert_eq!((checking.read(), checking.stale_writes()), (3, 0));
    assert_eq!(trusting.stale_writes(), 1, "this test cannot show a lost update");
    let released = new.release(guard, &second);
    context.soon("released", released).await.expect("released");
    let events = old.into_events().into_iter().chain(new.into_events()).collect();
    context.assert_history(events, Rules::default());
}

async fn data(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let mut last = None;
    for _ in 0..3 {
        let lock = locks.lock(&name).ttl(work::SHORT_TTL);
        let guard = work::acquire_lock(&context, &lock).await;
        assert_rises(&context, &mut last, guard.fencing_token());
        context.store().lose_data().await.expect("the data is lost");
        work::until_lost(&context, &guard).await;
    }
}
