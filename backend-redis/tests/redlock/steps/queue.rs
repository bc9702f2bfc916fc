//! Whose turn it is at one node, and which waiters are notified.

use super::bench::{ME, Mode, Node, OTHER, READER, SECOND_READER, round};

const THIRD: &str = "x 30000 p1 ee a label";
const THIRD_READER: &str = "s 30000 p1 ff a label";

fn push(process: &str, message: &str) -> (String, String) {
    (process.to_owned(), message.to_owned())
}

/// A node whose lock `ME` has exclusively, and for which these wait: they came at 10, 20, and so on.
fn held_before(waiters: &[&str]) -> Node {
    let mut node = Node::start();
    node.vote(&round(ME, 1), 1600);
    for (n, waiter) in (1..).zip(waiters) {
        let mode = if waiter.starts_with('x') { Mode::Exclusive } else { Mode::Shared };
        node.wait(waiter, mode, 10 * n);
    }
    node
}

#[test]
fn a_free_lock_is_granted_to_the_first_in_the_queue() {
    let mut node = Node::start();
    node.vote(&round(ME, 1), 1600);
    // In another order than they have arrived in, by clocks that agree.
    node.wait(THIRD, Mode::Exclusive, 20);
    node.wait(OTHER, Mode::Exclusive, 10);
    assert_eq!(node.waiters(), [OTHER, THIRD]);
    node.free(&round(ME, 1));
    let (whose, _, first) =
        node.vote_as(&round(THIRD, 2), THIRD, Mode::Exclusive, 3200, 20).rejection();
    assert_eq!((whose.as_str(), first), ("", 0), "it is free, and others come first");
    assert_eq!(
        node.vote(&round(ME, 2), 3200).rejection().0,
        "",
        "also for claims that do not queue"
    );
    for _ in 0..2 {
        let granted = node.vote_as(&round(OTHER, 2), OTHER, Mode::Exclusive, 3200, 10);
        assert_eq!(granted.int(), Some(3200));
        assert_eq!(node.waiters(), [THIRD], "a granted waiter has left the queue");
    }
}

#[test]
fn readers_overtake_only_readers() {
    let mut node = held_before(&[READER, SECOND_READER, OTHER, THIRD_READER]);
    node.free(&round(ME, 1));
    node.pushes();
    let ask = |node: &mut Node, reader: &str, arrival| {
        node.vote_as(&round(reader, 2), reader, Mode::Shared, 3200, arrival)
    };
    assert_eq!(ask(&mut node, THIRD_READER, 40).rejection().0, "", "after a writer");
    assert!(ask(&mut node, SECOND_READER, 20).int() > Some(0), "after a reader");
    assert_eq!(ask(&mut node, THIRD_READER, 40).rejection().0, "group");
    assert!(ask(&mut node, READER, 10).int() > Some(0));
    let refused = node.vote_as(&round(OTHER, 2), OTHER, Mode::Exclusive, 3200, 30).rejection();
    assert_eq!((refused.0.as_str(), refused.2), ("group", 1));
    node.free(&round(READER, 2));
    node.pushes();
    node.free(&round(SECOND_READER, 2));
    assert_eq!(node.pushes(), [push("p2", "bb")], "the writer, once the last reader has gone");
}

#[test]
fn a_release_notifies_exactly_the_waiters_whose_turn_it_is() {
    let mut node = held_before(&[OTHER, THIRD]);
    assert_eq!(node.pushes(), [], "it is held");
    node.free(&round(ME, 1));
    assert_eq!(node.pushes(), [push("p2", "bb")]);
    node.free(&round(ME, 1));
    assert_eq!(node.pushes(), [], "a repeat releases nothing");
    // The first leaves, and was not granted: the next one's turn has come with the next release.
    node.vote_as(&round(OTHER, 2), OTHER, Mode::Exclusive, 3200, 10);
    node.wait(READER, Mode::Shared, 30);
    node.wait(SECOND_READER, Mode::Shared, 40);
    node.free_waiting(&round(OTHER, 2), OTHER);
    assert_eq!(node.pushes(), [push("p1", "ee")]);
    node.vote_as(&round(THIRD, 2), THIRD, Mode::Exclusive, 3200, 20);
    node.free(&round(THIRD, 2));
    assert_eq!(node.pushes(), [push("p1", "cc"), push("p2", "dd")], "readers come together");
}

