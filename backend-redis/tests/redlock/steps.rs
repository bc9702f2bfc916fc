//! The steps of one node, each alone: its reply, that a repeat gives the same reply, and what it must
//! not change.

pub(crate) mod bench;
#[path = "../faults/scripts/client.rs"]
#[allow(dead_code, reason = "the other scripts need more of it")]
mod client;
mod queue;
mod strangers;
mod tokens;

use self::bench::{ME, Mode, Node, OTHER, READER, SECOND_READER, round};

const TTL: i64 = 30_000;

/// Compares with some slack, for a machine that stalls.
#[track_caller]
fn is_near(ttl: i64, expected: i64) {
    assert!((expected - 5000..=expected).contains(&ttl), "{ttl} ms, not {expected}");
}

#[test]
fn a_free_node_votes_and_a_repeat_gets_the_same_reply() {
    let mut node = Node::start();
    let me = round(ME, 1);
    assert_eq!(node.vote(&me, 1600).int(), Some(1600));
    assert_eq!((node.holder(), node.token()), (me.clone(), 1600));
    is_near(node.ttl("lock"), TTL);
    let before = node.state();
    for proposal in [1600, 3200, 16] {
        assert_eq!(node.vote(&me, proposal).int(), Some(1600), "asked again");
    }
    assert_eq!(node.state(), before);
    // With a queue in between, and as a waiter.
    node.wait(OTHER, Mode::Exclusive, 10);
    assert_eq!(node.vote(&me, 3200).int(), Some(1600));
    assert_eq!(node.vote_as(&me, ME, Mode::Exclusive, 3200, 5).int(), Some(1600));
    assert_eq!(node.token(), 1600);
}

#[test]
fn a_held_node_rejects_and_reports_for_how_long() {
    let mut node = Node::start();
    node.vote(&round(ME, 1), 1600);
    let before = node.state();
    for _ in 0..2 {
        let (whose, ms, first) = node.vote(&round(OTHER, 1), 3200).rejection();
        assert_eq!((whose.as_str(), first), ("aa", 0));
        assert!((1..=1000).contains(&ms), "{ms}");
    }
    assert_eq!(node.state(), before, "a token changes only with the lock");
    for _ in 0..2 {
        let (_, _, first) =
            node.vote_as(&round(OTHER, 2), OTHER, Mode::Exclusive, 3200, 10).rejection();
        assert_eq!(first, 1);
    }
    assert_eq!((node.waiters(), node.token()), (vec![OTHER.to_owned()], 1600));
    is_near(node.ttl("{lock}:q"), 10_000);
}

#[test]
fn a_node_with_another_record_neither_votes_nor_extends() {
    let mut node = Node::start();
    node.vote(&round(ME, 1), 1600);
    node.call(&["SET", "fencelock:redlock", "another"]);
    let before = node.state();
    for identity in [round(ME, 1), round(OTHER, 1)] {
        assert_eq!(node.vote(&identity, 3200).int(), Some(-1));
        assert_eq!(node.vote_as(&identity, OTHER, Mode::Exclusive, 3200, 9).int(), Some(-1));
        assert_eq!(node.raise(&identity, 3200).int(), Some(-1));
        assert_eq!(node.extend(&identity, "60000", 3200, "plant").int(), Some(-1));
    }
    assert_eq!(node.state(), before);
    node.call(&["DEL", "fencelock:redlock", "lock"]);
    let before = node.state();
    assert_eq!(node.vote(&round(OTHER, 1), 3200).int(), Some(-1));
    assert_eq!(node.extend(&round(ME, 1), "60000", 3200, "plant").int(), Some(-1));
    assert_eq!(node.state(), before);
    // What it has is released nevertheless.
    node.call(&["SET", "lock", &round(ME, 1)]);
    assert_eq!(node.free(&round(ME, 1)).int(), Some(1));
    assert_eq!(node.holder(), "");
}

#[test]
fn a_token_is_raised_where_the_lock_is_held_and_never_lowered() {
    let mut node = Node::start();
    let me = round(ME, 1);
    assert_eq!(node.raise(&me, 3200).int(), Some(0), "no claim has it");
    assert_eq!(node.token(), 0);
    node.vote(&me, 1600);
    for _ in 0..2 {
        assert_eq!(node.raise(&me, 3200).int(), Some(1));
        assert_eq!(node.token(), 3200);
    }
    assert_eq!(node.raise(&me, 1600).int(), Some(1), "it has more");
    let before = node.state();
    assert_eq!(node.raise(&round(ME, 2), 6400).int(), Some(0), "another round's");
    assert_eq!(node.raise(&round(OTHER, 1), 6400).int(), Some(0));
    assert_eq!(node.state(), before);
    assert!(node.ttl("{lock}:f") > 3_500_000);
}

