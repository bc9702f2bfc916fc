//! The token that a node gives is the one that `redlock::token` says, which the model checks.

use std::cell::RefCell;

use fencelock_redis::redlock::token::{STRIDE, next};
use proptest::prelude::*;

use super::bench::{ME, Mode, Node, READER, round};

/// Of all sizes that there can be, and close to each other, where the digits decide.
fn numbers() -> impl Strategy<Value = (u64, u64)> {
    let last =
        prop_oneof![0..100u64, 0..1u64 << 40, 1_600_000_000_000_000..1_900_000_000_000_000u64];
    let near = (last.clone(), -100_000i64..100_000)
        .prop_map(|(last, more)| (last, last.saturating_add_signed(more)));
    let far = (last.clone(), last);
    prop_oneof![near, far].prop_map(|(last, proposal)| (last, proposal / STRIDE * STRIDE))
}

#[test]
fn a_node_gives_the_token_that_the_model_checks() {
    let node = RefCell::new(Node::start());
    let (writer, reader) = (round(ME, 1), round(READER, 1));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let checked = runner.run(&(numbers(), any::<bool>(), any::<bool>()), |case| {
        let ((last, proposal), is_marked, has_queue) = case;
        let mut node = node.borrow_mut();
        let mark = if is_marked { "q" } else { "" };
        let expected = next(last, proposal);
        for (identity, mode, more) in
            [(&writer, Mode::Exclusive, 0), (&reader, Mode::Shared, Mode::NUMBER)]
        {
            node.call(&["DEL", "lock", "{lock}:q"]);
            node.call(&["SET", "{lock}:f", &format!("{last}{mark}")]);
            if has_queue {
                // Only of a process: the longer way.
                node.call(&["ZADD", "{lock}:q", "9999999999999", "@p1"]);
            }
            let given = node.vote_of(identity, mode, proposal);
            prop_assert_eq!(&given, &(expected + more).to_string());
            prop_assert_eq!(node.text("{lock}:f"), given);
        }
        Ok(())
    });
    // It names the smallest case that fails.
    checked.unwrap();
}