/// A waiter keeps its place after a split round, and the next one is notified.
#[test]
fn a_claim_that_rolls_back_stays_in_the_queue() {
    let mut node = Node::start();
    let me = round(ME, 1);
    assert!(node.vote_as(&me, ME, Mode::Exclusive, 1600, 10).int() > Some(0));
    node.wait(OTHER, Mode::Exclusive, 20);
    assert_eq!(node.roll_back(&me, ME, 10).int(), Some(1));
    assert_eq!((node.holder(), node.waiters()), (String::new(), vec![ME.into(), OTHER.into()]));
    assert_eq!(node.pushes(), [push("p1", "aa")]);
    assert_eq!(node.roll_back(&me, ME, 10).int(), Some(0));
    assert_eq!(node.waiters(), [ME, OTHER]);
    assert_eq!(node.pushes(), []);
    assert_eq!(node.free_waiting(&me, ME).int(), Some(1), "it was in the queue");
    assert_eq!(node.waiters(), [OTHER]);
    assert_eq!(node.pushes(), [push("p2", "bb")]);
    assert_eq!(node.free_waiting(&me, ME).int(), Some(0));
    node.free_waiting(&round(OTHER, 1), OTHER);
    assert_eq!(node.call(&["EXISTS", "{lock}:q"]).int(), Some(0), "an empty queue is gone");
}

#[test]
fn the_waiters_of_a_dead_process_are_passed_over() {
    let mut node = held_before(&[OTHER, THIRD]);
    // Client p2 has not checked for too long.
    node.call(&["ZADD", "{lock}:q", "1", "@p2"]);
    node.free(&round(ME, 1));
    assert_eq!(node.pushes(), [push("p1", "ee")]);
    assert!(node.vote_as(&round(THIRD, 2), THIRD, Mode::Exclusive, 3200, 20).int() > Some(0));
    assert_eq!(node.waiters(), Vec::<String>::new());
    // It is alive after all, and its check shows it.
    let (_, missing, _) = node.check_waiters("p2", &[OTHER]).check();
    assert_eq!(missing, 1);
}

#[test]
fn a_check_keeps_a_client_alive_and_reports_lost_pushes() {
    let mut node = Node::start();
    let no_waiter = (1000, 1, String::new());
    assert_eq!(node.check_waiters("p1", &[ME]).check(), no_waiter, "it is not in the queue");
    node.vote(&round(THIRD, 1), 1600);
    node.wait(ME, Mode::Exclusive, 10);
    node.wait(OTHER, Mode::Exclusive, 20);
    let (ms, missing, first) = node.check_waiters("p1", &[ME]).check();
    assert_eq!((missing, first.as_str()), (0, ME));
    assert!((1..=1000).contains(&ms), "{ms}");
    assert_eq!(
        node.check_waiters("p2", &[OTHER]).check(),
        (1000, 0, String::new()),
        "it is not the first"
    );
    assert_eq!(
        node.check_waiters("p2", &[OTHER, ME, READER]).check().1,
        1,
        "one of three is not there"
    );
    node.call(&["ZADD", "{lock}:q", "1", "@p1"]);
    node.call(&["DEL", "lock"]);
    node.pushes();
    // Each check shows that its client is alive.
    for _ in 0..2 {
        let check = node.check_waiters("p1", &[ME]);
        assert_eq!((check.check(), check.turns()), ((0, 0, ME.to_owned()), vec![ME.to_owned()]));
    }
    assert_eq!(node.pushes(), [], "the client that checks needs no push");
    assert_eq!(node.check_waiters("p2", &[OTHER]).check(), (1000, 0, String::new()));
    assert_eq!(node.pushes(), [push("p1", "aa")], "the first is notified, since its push was lost");
    assert!(node.ttl("{lock}:q") > 3000);
}

/// A run of readers longer than one step notifies is continued, with one push for each reader.
#[test]
fn readers_are_notified_once_regardless_of_their_number() {
    const READERS: usize = 150;
    const AT_ONCE: usize = 64;
    let mut node = Node::start();
    node.vote(&round(ME, 1), 1600);
    let readers: Vec<_> = (0..READERS).map(|n| format!("s 30000 p2 {n:x} a label")).collect();
    for (arrival, reader) in (10..).zip(&readers) {
        node.wait(reader, Mode::Shared, arrival);
    }
    node.wait(OTHER, Mode::Exclusive, 1000);
    let word = |n: usize| push("p2", &format!("{n:x}"));
    node.free(&round(ME, 1));
    assert_eq!(node.pushes(), (0..AT_ONCE).map(word).collect::<Vec<_>>());
    for (n, reader) in readers.iter().enumerate() {
        let arrival = 10 + n as u64;
        assert!(
            node.vote_as(&round(reader, 2), reader, Mode::Shared, 3200, arrival).int() > Some(0)
        );
        let next: Vec<_> = (n + AT_ONCE..READERS).take(1).map(word).collect();
        assert_eq!(node.pushes(), next, "after reader {n}");
        if n % 2 == 1 {
            // Others may keep reading.
            node.free(&round(reader, 2));
            assert_eq!(node.pushes(), []);
        }
    }
    // A busy machine may take longer than the silence that a client is allowed.
    node.call(&["ZADD", "{lock}:q", "9999999999999", "@p2"]);
    for (n, reader) in readers.iter().enumerate().filter(|(n, _)| n % 2 == 0) {
        node.free(&round(reader, 2));
        let last = n + 2 == READERS;
        assert_eq!(node.pushes(), if last { vec![push("p2", "bb")] } else { vec![] });
    }
}

