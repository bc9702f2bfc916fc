//! Network faults on the connections of all clients (faults 11 to 16): a loss is reported in time,
//! work continues, and nothing is left.

use fencelock_core::{ErrorKind, Liveness, RenewalPlan};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::history::Worker;
use crate::history::checker::Rules;
use crate::network_fault::{NetworkFault, NewConnections};

const GROUP: &str = "network";
const NEEDS: &[Need] = &[Need::Backdoor(Backdoor::NetworkFaults)];
const CUT: &[Need] = &[Need::Backdoor(Backdoor::NetworkFaults), Need::Silence];
const SLOW: &[Need] = &[Need::Backdoor(Backdoor::SlowReplies), Need::Silence];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    // Fault 11
    behaviour(GROUP, "a_loss_is_reported_in_time_when_one_direction_is_cut", CUT, &one_way),
    // Faults 12, 23
    behaviour(GROUP, "connection_resets_lose_no_lock_and_no_queue_place", NEEDS, &resets),
    // Fault 13
    behaviour(
        GROUP,
        "a_delay_near_the_promise_makes_no_guard_without_validity",
        SLOW,
        &near_the_promise,
    ),
    // Fault 15
    behaviour(GROUP, "garbled_replies_do_no_harm", NEEDS, &garbled),
    // Fault 16
    behaviour(GROUP, "a_flapping_link_leaves_no_orphans", NEEDS, &flapping),
    behaviour(GROUP, "a_narrow_line_only_slows_down", NEEDS, &narrow),
];

/// Either the server's replies are lost, or the requests to it.
async fn one_way(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    for direction in [NetworkFault::RequestsLost, NetworkFault::RepliesLost] {
        let lock = locks.lock(&name).ttl(SHORT_TTL);
        let guard = work::acquire_lock(&context, &lock).await;
        let until = guard.valid_until();
        context.inject_fault(direction).await;
        let bound = context.silence_frees_within(SHORT_TTL);
        context.within(bound, "the holder is notified of the loss", guard.lost()).await;
        assert!(!guard.is_held() && locks.now() >= until, "lost before its validity ended");
        context.heal().await;
        work::release_is_not_held(&context, guard).await;
        let again = context.acquire(&locks, &name).await;
        context.release(again).await;
    }
}

async fn resets(context: Arc<Context>) {
    let (kept, wanted) = (context.name("kept"), context.name("wanted"));
    let (one, two) = (context.client().await, context.client().await);
    let lock = one.lock(&kept).ttl(Duration::from_secs(6));
    let held = work::acquire_lock(&context, &lock).await;
    for _ in 0..3 {
        let blocker = context.acquire(&two, &wanted).await;
        let waiter = work::spawn_waiter(&one, &wanted, How::Exclusive);
        context.until_queued(&two, &wanted, 1).await;
        context.inject_fault(NetworkFault::ConnectionsReset).await;
        context.release(blocker).await;
        let next = context.until_granted("the waiter is granted", waiter).await;
        context.release(next).await;
    }
    let before = held.valid_until();
    if context.profile().renewal != RenewalPlan::None {
        context.until("it is renewed", async || held.valid_until() > before).await;
    }
    assert!(held.is_held(), "lost by a reset");
    context.release(held).await;
}

/// The validity of a guard is the rest of the lease when the reply arrives; after the lease there
/// is none.
async fn near_the_promise(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let promise = match context.profile().liveness {
        Liveness::Session(session) => session,
        _ => SHORT_TTL,
    };
    for percent in [60, 90, 110] {
        let delay = promise * percent / 100;
        context.inject_fault(NetworkFault::SlowReplies(delay)).await;
        let lock = locks.lock(&name).ttl(promise).wait_at_most(promise * 3);
        match context.soon("an answer", lock.acquire()).await {
            Ok(guard) => {
                let most = locks.now() + promise.saturating_sub(delay);
                assert!(percent < 100, "a guard that came {delay:?} after its request");
                assert!(guard.valid_until() <= most, "a guard without validity: {guard:?}");
            }
            Err(error) => {
                let late = [ErrorKind::Lost, ErrorKind::WaitTimedOut, ErrorKind::Unreachable];
                assert!(late.contains(&error.kind()), "after {delay:?}: {error}");
            }
        }
        context.heal().await;
        let bound = context.silence_frees_within(promise);
        let again = context.within(bound, "it is free again", locks.lock(&name).acquire()).await;
        context.release(again.expect("acquired")).await;
    }
}

/// A garbled reply may be an error for its request, and for no other.
async fn garbled(context: Arc<Context>) {
    let (kept, torn) = (context.name("kept"), context.name("torn"));
    let (one, two) = (context.client().await, context.client().await);
    let held = context.acquire(&two, &kept).await;
    for how in [NetworkFault::Garbage, NetworkFault::Torn, NetworkFault::Flipped] {
        for _ in 0..3 {
            context.inject_fault(how).await;
            if let Ok(guard) = context.soon("an answer", one.lock(&torn).acquire()).await {
                let _ = context.soon("a release ends", guard.release()).await;
            }
            let guard = context.acquire(&one, &torn).await;
            context.release(guard).await;
            context.heal().await;
        }
        context.until_free(&two, &torn).await;
    }
    // A session may expire before such a connection is given up.
    let in_session = matches!(context.profile().liveness, Liveness::Session(_));
    match held.is_held() {
        false if in_session => work::release_is_not_held(&context, held).await,
        kept => {
            assert!(kept, "lost by a garbled reply");
            context.release(held).await;
        }
    }
}

/// With leases longer than the patience: what a lost reply left would block all clients.
async fn flapping(context: Arc<Context>) {
    const FOR: Duration = Duration::from_secs(4);
    // The line is mostly up.
    const FLAPPING: NetworkFault =
        NetworkFault::Flapping { down: Duration::from_millis(330), new: NewConnections::Closed };
    let name = context.name("lock");
    let mut clients = Vec::new();
    for _ in 0..2 {
        let long = context.longest_ttl().min(context.patience() * 4);
        clients.push(context.client_with(|params| params.ttl = long).await);
    }
    context.inject_fault(FLAPPING).await;
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for locks in clients.iter().cycle().take(4) {
        let (locks, name) = (locks.clone(), name.clone());
        workers.spawn(async move {
            let (mut worker, mut grants) = (Worker::new(), 0);
            while began.elapsed() < FOR {
                // What was not granted, and whether a release worked, is in the history.
                if let Ok((guard, claim)) = worker.acquire(&locks, &name, How::Exclusive).await {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let _ = worker.release(guard, &claim).await;
                    grants += 1;
                }
            }
            (worker.into_events(), grants)
        });
    }
    tokio::time::sleep(FOR).await;
    context.heal().await;
    let bound = context.patience() * 2;
    let worked = context.within(bound, "all work is done", workers.join_all()).await;
    let grants: u32 = worked.iter().map(|(_, grants)| grants).sum();
    assert!(grants > 3, "{grants} grants in {FOR:?} on a link that is mostly up");
    let events = worked.into_iter().flat_map(|(events, _)| events).collect();
    context.assert_history(events, Rules::default());
    context.until_free(&clients[0], &name).await;
}

async fn narrow(context: Arc<Context>) {
    let name = context.name("lock");
    let clients = vec![context.client().await, context.client().await];
    context.inject_fault(NetworkFault::Narrow).await;
    let events = work::contend(&context, clients, &name, 5, |_| How::Exclusive).await;
    work::assert_history(&context, events);
    context.heal().await;
}
