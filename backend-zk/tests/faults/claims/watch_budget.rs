//! More locks in one client than one session can watch through a reconnect.

use std::time::Duration;

use fencelock_core::{FencingToken, Guard, Locks};
use fencelock_testkit::proxy::Close;
use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::*;

/// For thousands of acquisitions on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// The numbers of holds and of waiters: `FENCELOCK_CLAIMS` of each, if set.
fn counts() -> (usize, usize) {
    match std::env::var("FENCELOCK_CLAIMS") {
        Ok(claims) => {
            let claims = claims.parse().expect("FENCELOCK_CLAIMS is a number");
            (claims, claims)
        }
        Err(_) => (2_000, 1_000),
    }
}

async fn hold_many(locks: &Locks, count: usize) -> Vec<Guard> {
    let holding = stream::iter(0..count).map(|at| spawn_waiter(locks, &format!("own-{at}")));
    let holding = holding.buffered(200).map(|held| held.expect("no panic").expect("granted"));
    within(LONG, "all are held", holding.collect()).await
}

/// Starts waiters in one queue that release the lock as soon as they hold it, and returns the tokens
/// of their grants, in order.
fn wait_many(locks: &Locks, count: usize) -> (JoinSet<()>, mpsc::UnboundedReceiver<FencingToken>) {
    let (granted, tokens) = mpsc::unbounded_channel();
    let mut waiters = JoinSet::new();
    for _ in 0..count {
        let (locks, granted) = (locks.clone(), granted.clone());
        waiters.spawn(async move {
            let guard = locks.lock("wanted").acquire().await.expect("granted");
            granted.send(guard.fencing_token()).expect("the test receives");
            guard.release().await.expect("released");
        });
    }
    (waiters, tokens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_holds_and_waiters_survive_every_connection_reset() {
    let testbed = Testbed::start().await;
    // Sessions that survive thousands of claims on a busy machine.
    let url = |host: &str| testbed.url(host, "").replace("session=2s", "session=20s");
    let far = connect(&url(&testbed.proxy.addr().to_string())).await;
    let near = connect(&url(&testbed.servers.connect_string())).await;
    let (holds, waits) = counts();
    let guards = hold_many(&far, holds).await;
    let blocker = acquire(&near, "wanted").await;
    let (waiters, mut granted) = wait_many(&far, waits);
    let is_queued = async || {
        while testbed.nodes("wanted").await.len() <= waits {
            sleep(ms(200)).await;
        }
    };
    within(LONG, "all are queued", is_queued()).await;
    let places = testbed.nodes("wanted").await;
    let watches = async || testbed.watches().await.len();
    let is_watched = async || {
        while watches().await < holds + waits {
            sleep(ms(200)).await;
        }
    };
    within(LONG, "all are watched", is_watched()).await;
    let connections = testbed.proxy.stats().open;
    println!("{holds} holds and {waits} waiters by {connections} connections");
    for reset in 0..rounds(4) {
        let ends: Vec<_> = guards.iter().map(Guard::valid_until).collect();
        let accepted = testbed.proxy.stats().accepted;
        testbed.proxy.close_connections(Close::Reset).await;
        let are_renewed = async || {
            while guards.iter().zip(&ends).any(|(guard, end)| guard.valid_until() <= *end) {
                let lost = guards.iter().filter(|guard| !guard.is_held()).count();
                assert_eq!(lost, 0, "lost by reset {reset}");
                sleep(ms(50)).await;
            }
        };
        within(LONG, "all are renewed", are_renewed()).await;
        let reconnects = testbed.proxy.stats().accepted - accepted;
        assert!(reconnects <= connections * 2, "{reconnects} connections after reset {reset}");
        assert_eq!(testbed.nodes("wanted").await, places, "places were lost by reset {reset}");
    }
    release(blocker).await;
    within(LONG, "all are granted", waiters.join_all()).await;
    let mut tokens = Vec::new();
    while let Some(token) = granted.recv().await {
        tokens.push(token);
    }
    assert_eq!(tokens.len(), waits);
    assert!(tokens.is_sorted(), "the queue has kept its order");
    assert!(guards.iter().all(Guard::is_held));
    soon("it closes", far.close()).await.expect("closed");
    until("no node is left", async || testbed.nodes("own-0").await.is_empty()).await;
}

/// A name of the maximal length, each character of which takes three bytes of a path.
fn long(at: usize) -> String {
    format!("{at:/>512}")
}

/// The budget counts bytes of paths, not locks; and an unused session is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_names_need_more_sessions_which_end_when_unused() {
    const HOLDS: usize = 200;
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    let names: Vec<_> = (0..HOLDS).map(long).collect();
    let guards: Vec<_> =
        stream::iter(&names).map(|name| acquire(&far, name)).buffered(20).collect().await;
    let connections = testbed.proxy.stats().open;
    println!("{HOLDS} holds by {connections} connections");
    assert!(connections > 2, "{connections} connections");
    until("all are watched", async || testbed.watches().await.len() == HOLDS).await;
    let ends: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    testbed.proxy.close_connections(Close::Reset).await;
    until("all are renewed", async || {
        assert!(guards.iter().all(Guard::is_held), "lost by a reset");
        guards.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end)
    })
    .await;
    for guard in guards {
        release(guard).await;
    }
    soon("one connection is left", testbed.proxy.connections(1)).await;
    release(acquire(&far, "short").await).await;
    assert_eq!(testbed.proxy.stats().open, 1);
    soon("it closes", far.close()).await.expect("closed");
    soon("no connection is left", testbed.proxy.connections(0)).await;
}

/// A claim that waits for more permits than one session can watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_for_many_permits_is_granted_when_any_of_them_is_free() {
    const LIMIT: u32 = 100;
    let (testbed, near, far) = Testbed::near_and_far().await;
    let semaphore = |locks: &Locks| locks.semaphore(long(0), LIMIT);
    let holding = stream::iter(0..LIMIT).map(|_| async { semaphore(&near).acquire().await });
    let holding = holding.buffered(20).map(|held| held.expect("granted"));
    let mut guards: Vec<_> = soon("all permits are out", holding.collect()).await;
    for at in [LIMIT / 2, 0, LIMIT - 3] {
        let (waiting, before) = (semaphore(&far), testbed.proxy.stats().requests);
        let waiter = tokio::spawn(async move { waiting.acquire().await });
        // Its node, the list, and the watch.
        soon("it waits", testbed.proxy.wait_for(|stats| stats.requests > before + 3)).await;
        testbed.proxy.close_connections(Close::Reset).await;
        sleep(ms(100)).await;
        assert!(!waiter.is_finished());
        let index = usize::try_from(at).expect("small");
        release(guards.swap_remove(index)).await;
        guards.push(until_granted(waiter).await);
    }
    for guard in guards {
        release(guard).await;
    }
}
