//! The queue: order, nodes that vanish, and nodes of other programs.

use fencelock_core::{ErrorKind, LostReason};
use fencelock_zk::ZkStore;
use fencelock_zk::zookeeper_client::{Acls, CheckWriteError, CreateMode};
use tokio::time::sleep;

use crate::support::*;

/// One event for each release: each waiter watches the node ahead of it and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_are_granted_in_order_and_each_watches_the_one_ahead() {
    let testbed = Testbed::start().await;
    let holder = testbed.direct().await;
    let guard = acquire(&holder, "one").await;
    let mut waiters = Vec::new();
    for count in 0..50 {
        let locks = testbed.direct().await;
        waiters.push((spawn_waiter(&locks, "one"), locks));
        testbed.until_queued("one", count + 2).await;
    }
    // Each node has its own claim's watch, and the next one's.
    until("every node is watched", async || testbed.watches().await.len() == 51).await;
    let watchers = testbed.servers.servers()[0].four_letter("wchp").await.unwrap();
    let last = testbed.nodes("one").await[50].clone();
    let of_last = watchers.split(&last).nth(1).unwrap().lines().skip(1);
    assert_eq!(of_last.take_while(|line| line.starts_with('\t')).count(), 1, "only its own watch");
    let mut last = guard.fencing_token();
    release(guard).await;
    for (waiter, _locks) in waiters {
        let guard = until_granted(waiter).await;
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        release(guard).await;
    }
    testbed.drained(&["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_vanishes_from_the_middle_grants_no_other() {
    let testbed = Testbed::start().await;
    let locks = [testbed.direct().await, testbed.direct().await, testbed.direct().await];
    // Deleted by hand, early and late; its claim queues again behind the last.
    for pause in [0, 100] {
        let (guard, middle) = testbed.contested(&locks[0], &locks[1], "one").await;
        let last = testbed.queued(&locks[2], "one", 3).await;
        sleep(ms(pause)).await;
        let node = testbed.nodes("one").await[1].clone();
        testbed.client.delete(&node, None).await.unwrap();
        testbed.until_queued("one", 3).await;
        sleep(ms(100)).await;
        assert!(!last.is_finished() && guard.is_held());
        release(guard).await;
        let guard = until_granted(last).await;
        sleep(ms(50)).await;
        assert!(!middle.is_finished());
        hand_over(guard, middle).await;
        testbed.drained(&["one"]).await;
    }
}

/// A waiter whose own node was deleted must not take the deletion of the one ahead for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_node_was_deleted_is_not_granted() {
    let testbed = Testbed::start().await;
    let locks = [testbed.direct().await, testbed.direct().await, testbed.direct().await];
    for round in 0..20u64 {
        let (guard, evicted) = testbed.contested(&locks[0], &locks[1], "one").await;
        let last = testbed.queued(&locks[2], "one", 3).await;
        // Before and after the own node is watched.
        sleep(ms(round * 7 % 100)).await;
        let nodes = testbed.nodes("one").await;
        let (own, before) = tokio::join!(
            testbed.client.delete(&nodes[1], None),
            testbed.client.delete(&nodes[0], None),
        );
        own.and(before).unwrap();
        let last = until_granted(last).await;
        assert!(!evicted.is_finished(), "round {round}: both hold it");
        hand_over(last, evicted).await;
        drop(guard);
        testbed.drained(&["one"]).await;
    }
}

/// Fault 25: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_node_was_deleted_is_notified_at_once() {
    let (testbed, locks) = Testbed::near().await;
    for pause in [0, 10, 200] {
        let guard = acquire(&locks, "one").await;
        sleep(ms(pause)).await;
        let node = testbed.nodes("one").await[0].clone();
        testbed.client.delete(&node, None).await.unwrap();
        // By the watch: no heartbeat knows of the node.
        let reason = soon("the holder is notified", guard.lost()).await;
        assert_eq!(reason, LostReason::TakenAway);
    }
    testbed.drained(&["one"]).await;
}

