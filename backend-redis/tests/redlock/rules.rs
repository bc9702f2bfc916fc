//! What would go wrong without the rules that make a majority of leases one lock: each timeline on
//! real nodes, up to where two clients would hold at once, or a token would be given twice.
//!
//! A and B are clients, `a`, `b` and `c` nodes 0, 1 and 2. Each test names the code that keeps its
//! rule; without it the test fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use fencelock_core::{ErrorKind, Locks, LostReason};
use fencelock_redis::redlock::incarnation::IncarnationRecord;
use fencelock_redis::redlock::votes::{self, Settled, Vote};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::steps::bench::{ME, Node, OTHER, round};
use crate::support::*;

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// A client that reaches all nodes except these.
async fn without(quorum: &TestQuorum, nodes: &[usize], params: &str) -> (Lines, Locks) {
    let lines = quorum.lines().await;
    let locks = lines.connect(params).await;
    lines.lose(nodes);
    (lines, locks)
}

/// A on a and b; a restarts empty; B would get a and c.
///
/// Kept by `incarnation::verdict`: a record that is `Born` is `Quarantined` until the delay has passed.
/// A client B that was connected before also waits by its own clock, in `RestartTracker::observe`.
/// Fault 26: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_data_does_not_vote_a_second_time() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let (_lines, one) = without(&quorum, &[C], QUICK).await;
    let old = quorum.direct(QUICK).await;
    for is_new in [false, true] {
        quorum.open(A).await;
        let lock = one.lock("lock").wait_at_most(PATIENCE).fixed_lease(QUICK_TTL);
        let held = lock.acquire().await.unwrap();
        let until = held.valid_until();
        quorum.restart(A).await;
        let other = if is_new { quorum.direct(QUICK).await } else { old.clone() };
        let next = until_granted(spawn_waiter(&other, "lock")).await;
        assert!(other.now() >= until && !held.is_held(), "two hold at once");
        assert_eq!(soon("notified of the loss", held.lost()).await, LostReason::Expired);
        release(next).await;
    }
}

/// The same one tick before the end of A's validity: a TTL that the delay does not cover.
///
/// Kept by `RedlockStore::longest_ttl`, which limits the default and each claim's TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_outlives_the_delay() {
    /// The longest in whole tenths of a second, of (3000 - 2 * 300 - 2) / 1.01.
    const LONGEST: u64 = 2300;
    const TOO_LONG: u64 = 2375;
    let quorum = TestQuorum::new(3, QUICK).await;
    let (_lines, one) = without(&quorum, &[C], QUICK).await;
    let other = quorum.direct(QUICK).await;
    let too_long = one.lock("lock").fixed_lease(ms(TOO_LONG));
    let refused = too_long.acquire().await.expect_err("a TTL that the delay does not cover");
    assert_kind(&refused, ErrorKind::InvalidArgument);
    let error = try_connect(&quorum.url("restart_delay=2s&clock_tolerance=300ms&ttl=1385ms")).await;
    assert_kind(&error.unwrap_err(), ErrorKind::InvalidArgument);
    // About the longest TTL, and the fastest loss of data.
    let held = soon("granted", one.lock("lock").fixed_lease(ms(LONGEST)).acquire()).await.unwrap();
    quorum.restart(A).await;
    let next = until_granted(spawn_waiter(&other, "lock")).await;
    assert!(!held.is_held(), "two hold at once");
    release(next).await;
}

/// The same up to a second too early, by an age in whole seconds.
///
/// Kept by `incarnation::verdict`, which counts the age in µs from when the node was first seen empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_as_old_as_its_record_to_the_microsecond() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let locks = quorum.direct(QUICK).await;
    for round in 0..2 {
        let killed = now_us();
        quorum.restart(A).await;
        // A client that has not seen the node before: it has only the record.
        let fresh = quorum.direct(QUICK).await;
        until("it votes again", async || {
            let guard = acquire(&fresh, "lock").await;
            let votes = !value(&quorum.nodes[A], "lock").await.is_empty();
            release(guard).await;
            votes
        })
        .await;
        let now = time_us(&quorum.nodes[A]).await;
        let born = IncarnationRecord::parse(&record(&quorum.nodes[A]).await).unwrap().born_us;
        assert!(born >= killed, "round {round}: born {} µs before it was killed", killed - born);
        let age = u128::from(now - born);
        assert!(age >= QUICK_DELAY.as_micros(), "round {round}: it voted at {age} µs of age");
    }
    drop(locks);
}

/// a and c restart; A has one vote of one, and B has one of one.
///
/// Kept by `votes::majority`: of all that are configured, `votes.len()`.
/// Fault 30: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_those_that_reply_is_not_a_quorum() {
    let quorum = TestQuorum::new(3, LONG).await;
    let (_one_lines, one) = without(&quorum, &[B, C], LONG).await;
    let (_other_lines, other) = without(&quorum, &[A, B], LONG).await;
    let error = acquire_error(&one, "lock", ms(300)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    assert_kind(&acquire_error(&other, "lock", ms(300)).await, ErrorKind::Unreachable);
    quorum.drained().await;
    quorum.restart(A).await;
    quorum.restart(C).await;
    let third = quorum.direct(LONG).await;
    let error = acquire_error(&third, "lock", ms(300)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).matches("lost its data or is new").count() == 2, "{error}");
    quorum.drained().await;
}

