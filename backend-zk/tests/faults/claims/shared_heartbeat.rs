//! Hundreds of claims in one session whose heartbeats fail: they share each heartbeat, also one that
//! fails, and each of them gets what the session promises.

use std::collections::HashSet;

use fencelock_core::{Guard, Locks, Result};
use fencelock_testkit::proxy::Direction;
use fencelock_zk::zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};
use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::*;

/// Of holders, and of waiters, each for a lock of its own. One session can watch for all of them.
const EACH: usize = 250;

/// The claims of one client, and the nodes that block its waiters.
struct Claims {
    locks: Locks,
    held: Vec<Guard>,
    waiting: Vec<JoinHandle<Result<Guard>>>,
    blocking: Vec<String>,
}

impl Claims {
    async fn in_one_session(testbed: &Testbed) -> Claims {
        let locks = testbed.behind_for_long().await;
        let blocking = join_all((0..EACH).map(async |n| {
            let lock = format!("{}/wanted-{n}", testbed.root);
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            testbed.client.create(&lock, b"", &options).await.expect("the lock's node");
            let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let prefix = format!("{lock}/_c_0-lock-");
            let (_, sequence) = testbed.client.create(&prefix, b"", &options).await.expect("held");
            format!("{prefix}{sequence}")
        }));
        let blocking = soon("all wanted locks are held", blocking).await;
        let waiting = (0..EACH).map(|n| spawn_waiter(&locks, &format!("wanted-{n}"))).collect();
        let holding = join_all((0..EACH).map(|n| spawn_waiter(&locks, &format!("own-{n}"))));
        let held = soon("all own locks are held", holding).await;
        let held = held.into_iter().map(|held| held.expect("no panic").expect("granted")).collect();
        let claims = Claims { locks, held, waiting, blocking };
        until("all nodes are watched", async || testbed.watches().await.len() == 3 * EACH).await;
        claims.assert_one_session(testbed).await;
        claims
    }

    async fn assert_one_session(&self, testbed: &Testbed) {
        let names = (0..EACH).flat_map(|n| [format!("own-{n}"), format!("wanted-{n}")]);
        let owners = join_all(names.map(async |name| {
            let own = testbed.nodes(&name).await.pop().expect("a node");
            testbed.stat(&own).await.expect("it exists").ephemeral_owner
        }));
        let owners: HashSet<i64> = soon("all nodes are there", owners).await.into_iter().collect();
        assert_eq!(owners.len(), 1, "the claims are in several sessions");
    }

    fn assert_kept(&self) {
        assert!(self.held.iter().all(Guard::is_held), "a lock is lost");
        self.assert_waiting();
    }

    fn assert_waiting(&self) {
        assert!(!self.waiting.iter().any(JoinHandle::is_finished), "a waiter does not wait");
    }

    /// Awaits a renewal of every held lock.
    async fn until_renewed(&self) {
        let before: Vec<_> = self.held.iter().map(Guard::valid_until).collect();
        until("all holds are renewed", async || {
            self.assert_kept();
            self.held.iter().zip(&before).all(|(guard, before)| guard.valid_until() > *before)
        })
        .await;
    }

    /// Gives the waiters their turn, and awaits all grants.
    async fn unblock(&mut self, testbed: &Testbed) {
        let unblocking = self.blocking.iter().map(|node| testbed.client.delete(node, None));
        for deleted in soon("all wanted locks are free", join_all(unblocking)).await {
            deleted.expect("deleted");
        }
        let granting = join_all(self.waiting.drain(..));
        let granted = soon("all waiters are granted", granting).await;
        self.held.extend(granted.into_iter().map(|held| held.expect("no panic").expect("granted")));
    }
}

/// What all requests of `claims` cost while `act` runs.
async fn counted(testbed: &Testbed, act: impl AsyncFnOnce()) -> u64 {
    let before = testbed.proxy.stats().requests;
    act().await;
    testbed.proxy.stats().requests - before
}

/// The servers answer each heartbeat at once, and refuse it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_one_session_share_each_refused_heartbeat() {
    let testbed = Testbed::start().await;
    let mut claims = Claims::in_one_session(&testbed).await;
    let no_read = Permission::CREATE | Permission::DELETE | Permission::ADMIN;
    let set_rights = async |rights| {
        testbed.client.set_acl(&testbed.root, &[Acl::new(rights, AuthId::anyone())], None).await
    };
    claims.until_renewed().await;
    set_rights(no_read).await.expect("set");
    let requests = counted(&testbed, async || sleep(T * 5 / 4).await).await;
    println!("{requests} requests of {} claims for refused heartbeats", 2 * EACH);
    claims.assert_kept();
    set_rights(Permission::ALL).await.expect("set");
    claims.until_renewed().await;
    // Renewals are repeated each T/40, and checks each second, in groups that share a heartbeat; and
    // a refusal makes each waiter list. With a heartbeat for each claim it would be thousands.
    assert!((5..4 * EACH as u64).contains(&requests), "{requests} requests");
    claims.unblock(&testbed).await;
    for guard in claims.held {
        release(guard).await;
    }
}

/// Row 10. The heartbeats are not answered at all: first for a time that the session survives, and
/// then for longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_one_session_share_each_unanswered_heartbeat() {
    let testbed = Testbed::start().await;
    let mut claims = Claims::in_one_session(&testbed).await;
    let session = T * 4;
    claims.until_renewed().await;
    // The server receives all requests, so they can be counted, and keeps the session.
    let requests = counted(&testbed, async || {
        testbed.proxy.stall(Direction::ToClient);
        sleep(session * 3 / 10).await;
    });
    let requests = requests.await;
    println!("{requests} requests of {} claims for unanswered heartbeats", 2 * EACH);
    claims.assert_kept();
    testbed.proxy.heal().await.unwrap();
    claims.until_renewed().await;
    assert!((1..20).contains(&requests), "{requests} requests");

    both_ways(|direction| testbed.proxy.black_hole(direction));
    let cut = claims.locks.now();
    soon("all holders are notified", join_all(claims.held.iter().map(Guard::lost))).await;
    claims.held.iter().for_each(|guard| assert_ends_in_time(guard, cut, session));
    assert!(!claims.held.iter().any(Guard::is_held));
    let nodes_of_each = async |count: usize| {
        let wanted = (0..EACH).map(async |n| testbed.nodes(&format!("wanted-{n}")).await.len());
        join_all(wanted).await.iter().all(|nodes| *nodes == count)
    };
    until("the servers have ended the session", async || nodes_of_each(1).await).await;
    claims.assert_waiting();
    let healed = counted(&testbed, async || {
        testbed.proxy.heal().await.unwrap();
        // Each queues again, in a new session, before its turn comes.
        until("all waiters are queued again", async || nodes_of_each(2).await).await;
        until("their nodes are watched", async || testbed.watches().await.len() == 2 * EACH).await;
    });
    let healed = healed.await;
    println!("{healed} requests of {EACH} waiters to queue again");
    // A create, two watches and a part of a list for each.
    assert!(healed < 5 * EACH as u64, "{healed} requests");
    claims.assert_waiting();
    claims.held.clear();
    claims.unblock(&testbed).await;
    for guard in claims.held {
        release(guard).await;
    }
    release(acquire(&claims.locks, "own-0").await).await;
}