/// The servers remove the node of an unused lock at any time, and its numbers start again.
/// Fault 25: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_own_node_vanishes_continues_with_larger_tokens() {
    let (testbed, locks) = Testbed::near().await;
    let mut last = None;
    for round in 0..20 {
        let guard = acquire(&locks, "one").await;
        let node = testbed.nodes("one").await[0].clone();
        assert!(node.ends_with("0000000000"), "{node}");
        assert!(Some(guard.fencing_token()) > last, "round {round}");
        last = Some(guard.fencing_token());
        release(guard).await;
        testbed.client.delete(&format!("{}/one", testbed.root), None).await.unwrap();
        if round == 10 {
            testbed.client.delete(&testbed.root, None).await.unwrap();
        }
    }
    // While it is deleted and created again, every acquisition succeeds.
    let lock = format!("{}/one", testbed.root);
    let remover = testbed.client.clone();
    let removing = tokio::spawn(async move {
        loop {
            let _ = remover.delete(&lock, None).await;
            sleep(ms(1)).await;
        }
    });
    for _ in 0..200 {
        release(acquire(&locks, "one").await).await;
    }
    removing.abort();
    testbed.drained(&["one"]).await;
}

/// That the reader ahead of a writer was granted does not make it the first: others read too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_waits_for_all_readers_of_its_own_client() {
    let (testbed, locks) = Testbed::near().await;
    let rw = locks.rw_lock("one");
    let waiting = |lock: fencelock_core::Lock| tokio::spawn(async move { lock.acquire().await });
    let first = soon("written", rw.write().acquire()).await.unwrap();
    let mut waiters = Vec::new();
    for (queued, lock) in (2..).zip([rw.read(), rw.read(), rw.write()]) {
        waiters.push(waiting(lock));
        testbed.until_queued("one", queued).await;
    }
    let [far, near, writer] = waiters.try_into().expect("three");
    until("own nodes are watched", async || testbed.watches().await.len() == 4).await;
    release(first).await;
    let (far, near) = (until_granted(far).await, until_granted(near).await);
    release(near).await;
    sleep(ms(100)).await;
    assert!(!writer.is_finished(), "granted while a reader holds it");
    hand_over(far, writer).await;
    testbed.drained(&["one"]).await;
}