#[test]
fn an_extension_prolongs_what_is_held() {
    let mut node = Node::start();
    let me = round(ME, 1);
    node.vote(&me, 1600);
    for _ in 0..2 {
        node.call(&["PEXPIRE", "lock", "9000"]);
        assert_eq!(node.extend(&me, "30000", 3200, "").int(), Some(1));
        is_near(node.ttl("lock"), TTL);
        assert_eq!((node.holder(), node.token()), (me.clone(), 3200));
    }
    // With a TTL of 0 it only replies whether it is there.
    node.call(&["PEXPIRE", "lock", "20000"]);
    assert_eq!(node.extend(&me, "0", 6400, "plant").int(), Some(1));
    is_near(node.ttl("lock"), 20_000);
    assert_eq!(node.token(), 3200);
    let before = node.state();
    for other in [round(ME, 2), round(OTHER, 1)] {
        assert_eq!(node.extend(&other, "60000", 6400, "").int(), Some(0));
        assert_eq!(node.extend(&other, "60000", 6400, "plant").int(), Some(0), "it is not free");
    }
    assert_eq!(node.state(), before);
}

#[test]
fn a_lost_lock_is_reinstalled_only_on_request() {
    let mut node = Node::start();
    let me = round(ME, 1);
    node.set_token(1600);
    let before = node.state();
    assert_eq!(node.extend(&me, "30000", 3200, "").int(), Some(0));
    assert_eq!(node.extend(&me, "0", 3200, "plant").int(), Some(0));
    assert_eq!(node.state(), before);
    for _ in 0..2 {
        assert_eq!(node.extend(&me, "30000", 3200, "plant").int(), Some(1));
        assert_eq!((node.holder(), node.token()), (me.clone(), 3200));
        is_near(node.ttl("lock"), TTL);
    }
    assert_eq!(node.free(&me).int(), Some(1));
    assert_eq!(node.free(&me).int(), Some(0), "asked again");
    assert_eq!((node.holder(), node.token()), (String::new(), 3200));
}

#[test]
fn readers_share_a_node_and_keep_writers_out() {
    let mut node = Node::start();
    let (one, other) = (round(READER, 1), round(SECOND_READER, 1));
    assert_eq!(node.vote_shared(&one, 1600).int(), Some(1603), "with the node's number");
    assert_eq!(node.vote_shared(&other, 1600).int(), Some(1667), "no token twice");
    for _ in 0..2 {
        assert_eq!(node.vote_shared(&one, 3200).int(), Some(1603), "asked again");
        assert_eq!(node.vote_shared(&other, 3200).int(), Some(1667));
    }
    assert_eq!(node.vote(&round(ME, 1), 3200).rejection().0, "group");
    assert_eq!(node.extend(&one, "60000", 1667, "").int(), Some(1));
    is_near(node.ttl("lock"), 60_000);
    assert_eq!(node.extend(&round(ME, 1), "30000", 3200, "plant").int(), Some(0));
    assert_eq!(node.free(&one).int(), Some(1));
    assert_eq!(node.free(&one).int(), Some(0));
    is_near(node.ttl("lock"), TTL);
    assert_eq!(node.extend(&one, "30000", 1667, "").int(), Some(0));
    assert_eq!(node.extend(&one, "30000", 1667, "plant").int(), Some(1), "among the readers");
    for reader in [&one, &other] {
        assert_eq!(node.free(reader).int(), Some(1));
    }
    assert_eq!(node.call(&["EXISTS", "lock"]).int(), Some(0));
    assert!(node.vote(&round(ME, 1), 1600).int() >= Some(1728), "above all readers'");
}

/// A full server stops a script at its first allocating write: no vote, but everything is released.
#[test]
fn a_full_node_releases_and_extends_and_does_not_vote() {
    let mut node = Node::start();
    let (me, reader) = (round(ME, 1), round(READER, 1));
    node.vote(&me, 1600);
    node.wait(OTHER, Mode::Exclusive, 10);
    node.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(node.extend(&me, "60000", 3200, "").int(), Some(1));
    is_near(node.ttl("lock"), 60_000);
    assert_eq!(node.free_waiting(&me, OTHER).int(), Some(1));
    assert_eq!((node.holder(), node.waiters()), (String::new(), vec![]));
    let refused = node.vote(&me, 1600);
    assert!(refused.error().is_some_and(|error| error.contains("OOM")), "{refused:?}");
    let refused = node.vote_as(&me, ME, Mode::Exclusive, 1600, 10);
    assert!(refused.error().is_some_and(|error| error.contains("OOM")), "{refused:?}");
    assert_eq!(node.call(&["EXISTS", "lock", "{lock}:q"]).int(), Some(0));
    node.call(&["CONFIG", "SET", "maxmemory", "0"]);
    node.vote_shared(&reader, 1600);
    node.call(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(node.extend(&reader, "60000", 3200, "").int(), Some(1));
    is_near(node.ttl("lock"), 60_000);
    assert_eq!(node.free(&reader).int(), Some(1));
    assert_eq!(node.call(&["EXISTS", "lock"]).int(), Some(0));
}
