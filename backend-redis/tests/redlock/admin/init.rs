//! `init` declares a set new.

use fencelock_core::ErrorKind;
use fencelock_redis::redlock::init;
use fencelock_testkit::helpers::*;
use tokio::time::Instant;

use crate::admin::support::*;

#[tokio::test]
async fn a_new_set_takes_part_at_once() {
    let nodes = Nodes::start(3).await;
    let url = nodes.url(&[0, 1, 2], "");
    init(&url).await.unwrap();
    let start = Instant::now();
    let locks = connect(&url).await.unwrap();
    release(acquire(&locks, "a").await).await;
    assert!(start.elapsed() < PATIENCE / 2, "restart_delay=60s was not waited for");
    locks.close().await.unwrap();
    let before = nodes.records().await;
    init(&url).await.unwrap();
    assert_eq!(nodes.records().await, before, "a repeat does nothing");
}

#[tokio::test]
async fn without_init_a_new_set_reports_what_to_do() {
    let nodes = Nodes::start(3).await;
    let url = nodes.url(&[0, 1, 2], "");
    let locks = connect(&url).await.unwrap();
    let lock = locks.lock("a").wait_at_most(ms(200));
    let error = lock.acquire().await.unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(format!("{error}: {cause}").contains("fencelock redlock init"), "{error}: {cause}");
    // It has connected to the nodes: they might have lost what another client holds.
    let error = init(&url).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert!(error.to_string().contains("takes part by itself in"), "{error}");
    locks.close().await.unwrap();
}

#[tokio::test]
async fn a_used_set_is_not_declared_new() {
    let nodes = Nodes::start(3).await;
    let url = nodes.url(&[0, 1, 2], "");
    init(&url).await.unwrap();
    // One node loses its data while a lock may be held there.
    nodes.node(1).command(&["FLUSHALL"]).await.unwrap();
    let before = nodes.records().await;
    let error = init(&url).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert!(error.to_string().contains("locks may be held"), "{error}");
    assert_eq!(nodes.records().await, before);
    // Another set has the nodes.
    let error = init(&nodes.url(&[0, 1, 2], "set_epoch=2")).await.unwrap_err();
    assert!(error.to_string().contains("fencelock redlock replace"), "{error}");
    nodes.set_record(0, "hello").await;
    assert_kind(&init(&url).await.unwrap_err(), ErrorKind::Foreign);
    assert_eq!(nodes.record(0).await, "hello");
}

#[tokio::test]
async fn all_nodes_must_reply_before_one_is_written() {
    let nodes = Nodes::start(3).await;
    nodes.node(1).kill().unwrap();
    let error = init(&nodes.url(&[0, 1, 2], "")).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains(&nodes.node(1).addr().to_string()), "{error}");
    assert_eq!((nodes.record(0).await, nodes.record(2).await), (String::new(), String::new()));
    // One server under two names has one vote.
    let port = nodes.node(0).port();
    let twins = format!("redlock://127.0.0.1:{port},localhost:{port},{}", nodes.node(2).addr());
    let error = init(&twins).await.unwrap_err();
    assert!(error.to_string().contains("are one server"), "{error}");
    assert_eq!(nodes.record(0).await, "");
}

#[tokio::test]
async fn another_url_is_not_a_set() {
    let error = init("redis://127.0.0.1").await.unwrap_err();
    assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("redlock://H1,H2,H3"), "{error}");
}
