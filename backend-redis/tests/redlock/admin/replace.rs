//! Replaces a set that is in use.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind};
use fencelock_redis::redlock::{init, open_when_due, replace};
use fencelock_testkit::helpers::*;
use tokio::time::Instant;

use crate::admin::support::*;

const DELAY: Duration = Duration::from_secs(3);

fn next(params: &str) -> String {
    format!("{params}&set_epoch=2")
}

/// A holder under `old` and the first grant under `new` do not overlap, and the old client is
/// refused.
async fn changes_hands(nodes: &Nodes, old: &[usize], new: &[usize]) {
    let (old_url, new_url) = (nodes.url(old, SHORT), nodes.url(new, &next(SHORT)));
    init(&old_url).await.unwrap();
    let before = connect(&old_url).await.unwrap();
    let held = acquire(&before, "a").await;
    let closing = Instant::now();
    let replaced = replace(&old_url, &new_url).await.unwrap();
    assert!(replaced.opens_in <= DELAY, "{replaced:?}");
    assert!(replaced.not_closed.is_empty(), "{replaced:?}");

    let after = connect(&new_url).await.unwrap();
    let granted = acquire(&after, "a").await;
    assert!(!held.is_held(), "two hold it");
    assert!(closing.elapsed() >= DELAY, "the first grant came before the delay had passed");
    assert!(held.valid_until() < granted.valid_until());
    assert!(granted.fencing_token() > held.fencing_token());

    // A connected client may have read a node's record while the set was being changed.
    let error = soon("an answer", before.lock("b").try_acquire()).await.unwrap_err();
    assert_refused(&error, "set_epoch=");
    assert_refused(&soon("an answer", connect(&old_url)).await.unwrap_err(), "set_epoch=2");
    release(granted).await;
    for locks in [before, after] {
        locks.close().await.unwrap();
    }
}

fn assert_refused(error: &Error, says: &str) {
    assert_kind(error, ErrorKind::Refused);
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let words = format!("{error}: {cause}");
    assert!(words.contains(says), "{words}");
}

#[tokio::test]
async fn one_node_of_three_is_replaced_while_a_lock_is_held() {
    let nodes = Nodes::start(4).await;
    changes_hands(&nodes, &[0, 1, 2], &[0, 1, 3]).await;
    let record = nodes.record(2).await;
    assert_eq!(
        (word(&record, 1), word(&record, 4)),
        ("closed", "2"),
        "closed in the new set's name"
    );
}

