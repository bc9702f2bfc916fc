//! `status` shows a set.

use fencelock_core::ErrorKind;
use fencelock_redis::redlock::{Membership, NodeSeen, NodeStatus, init, status};
use fencelock_testkit::helpers::*;
use std::time::Duration;

use crate::admin::support::*;

fn seen(node: &NodeStatus) -> &NodeSeen {
    node.seen.as_ref().unwrap_or_else(|error| panic!("{}: {error}", node.address))
}

#[tokio::test]
async fn every_node_reports_its_status() {
    let nodes = Nodes::start(7).await;
    let all = nodes.url(&[0, 1, 2, 3, 4, 5, 6], "set_epoch=2");
    let ours = "7 2 60000";
    nodes.mark(0, "open", 100, ours).await;
    nodes.mark(1, "born", 20, ours).await;
    nodes.mark(2, "open", 100, "3 1 60000").await;
    nodes.mark(3, "closed", 100, ours).await;
    nodes.set_record(4, "hello").await;
    nodes.node(5).kill().unwrap();
    let before = nodes.record(1).await;
    let statuses = status(&all, None).await.unwrap();
    assert_eq!(statuses.len(), 7);
    assert_eq!(statuses[0].address, nodes.node(0).addr().to_string());

    let of = |node: usize| seen(&statuses[node]);
    assert_eq!(of(0).membership, Membership::Open);
    assert!(statuses[0].takes_part());
    let age = of(0).age.unwrap();
    assert!(age >= Duration::from_secs(100) && age < Duration::from_secs(200), "{age:?}");
    let Membership::Quarantined(rest) = of(1).membership else { panic!("{:?}", of(1)) };
    assert!(rest <= Duration::from_secs(40), "{rest:?}");
    assert!(!statuses[1].takes_part());
    let Membership::OfAnotherSet(set) = of(2).membership else { panic!("{:?}", of(2)) };
    assert_eq!((set.nodes, set.epoch), (3, 1));
    assert!(matches!(of(3).membership, Membership::Closed(_)), "{:?}", of(3));
    assert_eq!(of(4).membership, Membership::Foreign);
    let error = statuses[5].seen.as_ref().unwrap_err();
    assert_kind(error, ErrorKind::Unreachable);
    assert_eq!((of(6).membership, of(6).age), (Membership::Unmarked, None));
    for node in [0, 1, 2, 3, 4, 6] {
        let seen = of(node);
        assert!(seen.clock_agrees);
        let (at_least, at_most) = seen.clock_ahead_us;
        assert!(at_least <= at_most && at_least.abs() < 10_000_000, "{seen:?}");
    }

    let master = nodes.node(0).port().to_string();
    nodes.node(6).command(&["REPLICAOF", "127.0.0.1", &master]).await.unwrap();
    let replica = status(&all, None).await.unwrap().remove(6).seen.unwrap_err();
    assert!(replica.to_string().contains("replica"), "{replica}");
    nodes.node(6).command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();

    assert_eq!(nodes.record(1).await, before, "status writes nothing");
    assert_eq!(nodes.record(6).await, "");
    nodes.mark(1, "born", 61, ours).await;
    // Another run has the record of this one; and its data is gone.
    nodes.node(0).restart().await.unwrap();
    nodes.set_record(0, &before).await;
    let statuses = status(&all, None).await.unwrap();
    assert_eq!(seen(&statuses[0]).membership, Membership::Restarted);
    assert_eq!(seen(&statuses[1]).membership, Membership::Due);
    assert!(statuses[1].takes_part());
}

#[tokio::test]
async fn a_lock_is_shown_as_each_node_has_it() {
    let nodes = Nodes::start(3).await;
    let url = nodes.url(&[0, 1, 2], "token_epoch=3&prefix=mine:&ttl=9s&node_timeout=2s");
    init(&url).await.unwrap();
    let locks = connect(&url).await.unwrap();
    let guard = acquire(&locks, "a").await;
    let seen_at_all = async || {
        let statuses = status(&url, Some("a")).await.unwrap();
        let locks = statuses.iter().map(|node| seen(node).lock.clone().unwrap().unwrap());
        let waiters = locks.clone().filter(|lock| lock.snapshot.waiters.len() == 1).count();
        let mut held = locks.map(|lock| {
            let tokens: Vec<_> = lock.snapshot.holders.iter().map(|holder| holder.token).collect();
            tokens == [Some(guard.fencing_token())]
                && lock.last_token == Some(guard.fencing_token())
        });
        (held.all(|held| held), waiters)
    };
    // A majority suffices, and the first renewal installs the holder at the others. A waiter that asks before that is
    // given a token there.
    until("all nodes have it", async || seen_at_all().await == (true, 0)).await;
    let waiter = spawn_waiter(&locks, "a");
    until("it queues", async || matches!(seen_at_all().await, (true, 2..))).await;
    release(guard).await;
    release(until_granted(waiter).await).await;
    nodes.node(2).command(&["DEL", "mine:b"]).await.unwrap();
    nodes.node(2).command(&["LPUSH", "mine:b", "x"]).await.unwrap();
    let statuses = status(&url, Some("b")).await.unwrap();
    let lock = |node: usize| seen(&statuses[node]).lock.as_ref().unwrap();
    assert_eq!(lock(0).as_ref().unwrap().last_token, None);
    assert_kind(lock(2).as_ref().unwrap_err(), ErrorKind::Foreign);
    assert_kind(&status(&url, Some("")).await.unwrap_err(), ErrorKind::InvalidArgument);
    locks.close().await.unwrap();
}