/// B is granted the larger token of b on a and b and releases. A, of a and c, would get less.
///
/// Kept by `QuorumClaim::write_back`: a round is won once a majority knows its largest token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_token_of_a_round_is_written_back() {
    let quorum = TestQuorum::new(3, LONG).await;
    let far = time_us(&quorum.nodes[B]).await + 3_600_000_000;
    redis_command(&quorum.nodes[B], &["SET", &token_key("lock"), &far.to_string()]).await;
    let (_b_lines, other) = without(&quorum, &[C], LONG).await;
    let (_a_lines, one) = without(&quorum, &[B], LONG).await;
    let first = acquire(&other, "lock").await;
    assert!(first.fencing_token().get() > far, "b's vote counted");
    let token = first.fencing_token();
    release(first).await;
    // The next grant on a and c.
    let second = acquire(&one, "lock").await;
    assert!(second.fencing_token() > token, "{:?} after {token:?}", second.fencing_token());
    release(second).await;
}

/// b's token is larger from a failed try. A gets a's and b's votes, and its key on a is lost; B
/// takes a, with less. Were A's token still acknowledged by a, B would be granted less, after A.
///
/// Kept by `raise.lua`: `if value ~= ARGV[2] … then return 0 end`.
#[test]
fn a_token_counts_only_where_the_claim_still_has_the_lock() {
    let [mut a, mut b, mut c] = [Node::start(), Node::start(), Node::start()];
    let (one, other) = (round(ME, 1), round(OTHER, 1));
    b.set_token(3200);
    assert_eq!(a.vote(&one, 1600).int(), Some(1600));
    let largest = b.vote(&one, 1600).int().unwrap();
    assert_eq!(largest, 3264);
    // A's key on a is gone early: by its clock, or by an operator.
    a.call(&["DEL", "lock"]);
    let smaller = [a.vote(&other, 1664).int(), c.vote(&other, 1664).int()];
    assert_eq!(smaller, [Some(1664), Some(1664)], "B's round");
    let acknowledged = a.raise(&one, 3264).int();
    assert_eq!(acknowledged, Some(0), "a acknowledges A's token, and has given B less");
    assert_eq!(a.token(), 1664, "and a has B's token");
    let votes = [Vote::No, Vote::Yes(3264), Vote::No];
    assert_eq!(votes::settled(&votes, 3264), Settled::No, "A is granted nothing");
}

/// A's late release of its first round would delete what its second round has; B would get the lock.
///
/// Kept by `of_round`, and by `QuorumClaim::begin_round`, which counts the rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_round_is_never_requested_again() {
    let quorum = TestQuorum::new(3, LONG).await;
    let mut spies = Vec::new();
    for node in &quorum.nodes {
        spies.push(Spy::on(node.addr()).await);
    }
    let (one, other) = (quorum.direct(LONG).await, quorum.direct(LONG).await);
    // A client of another library has b and c, so that rounds fail with a's vote.
    for node in [B, C] {
        redis_command(&quorum.nodes[node], &["SET", &key("lock"), "foreign", "PX", "400"]).await;
    }
    let ttl = ms(900);
    let waiting = one.lock("lock").ttl(ttl);
    let held = soon("granted after the foreign one", waiting.acquire()).await.unwrap();
    until_renewed(&one, &held, ttl).await;
    let mut first_rounds = BTreeSet::new();
    for spy in &mut spies {
        let mut freed: BTreeMap<String, usize> = BTreeMap::new();
        for (at, line) in spy.lines().await.into_iter().enumerate() {
            // `vote` and `extend` have the record as an argument, `free` does not.
            let Some(identity) = line.split('"').find(|word| is_round(word)) else { continue };
            match line.contains("fencelock:redlock") {
                true => assert!(!freed.contains_key(identity), "{line} after its release"),
                false => drop(freed.insert(identity.to_owned(), at)),
            }
        }
        first_rounds.extend(freed.into_keys());
    }
    assert!(!first_rounds.is_empty(), "no round failed");
    // They arrive again, as late as possible.
    let free = script("free");
    for identity in &first_rounds {
        for node in &quorum.nodes {
            let keys = ["3", "lock:lock", "{lock:lock}:q", "{lock:lock}:f"];
            let late = [&["EVAL", free][..], &keys, &[identity, "", ""]].concat();
            assert_eq!(
                redis_command(node, &late).await,
                "0",
                "a late release had something to delete"
            );
        }
    }
    assert!(held.is_held() && is_busy(&other, "lock").await);
    quorum.held_everywhere("lock", &[]).await;
    release(held).await;
    quorum.drained().await;
}

/// This machine's clock, which is also the nodes'.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

fn script(name: &str) -> &'static str {
    let scripts = fencelock_redis::quorum_scripts();
    scripts.into_iter().find(|(known, _)| *known == name).unwrap().1
}

fn is_round(word: &str) -> bool {
    let mode = word.split(' ').next().unwrap_or_default();
    let number = mode.strip_prefix('x').unwrap_or_default();
    word.contains(' ') && number.parse::<u32>().is_ok()
}

/// Records the requests to a node by MONITOR.
struct Spy(BufReader<TcpStream>);

impl Spy {
    async fn on(node: std::net::SocketAddr) -> Spy {
        let mut stream = TcpStream::connect(node).await.unwrap();
        stream.write_all(b"MONITOR\r\n").await.unwrap();
        let mut spy = Spy(BufReader::new(stream));
        let mut ok = String::new();
        soon("it listens", spy.0.read_line(&mut ok)).await.unwrap();
        spy
    }

    /// All requests so far.
    async fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = String::new();
        while let Ok(Ok(1..)) = timeout(ms(200), self.0.read_line(&mut line)).await {
            if line.contains("\"EVAL") || line.contains("\"eval") {
                lines.push(std::mem::take(&mut line));
            }
            line.clear();
        }
        lines
    }
}
