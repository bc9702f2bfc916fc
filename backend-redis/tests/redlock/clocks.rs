//! Rows 33 and 35: nodes whose wall clocks jump, or run too fast.

use fencelock_core::{ErrorKind, FencingToken};
use fencelock_testkit::clocks::one_percent_fast;
use fencelock_testkit::proxy::{Close, Proxy};
use fencelock_testkit::scenes;
use fencelock_testkit::servers::{RedisOptions, ServerClock};
use futures_util::future::join_all;

use crate::support::*;

/// Three nodes, each with its own clock.
async fn skewed(params: &str) -> (TestQuorum, Vec<ServerClock>) {
    let clocks: Vec<_> = (0..3).map(|_| ServerClock::of("redis-server").unwrap()).collect();
    let quorum =
        TestQuorum::of(clocks.iter().map(|clock| RedisOptions::new().program(clock.program())));
    let quorum = quorum.await;
    quorum.declare_new(params).await;
    (quorum, clocks)
}

/// Makes each client read the clocks again, as it does for a new connection.
async fn read_again(lines: &Lines) {
    for proxy in &lines.proxies {
        proxy.close_connections(Close::Reset).await;
    }
}

/// Fault 33: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_wrong_clock_is_excluded_and_not_needed() {
    let (quorum, clocks) = skewed(LONG).await;
    let lines = quorum.lines().await;
    let old = lines.connect(LONG).await;
    let mut last: Option<FencingToken> = None;
    for seconds in [40, -40] {
        clocks[1].is_ahead_by(seconds).unwrap();
        let new = quorum.direct(LONG).await;
        read_again(&lines).await;
        for locks in [&new, &old] {
            // Its first round after the jump may still ask that node.
            until("the node is excluded", async || {
                let guard = acquire(locks, "lock").await;
                assert!(last < Some(guard.fencing_token()), "{seconds}");
                last = Some(guard.fencing_token());
                until("the others vote", async || {
                    let values = quorum.values("lock").await;
                    !values[0].is_empty() && !values[2].is_empty()
                })
                .await;
                let is_out = value(&quorum.nodes[1], "lock").await.is_empty();
                assert!(is_busy(&new, "lock").await && is_busy(&old, "lock").await);
                release(guard).await;
                is_out
            })
            .await;
        }
        quorum.drained().await;
    }
    // With the right clock it takes part again, whatever its record went through meanwhile.
    clocks[1].is_ahead_by(0).unwrap();
    assert!(acquire(&quorum.direct(LONG).await, "lock").await.fencing_token() > last.unwrap());
}

/// Fault 33: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_whose_clocks_disagree_is_refused_by_name() {
    let (quorum, clocks) = skewed(LONG).await;
    let lines = quorum.lines().await;
    let old = lines.connect(LONG).await;
    let before = acquire(&old, "lock").await;
    let token = before.fencing_token();
    release(before).await;
    clocks[0].is_ahead_by(40).unwrap();
    clocks[2].is_ahead_by(-40).unwrap();
    let refused = try_connect(&quorum.url(LONG)).await.unwrap_err();
    assert_kind(&refused, ErrorKind::Refused);
    read_again(&lines).await;
    let mut error = None;
    until("the connected client gets the error", async || {
        let answer = old.lock("lock").wait_at_most(ms(300)).acquire().await;
        error = answer.err();
        // At first perhaps only that the connections were reset.
        error.as_ref().is_some_and(|error| error_chain(error).contains("the clocks of a majority"))
    })
    .await;
    for (error, urls) in [
        (refused, quorum.nodes.iter().map(|node| node.addr()).collect::<Vec<_>>()),
        (error.unwrap(), lines.proxies.iter().map(Proxy::addr).collect()),
    ] {
        let words = error_chain(&error);
        assert!(words.contains("the clocks of a majority are not within"), "{words}");
        assert!(urls.iter().all(|node| words.contains(&format!("{node}: "))), "{words}");
    }
    for clock in &clocks {
        clock.is_ahead_by(0).unwrap();
    }
    read_again(&lines).await;
    // Its own clock was set back: node 0 counts as one that lost its data. Two are left.
    let after = acquire(&old, "lock").await;
    assert!(after.fencing_token() > token);
    release(after).await;
}

/// Tokens are taken from the clock that is ahead as far as it may be; they also rise without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_clocks_that_differ_within_the_tolerance() {
    let (quorum, clocks) = skewed(LONG).await;
    let mut last = None;
    for (node, seconds) in [(0, 8), (1, 8), (0, 0), (2, -1), (1, 0), (2, 9), (0, 1)] {
        clocks[node].is_ahead_by(seconds).unwrap();
        let lines = quorum.lines().await;
        let locks = lines.connect(LONG).await;
        for lost in 0..3 {
            lines.lose(&[lost]);
            let guard = acquire(&locks, "lock").await;
            assert!(last < Some(guard.fencing_token()), "{seconds} at {node}, without {lost}");
            last = Some(guard.fencing_token());
            release(guard).await;
            lines.heal().await;
        }
    }
}

/// Row 35: leases that expire a hundredth too early on every node.
/// Fault 35: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_run_a_hundredth_too_fast_free_no_held_lock() {
    let (quorum, clocks) = skewed(LONG).await;
    let (near, lines) = (quorum.direct(LONG).await, quorum.lines().await);
    let far = lines.connect(LONG).await;
    let scene = scenes::held_on_fast_clocks(&near, &far, || lines.lose(&[0, 1, 2]));
    let shown = async || {
        lines.heal().await;
        join_all(quorum.nodes.iter().map(time_us)).await
    };
    one_percent_fast(&clocks, scene, shown).await;
    quorum.drained().await;
}