#[tokio::test]
async fn three_nodes_grow_to_five_while_a_lock_is_held() {
    let nodes = Nodes::start(5).await;
    changes_hands(&nodes, &[0, 1, 2], &[0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn all_nodes_are_replaced_while_a_lock_is_held() {
    let nodes = Nodes::start(6).await;
    changes_hands(&nodes, &[0, 1, 2], &[3, 4, 5]).await;
}

#[tokio::test]
async fn a_set_moves_to_other_servers_without_its_dead_node() {
    let nodes = Nodes::start(6).await;
    let (old_url, new_url) = (nodes.url(&[0, 1, 2], SHORT), nodes.url(&[3, 4, 5], &next(SHORT)));
    init(&old_url).await.unwrap();
    nodes.node(1).kill().unwrap();
    let replaced = replace(&old_url, &new_url).await.unwrap();
    let [(gone, _)] = replaced.not_closed.as_slice() else { panic!("{replaced:?}") };
    assert_eq!(*gone, nodes.node(1).addr().to_string());
    within(DELAY * 5, "it opens", open_when_due(&new_url)).await.unwrap();
    for node in [3, 4, 5] {
        assert_eq!(word(&nodes.record(node).await, 1), "open");
    }
    let locks = connect(&new_url).await.unwrap();
    release(acquire(&locks, "a").await).await;
    locks.close().await.unwrap();
    let before = (nodes.record(0).await, nodes.record(4).await);
    let again = replace(&old_url, &new_url).await.unwrap();
    assert_eq!(again.opens_in, Duration::ZERO);
    assert_eq!((nodes.record(0).await, nodes.record(4).await), before, "it is done already");
}

#[tokio::test]
async fn nothing_is_written_before_all_can_be() {
    let nodes = Nodes::start(5).await;
    let old_url = nodes.url(&[0, 1, 2], SHORT);
    let new_url = nodes.url(&[0, 1, 3], &next(SHORT));
    init(&old_url).await.unwrap();
    let before = nodes.records().await;
    // The number must rise by one.
    for params in [SHORT.to_owned(), format!("{SHORT}&set_epoch=3")] {
        let error = replace(&old_url, &nodes.url(&[0, 1, 3], &params)).await.unwrap_err();
        assert_kind(&error, ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("expected set_epoch=2"), "{error}");
    }
    // A node of a third set, and one that another program uses.
    for (text, kind) in
        [("abc open 5 3 9 60000", ErrorKind::Refused), ("hello", ErrorKind::Foreign)]
    {
        nodes.set_record(3, text).await;
        assert_kind(&replace(&old_url, &new_url).await.unwrap_err(), kind);
        assert_eq!(nodes.record(3).await, text);
    }
    nodes.node(3).command(&["FLUSHALL"]).await.unwrap();
    // The old URL is wrong.
    let wrong = nodes.url(&[0, 1, 2], "restart_delay=60s");
    let error = replace(&wrong, &nodes.url(&[0, 3, 4], "set_epoch=2")).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    let wrong = nodes.url(&[0, 1, 2], &format!("{SHORT}&set_epoch=7"));
    let other = nodes.url(&[2, 3, 4], &format!("{SHORT}&set_epoch=8"));
    assert_kind(&replace(&wrong, &other).await.unwrap_err(), ErrorKind::Refused);
    // A node of the new set is unreachable.
    nodes.node(3).freeze().await.unwrap();
    let error = replace(&old_url, &new_url).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains(&nodes.node(3).addr().to_string()), "{error}");
    nodes.node(3).thaw().unwrap();
    assert_eq!(nodes.records().await, before);
    // A majority of the old set is unreachable.
    nodes.node(1).kill().unwrap();
    nodes.node(2).kill().unwrap();
    let error = replace(&old_url, &nodes.url(&[0, 3, 4], &next(SHORT))).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains("1 of 3 nodes of the old set"), "{error}");
    assert_eq!(nodes.record(0).await, before[0]);
    assert_eq!(nodes.record(3).await, "");
}

/// A repeat finishes a change that was interrupted at `stages`. `later` are the nodes that must have
/// started their delay again.
async fn is_finished_from(stages: [(&str, u64, &str); 4], later: &[usize]) {
    const AGE: u64 = 600;
    let nodes = Nodes::start(4).await;
    for (node, (state, age, set)) in stages.into_iter().enumerate() {
        if !state.is_empty() {
            nodes.mark(node, state, AGE + age, set).await;
        }
    }
    let before = nodes.records().await;
    let (old_url, new_url) = (nodes.url(&[0, 1, 2], SHORT), nodes.url(&[0, 1, 3], &next(SHORT)));
    let replaced = replace(&old_url, &new_url).await.unwrap();
    let after = nodes.records().await;
    for node in [0, 1, 3] {
        assert_eq!(word(&after[node], 4), "2", "{stages:?}: {after:?}");
        let is_later = later.contains(&node);
        assert_eq!(after[node] != before[node], is_later, "{stages:?}: {node} of {after:?}");
        if is_later {
            assert_eq!(word(&after[node], 1), "born", "{stages:?}: {after:?}");
        }
    }
    assert_eq!(word(&after[2], 1), "closed", "{stages:?}: {after:?}");
    assert_eq!(word(&after[2], 4), "2", "{stages:?}: {after:?}");
    assert_eq!(replaced.opens_in.is_zero(), later.is_empty(), "{stages:?}: {replaced:?}");
    let again = replace(&old_url, &new_url).await.unwrap();
    assert!(again.opens_in <= replaced.opens_in);
    assert_eq!(nodes.records().await, after, "{stages:?}: a repeat changes nothing");
}

#[tokio::test]
async fn a_change_that_was_interrupted_is_finished_by_a_repeat() {
    const OLD: &str = "3 1 3000";
    const NEW: &str = "3 2 3000";
    let none = ("", 0, "");
    let (open, closed) = (("open", 0, OLD), ("closed", 0, OLD));
    // Closing: one of two, then both.
    is_finished_from([closed, open, open, none], &[0, 1, 3]).await;
    is_finished_from([closed, closed, open, none], &[0, 1, 3]).await;
    // A client of the new set was early: its record does not count, whatever its age.
    is_finished_from([open, open, open, ("born", 0, NEW)], &[0, 1, 3]).await;
    is_finished_from([closed, closed, closed, ("open", 0, NEW)], &[0, 1, 3]).await;
    // Moving: one of the old nodes, then two, which prove that the new one was born in time.
    is_finished_from([("born", 0, NEW), closed, closed, ("born", 0, NEW)], &[0, 1, 3]).await;
    is_finished_from([("open", 0, NEW), ("open", 0, NEW), closed, ("open", 0, NEW)], &[]).await;
    // Done, except for a node that has lost its data since.
    is_finished_from([("open", 0, NEW), ("open", 0, NEW), ("closed", 0, NEW), none], &[3]).await;
}

#[tokio::test]
async fn a_shorter_delay_does_not_shorten_what_the_old_locks_need() {
    let nodes = Nodes::start(4).await;
    let old_url = nodes.url(&[0, 1, 2], SHORT);
    let quick = "restart_delay=2s&clock_tolerance=500ms&ttl=500ms";
    let new_url = nodes.url(&[0, 1, 3], &next(quick));
    init(&old_url).await.unwrap();
    let locks = connect(&old_url).await.unwrap();
    let start = Instant::now();
    let opened = async {
        let replaced = replace(&old_url, &new_url).await.unwrap();
        open_when_due(&new_url).await.unwrap();
        replaced
    };
    let replaced = within(DELAY * 5, "it opens", opened).await;
    assert!(replaced.opens_in <= Duration::from_secs(2), "{replaced:?}");
    assert!(start.elapsed() >= DELAY, "{:?}", start.elapsed());
    locks.close().await.unwrap();
}

/// An interruption between closing and birth, where a shorter delay makes it pause.
#[tokio::test]
async fn an_interruption_leaves_the_old_set_closed_and_the_new_one_unopened() {
    let nodes = Nodes::start(4).await;
    let old_url = nodes.url(&[0, 1, 2], SHORT);
    let quick = "restart_delay=2s&clock_tolerance=500ms&ttl=500ms";
    let new_url = nodes.url(&[0, 1, 3], &next(quick));
    init(&old_url).await.unwrap();
    let open = nodes.records().await;
    let locks = connect(&old_url).await.unwrap();
    let begin = || {
        let (old_url, new_url) = (old_url.clone(), new_url.clone());
        tokio::spawn(async move { replace(&old_url, &new_url).await })
    };
    let paused = async || {
        until("a majority is closed", async || {
            let records = nodes.records().await;
            records.iter().filter(|record| word(record, 1) == "closed").count() >= 2
        })
        .await;
    };
    let replacing = begin();
    paused().await;
    replacing.abort();
    let error = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert_eq!(nodes.record(3).await, "");

    for (node, record) in open.iter().enumerate().take(3) {
        nodes.set_record(node, record).await;
    }
    let replacing = begin();
    paused().await;
    nodes.node(3).restart().await.unwrap();
    let error = soon("it fails", replacing).await.unwrap().unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains("run it again"), "{error}");
    assert_eq!(nodes.record(3).await, "");

    let replaced = replace(&old_url, &new_url).await.unwrap();
    assert!(!replaced.opens_in.is_zero());
    within(DELAY * 5, "it opens", open_when_due(&new_url)).await.unwrap();
    locks.close().await.unwrap();
}
