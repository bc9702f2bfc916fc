//! No two clients hold a lock together in modes that exclude each other (invariant 1).

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::history::{What, Worker};

const GROUP: &str = "exclusion";
const LEASE: &[Need] = &[Need::Lease];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "clients_exclude_each_other", &[], &clients),
    behaviour(GROUP, "a_held_lock_is_busy_for_all_clients", &[], &busy),
    behaviour(GROUP, "clients_that_connected_at_different_times_exclude_each_other", LEASE, &later),
    behaviour(GROUP, "no_two_holders_overlap_under_contention", &[], &restless),
    behaviour(GROUP, "many_locks_are_contended_at_once", &[], &many),
];

async fn clients(context: Arc<Context>) {
    let name = context.name("one");
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(context.client().await);
    }
    let events = work::contend(&context, clients, &name, 30, |_| How::Exclusive).await;
    work::assert_history(&context, events);
}

/// The lock is the guard's: neither the same task, nor the same `Lock`, nor any other client gets it
/// again.
async fn busy(context: Arc<Context>) {
    let name = context.name("busy");
    let (one, two) = (context.client().await, context.client().await);
    let lock = one.lock(&name);
    let guard = work::acquire_lock(&context, &lock).await;
    let again = context.soon("a try answers", lock.try_acquire()).await.expect("a try answers");
    assert!(again.is_none(), "the same Lock was granted twice");
    work::assert_busy(&context, &one, &name).await;
    work::assert_busy(&context, &two, &name).await;
    assert!(guard.is_held());
    context.release(guard).await;
    assert!(work::is_free(&context, &two, &name, How::Exclusive).await, "released but not free");
}

/// Each client reads the end of a lease that another one wrote. A clock that begins at zero in each
/// client would make the leases of the one that connected last look ended.
async fn later(context: Arc<Context>) {
    let (name, earlier) = context.lock_of_one().await;
    context.sleep_until(&earlier, earlier.now() + SHORT_TTL * 3 / 2).await;
    let later = context.client().await;
    for (holder, other) in [(&later, &earlier), (&earlier, &later)] {
        let lock = holder.lock(&name).ttl(SHORT_TTL);
        let guard = work::acquire_lock(&context, &lock).await;
        let free = work::is_free(&context, other, &name, How::Exclusive).await;
        context.assert_final(!(free && guard.is_held()), || {
            "two clients that connected at different times both hold the lock".to_owned()
        });
        context.release(guard).await;
    }
}

/// In every mode, with tries, short waits, leases that end, drops and releases, at random.
async fn restless(context: Arc<Context>) {
    let name = context.name("lock");
    let modes = context.profile().modes;
    let mut ways = vec![How::Exclusive, How::Exclusive];
    ways.extend(modes.shared.then_some(How::Shared));
    ways.extend(modes.permits.then_some(How::Permits { n: 2, limit: 3 }));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let locks = context.client().await;
        let mut random = StdRng::seed_from_u64(context.seed() ^ task);
        let (name, ways) = (name.clone(), ways.clone());
        tasks.spawn(async move {
            let mut worker = Worker::new();
            for _ in 0..40 {
                let how = ways[random.random_range(0..ways.len())];
                let mut lock = how.lock(&locks, &name);
                if random.random_bool(0.4) {
                    lock = lock.wait_at_most(Duration::from_millis(random.random_range(0..5)));
                }
                if random.random_bool(0.2) {
                    lock = lock.hold_at_most(Duration::from_millis(random.random_range(1..4)));
                }
                let Ok((guard, claim)) = worker.acquire_lock(&lock, &name, how).await else {
                    continue;
                };
                if random.random_bool(0.3) {
                    sleep(Duration::from_millis(random.random_range(1..4))).await;
                }
                worker.observe(&guard, &claim);
                if random.random_bool(0.5) {
                    // Possibly lost meanwhile, which is not an error here.
                    let _ = worker.release(guard, &claim).await;
                } else {
                    worker.record(&claim, What::ReleaseInvoked);
                    drop(guard);
                }
            }
            worker.into_events()
        });
    }
    let events = context.within(context.patience() * 2, "all work is done", tasks.join_all()).await;
    work::assert_history(&context, events.into_iter().flatten().collect());
}

/// More contended locks at once than other libraries' pools of subscriptions had (redisson #3577).
async fn many(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let mut tasks = JoinSet::new();
    for index in 0..300 {
        let name = context.name(&format!("lock {index}"));
        for locks in [one.clone(), two.clone()] {
            let name = name.clone();
            tasks.spawn(async move {
                let guard = locks.lock(name).acquire().await.expect("acquired");
                tokio::task::yield_now().await;
                guard.release().await.expect("released");
            });
        }
    }
    context.within(context.patience() * 2, "every task had its lock", tasks.join_all()).await;
}
