//! Values that other programs wrote to a lock's keys are left as they are.

use super::bench::{ME, Mode, Node, OTHER, READER, round};

/// Runs all steps of a claim; none may change what is there.
fn ask_everything(node: &mut Node) {
    for identity in [ME, READER] {
        let round = round(identity, 1);
        let mode = if identity == ME { Mode::Exclusive } else { Mode::Shared };
        node.vote_as(&round, "", mode, 3200, 10);
        node.raise(&round, 3200);
        assert_eq!(node.extend(&round, "30000", 3200, "").int(), Some(0));
        assert_eq!(node.extend(&round, "30000", 3200, "plant").int(), Some(0));
        assert_eq!(node.free(&round).int(), Some(0));
        node.evict(&round);
        // It is remembered, in a key of its own.
        let key = node.eviction(&round);
        assert_eq!(node.call(&["DEL", &key]).int(), Some(1));
        node.check_waiters("p1", &[identity]);
    }
}

/// Fault 43: redlock
#[test]
fn a_value_of_another_library_is_its_lock() {
    let mut node = Node::start();
    for value in ["3f2a", "x", "x 30000 p1", "0123456789abcdef\n"] {
        node.call(&["SET", "lock", value, "PX", "60000"]);
        let before = node.state();
        assert_eq!(node.vote(&round(ME, 1), 1600).rejection().0, "foreign", "{value:?}");
        ask_everything(&mut node);
        assert_eq!(node.state(), before, "{value:?}");
    }
    node.wait(OTHER, Mode::Exclusive, 10);
    let (ms, _, first) = node.check_waiters("p2", &[OTHER]).check();
    assert_eq!((ms, first.as_str()), (50, OTHER), "its release notifies no waiter");
    // An operator may remove it, by the value.
    assert_eq!(node.evict("0123456789abcdef\n").int(), Some(1));
    assert_eq!(node.holder(), "");
}

/// Fault 43: redlock
#[test]
fn a_key_of_another_type_is_an_error_and_stays() {
    let mut node = Node::start();
    let others: [&[&str]; 4] = [
        &["RPUSH", "lock", "a"],
        &["HSET", "lock", "a", "b"],
        &["SADD", "lock", "a"],
        &["ZADD", "lock", "1", "a"],
    ];
    for put in others {
        node.call(&["DEL", "lock"]);
        node.call(put);
        let before = node.state();
        let refused = node.vote(&round(ME, 1), 1600);
        let says = refused.error().unwrap_or_default();
        assert!(
            says.contains("fencelock: lock is a") && says.contains("another program"),
            "{says}"
        );
        ask_everything(&mut node);
        assert_eq!(node.state(), before, "{put:?}");
    }
}

/// If the token of a lock just acquired cannot be read, the lock is released.
#[test]
fn a_foreign_token_is_an_error_and_the_lock_is_released() {
    let mut node = Node::start();
    for token in ["text", "9007199254740993", "12 34"] {
        node.call(&["SET", "{lock}:f", token]);
        let before = node.state();
        for me in [ME, OTHER] {
            let refused = node.vote(&round(me, 1), 1600);
            let says = refused.error().unwrap_or_default();
            assert!(says.contains("{lock}:f is the text of another program"), "{refused:?}");
        }
        let refused = node.vote_shared(&round(READER, 1), 1600);
        assert!(refused.error().is_some(), "{refused:?}");
        assert_eq!(node.state(), before, "{token}");
    }
}