/// A dead holder has notified no waiter: the check of the first waiter's client notifies the others, and
/// returns its own.
#[test]
fn all_readers_are_notified_of_an_expired_lease() {
    let mut node = held_before(&[READER, THIRD_READER, SECOND_READER]);
    assert_eq!(node.check_waiters("p1", &[READER]).turns(), Vec::<String>::new(), "it is held");
    node.call(&["DEL", "lock"]);
    assert_eq!(node.check_waiters("p2", &[SECOND_READER]).turns(), [SECOND_READER]);
    assert_eq!(node.pushes(), [push("p1", "cc")], "the first");
    let check = node.check_waiters("p1", &[READER]);
    assert_eq!(check.check(), (0, 0, READER.to_owned()));
    assert_eq!(check.turns(), [READER, THIRD_READER]);
    assert_eq!(node.pushes(), [push("p2", "dd")]);
}

/// A waiter that leaves the queue unblocks those that it was ahead of.
#[test]
fn a_waiter_that_leaves_a_free_lock_lets_the_next_pass() {
    let mut node = held_before(&[OTHER, READER, SECOND_READER, THIRD]);
    node.free(&round(ME, 1));
    assert_eq!(node.pushes(), [push("p2", "bb")]);
    node.free_waiting(&round(OTHER, 1), OTHER);
    assert_eq!(node.pushes(), [push("p1", "cc"), push("p2", "dd")]);
    node.free_waiting(&round(THIRD, 1), THIRD);
    assert_eq!(node.pushes(), [], "they have been notified");
}

/// A step passes over a limited number of dead waiters and reports that there are more.
#[test]
fn many_dead_waiters_are_passed_over_in_short_steps() {
    const DEAD: usize = 300;
    let mut node = Node::start();
    node.vote(&round(THIRD, 1), 1600);
    for n in 0..DEAD {
        node.wait(&format!("x 30000 p2 {n:x} a label"), Mode::Exclusive, 10 + n as u64);
    }
    node.wait(ME, Mode::Exclusive, 1000);
    node.call(&["ZADD", "{lock}:q", "1", "@p2"]);
    node.free(&round(THIRD, 1));
    assert_eq!(node.waiters().len(), DEAD - 256 + 1);
    // No waiter overtakes a live one that follows them.
    node.call(&["ZADD", "{lock}:q", "1", "@p2"]);
    for n in 0..DEAD {
        node.call(&["ZADD", "{lock}:q", &format!("10000000000{n:05}"), &format!("x 1 p2 {n:x} d")]);
    }
    assert_eq!(node.vote(&round(READER, 1), 3200).rejection(), (String::new(), 1, 1));
    assert_eq!(node.check_waiters("p1", &[ME]).check(), (0, 0, ME.to_owned()));
    assert_eq!(node.waiters(), [ME]);
}

/// The release of that round would remove what the later one relies on.
#[test]
fn a_reader_is_not_counted_by_what_an_earlier_round_has() {
    let mut node = Node::start();
    assert!(node.vote_shared(&round(READER, 1), 1600).int() > Some(0));
    assert_eq!(node.vote_shared(&round(READER, 2), 1600).rejection().0, "cc");
    assert_eq!(node.free(&round(READER, 1)).int(), Some(1));
    assert!(node.vote_shared(&round(READER, 2), 3200).int() > Some(0));
}

#[test]
fn an_evicted_claim_is_notified() {
    let mut node = held_before(&[OTHER]);
    assert_eq!(node.evict(&round(ME, 1)).int(), Some(1));
    assert_eq!(node.pushes(), [push("p1", "aa 0"), push("p2", "bb")]);
    assert_eq!(node.evict(&round(ME, 1)).int(), Some(0));
}

/// Nor by a node that never had it, nor by a vote that arrives late.
#[test]
fn what_was_evicted_is_neither_reinstalled_nor_extended() {
    let mut node = Node::start();
    assert_eq!(node.evict(&round(ME, 1)).int(), Some(0));
    assert_eq!(node.extend(&round(ME, 1), "30000", 1600, "plant").int(), Some(0));
    let key = node.eviction(&round(ME, 1));
    assert!(node.ttl(&key) > 30_000, "longer than it may be held");
    node.vote(&round(ME, 1), 1600);
    assert_eq!(node.extend(&round(ME, 1), "30000", 1600, "").int(), Some(0));
    node.free(&round(ME, 1));
    // Another round of the claim was not, and its own eviction is another one.
    assert_eq!(node.extend(&round(ME, 2), "30000", 1600, "plant").int(), Some(1));
    assert_eq!(node.evict(&round(ME, 2)).int(), Some(1));
    for n in [1, 2] {
        assert_eq!(node.extend(&round(ME, n), "30000", 1600, "plant").int(), Some(0));
    }
}