/// Nodes have the names that Curator's two classes look for, and both kinds exclude each other here.
/// Fault 43: zookeeper, zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_named_as_curator_names_them() {
    let (testbed, locks) = Testbed::near().await;
    let semaphore = locks.semaphore("one", 3).permits(2);
    for (lock, name) in [
        (locks.lock("one"), "-lock-"),
        (locks.rw_lock("one").read(), "-__READ__"),
        (locks.rw_lock("one").write(), "-__WRIT__"),
        (semaphore, "-permits-2-3-"),
    ] {
        let guard = soon("acquired", lock.acquire()).await.unwrap();
        let nodes = testbed.nodes("one").await;
        let own = nodes[0].rsplit('/').next().unwrap();
        assert!(own.starts_with("_c_") && own.contains(name), "{own}");
        assert_eq!(own.len(), "_c_".len() + 36 + name.len() + 10);
        let label = testbed.client.get_data(&nodes[0]).await.unwrap().0;
        assert!(String::from_utf8(label).unwrap().contains("pid"), "the label shows the holder");
        release(guard).await;
    }
    // Numbers below zero come after the largest, and so before those that follow them.
    let (below, largest) = ("_c_0-lock--000000005", "_c_0-lock-2147483647");
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    for (name, blocks) in [(below, true), (largest, false)] {
        testbed.client.delete(&format!("{}/one", testbed.root), None).await.unwrap();
        release(acquire(&locks, "one").await).await;
        let path = format!("{}/one/{name}", testbed.root);
        testbed.client.create(&path, b"", &options).await.unwrap();
        let waiter = testbed.queued(&locks, "one", 2).await;
        sleep(ms(50)).await;
        assert_eq!(waiter.is_finished(), !blocks, "{name}");
        testbed.client.delete(&path, None).await.unwrap();
        release(until_granted(waiter).await).await;
    }
    // Nodes of other programs: each whose name ends in a number blocks.
    for foreign in ["_c_0-lock-", "x__lock__", "_c_0-__WRIT__"] {
        let path = format!("{}/one/{foreign}", testbed.root);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, number) = testbed.client.create(&path, b"", &options).await.unwrap();
        assert!(is_busy(&locks, "one").await, "{foreign}");
        let waiter = testbed.queued(&locks, "one", 2).await;
        testbed.client.delete(&format!("{path}{number}"), None).await.unwrap();
        release(until_granted(waiter).await).await;
    }
    testbed.drained(&["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guarded_write_fails_as_a_whole_when_the_lock_is_gone() {
    let testbed = Testbed::start().await;
    let [server] = testbed.servers.servers() else { panic!("one server") };
    let store = ZkStore::servers([("127.0.0.1", server.port())]).root(&testbed.root).session(T);
    let settings = fencelock_core::Settings::default()
        .token_epoch(fencelock_core::TokenEpoch::new(3).unwrap());
    let locks = store.clone().locks(settings).await.unwrap();
    let data = format!("{}/data", testbed.root);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    testbed.client.create(&data, b"0", &options).await.unwrap();
    let guard = acquire(&locks, "orders").await;
    let node = store.held_node(&testbed.client, &guard).await.unwrap();
    let write = async |value: &[u8]| {
        let mut writer = testbed.client.new_check_writer(&node, None).unwrap();
        writer.add_set_data(&data, value, None).unwrap();
        writer.commit().await
    };
    write(b"1").await.unwrap();
    release(guard).await;
    let next = acquire(&locks, "orders").await;
    let error = write(b"2").await.unwrap_err();
    assert!(matches!(error, CheckWriteError::CheckFailed { .. }), "{error}");
    assert_eq!(testbed.client.get_data(&data).await.unwrap().0, b"1");
    testbed
        .client
        .delete(&store.held_node(&testbed.client, &next).await.unwrap(), None)
        .await
        .unwrap();
    let error = store.held_node(&testbed.client, &next).await.unwrap_err();
    assert_kind(&error, ErrorKind::Lost);
}

/// Fault 42: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_name_is_refused_before_it_reaches_the_servers() {
    let testbed = Testbed::start().await;
    let prefix = "x".repeat(9000);
    let url = format!("zk://{}{}?session=2s", testbed.servers.connect_string(), testbed.root);
    let locks = connect(&format!("{url}&prefix={prefix}")).await;
    let error = soon("refused", locks.lock("a").acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::InvalidArgument);
    let locks = connect(&format!("{url}&prefix={}", &prefix[..4000])).await;
    release(acquire(&locks, &"\u{1}".repeat(512)).await).await;
}

/// A lock's node that another program has created, with its own data, is neither created again nor
/// removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_node_of_another_program_keeps_its_data() {
    let (testbed, locks) = Testbed::near().await;
    release(acquire(&locks, "other").await).await;
    let path = format!("{}/one", testbed.root);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (created, _) = testbed.client.create(&path, b"kept", &options).await.expect("created");
    let waiter = {
        let (guard, waiter) = testbed.contested(&locks, &locks, "one").await;
        release(guard).await;
        waiter
    };
    release(until_granted(waiter).await).await;
    assert!(locks.lock("one").try_acquire().await.expect("an answer").is_some());
    testbed.drained(&["one"]).await;
    let (data, stat) = testbed.client.get_data(&path).await.expect("it exists");
    assert_eq!((&data[..], stat.czxid, stat.mzxid), (&b"kept"[..], created.czxid, created.mzxid));
}
