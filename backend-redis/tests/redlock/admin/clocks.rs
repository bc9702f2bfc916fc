//! A node whose clock is wrong.

use fencelock_core::ErrorKind;
use fencelock_redis::redlock::{init, replace, status};
use fencelock_testkit::helpers::*;
use fencelock_testkit::servers::{RedisOptions, ServerClock};

use crate::admin::support::*;

const AHEAD: i64 = 40;

#[tokio::test]
async fn a_clock_that_does_not_agree_is_shown_and_no_set_is_replaced() {
    let nodes = Nodes::start(3).await;
    let clock = ServerClock::of("redis-server").unwrap();
    clock.is_ahead_by(AHEAD).unwrap();
    let skewed = RedisOptions::new().program(clock.program()).start().await;
    let skewed = skewed.expect("a redis-server starts");
    let with_skewed =
        |params: &str| nodes.url(&[0, 1], params).replace("/0?", &format!(",{}/0?", skewed.addr()));
    init(&with_skewed("")).await.unwrap();
    let statuses = status(&with_skewed(""), None).await.unwrap();
    assert!(statuses[0].takes_part() && statuses[1].takes_part());
    assert!(!statuses[2].takes_part());
    let seen = statuses[2].seen.as_ref().unwrap();
    assert!(seen.membership.is_open() && !seen.clock_agrees, "{seen:?}");
    let (at_least, at_most) = seen.clock_ahead_us;
    let ahead = AHEAD * 1_000_000;
    assert!(at_least < ahead + 5_000_000 && at_most > ahead - 5_000_000, "{seen:?}");

    // The set that has it works without it; a set that would add it is not replaced.
    let old = nodes.url(&[0, 1, 2], "set_epoch=6");
    nodes.node(0).command(&["FLUSHALL"]).await.unwrap();
    nodes.node(1).command(&["FLUSHALL"]).await.unwrap();
    skewed.command(&["FLUSHALL"]).await.unwrap();
    init(&old).await.unwrap();
    let before = nodes.records().await;
    let error = replace(&old, &with_skewed("set_epoch=7")).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert!(error.to_string().contains("clock_tolerance=10s"), "{error}");
    assert_eq!(nodes.records().await, before);
}
