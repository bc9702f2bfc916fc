//! Cells: their watches through reconnects and lost sessions, what they cost, and what they leave.

use std::time::Duration;

use fencelock_core::{Cell, CellValue, CellWatch, ErrorKind, Locks, Scratch};
use fencelock_testkit::proxy::{AfterDrop, Close, DropReply, NewConnections};
use fencelock_zk::zookeeper_client::{Acls, CreateMode};
use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::{Instant, sleep};

use crate::support::*;

/// For what is done to a thousand cells on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// The core reads a watched cell again 5 s after its last reading: what is seen earlier was notified.
const UNASKED: Duration = Duration::from_millis(4900);

/// Writes over what is there. Reads again until no other client writes in between.
async fn write(cell: &Cell, bytes: &[u8]) {
    let writing = async {
        loop {
            let seen = cell.read().await.expect("an answer").map(|value| value.version());
            if cell.compare_and_set(seen, bytes).await.expect("an answer") {
                return;
            }
        }
    };
    soon("the cell is written", writing).await;
}

async fn next(watch: &mut CellWatch) -> Option<Vec<u8>> {
    let next = soon("the watch has an answer", watch.next()).await.expect("an answer");
    next.as_ref().map(CellValue::bytes).map(<[u8]>::to_vec)
}

async fn watch(cell: &Cell) -> CellWatch {
    soon("the watch begins", cell.watch()).await.expect("a watch")
}

/// The children of the root: the nodes of locks and cells.
async fn nodes(testbed: &Testbed) -> Vec<String> {
    testbed.client.sync("/").await.expect("in step");
    testbed.client.list_children(&testbed.root).await.expect("a list")
}

/// Has the server of a watch replaced by another one, and a change made in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_moves_to_another_server_misses_no_change() {
    let borrowed = Borrowed::ensemble().await;
    let testbed = Testbed::on(borrowed.servers(), 0).await;
    let (near, far) = (testbed.direct().await, testbed.behind_for_long().await);
    // One is there when the watch begins, and one is not.
    let names = ["one", "two"];
    write(&near.cell(names[0]), b"before").await;
    let mut watches = Vec::new();
    for name in names {
        watches.push(watch(&far.cell(name)).await);
    }
    let first = [next(&mut watches[0]).await, next(&mut watches[1]).await];
    assert_eq!(first, [Some(b"before".to_vec()), None]);
    let mut notified = 0;
    for round in 0..rounds(4) {
        let read = Instant::now();
        testbed.proxy.cut(Close::Reset, NewConnections::Refused).await.expect("it is cut");
        for name in names {
            write(&near.cell(name), &round.to_be_bytes()).await;
        }
        let server = usize::try_from(round + 1).expect("small") % 3;
        let upstream = testbed.servers.servers()[server].connect_string();
        testbed.proxy.lead_to(upstream.parse().expect("an address"));
        testbed.proxy.heal().await.expect("it is healed");
        for watch in &mut watches {
            assert_eq!(next(watch).await, Some(round.to_be_bytes().to_vec()));
        }
        println!("round {round}: seen {:?} after the last reading", read.elapsed());
        notified += u32::from(read.elapsed() < UNASKED);
        until("one watch for each", async || testbed.watches().await.len() == names.len()).await;
    }
    // A busy machine may take longer for some of the reconnects.
    assert!(notified > 0, "it was never notified, and looked");
    drop(watches);
    until("no watch is left", async || testbed.watches().await.is_empty()).await;
}

/// Its server learns of each write a moment after the writer has its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_behind_shows_no_old_content() {
    let borrowed = Borrowed::wired_ensemble().await;
    let servers = borrowed.servers();
    let leader = servers.leader().await.expect("a leader").port();
    let follower = servers.servers().iter().position(|server| server.port() != leader);
    let follower = follower.expect("two of them");
    let testbed = Testbed::on(servers.clone(), follower).await;
    let (near, far) = (testbed.direct().await, testbed.behind_for_long().await);
    let (near, far) = (near.cell("one"), far.cell("one"));
    write(&near, b"0").await;
    for wire in servers.peer_links_of(follower) {
        both_ways(|direction| wire.delay(direction, ms(100)));
    }
    for round in 0..5u8 {
        write(&near, &[round]).await;
        let seen = soon("it is read", far.read()).await.expect("an answer").expect("there");
        assert_eq!(seen.bytes(), [round]);
        write(&near, b"again").await;
        let mut watching = watch(&far).await;
        assert_eq!(next(&mut watching).await.as_deref(), Some(&b"again"[..]));
    }
    for wire in servers.peer_links_of(follower) {
        wire.heal().await.expect("it is healed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_whose_session_was_lost_watches_in_a_new_one() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct().await, testbed.behind().await);
    let (cell, seen_by) = (near.cell("one"), far.cell("one"));
    write(&cell, b"before").await;
    let mut watching = watch(&seen_by).await;
    assert_eq!(next(&mut watching).await.as_deref(), Some(&b"before"[..]));
    both_ways(|direction| testbed.proxy.black_hole(direction));
    until("the servers end the session", async || testbed.watches().await.is_empty()).await;
    write(&cell, b"meanwhile").await;
    testbed.proxy.heal().await.expect("it is healed");
    assert_eq!(next(&mut watching).await.as_deref(), Some(&b"meanwhile"[..]));
    let read = Instant::now();
    until("it watches again", async || testbed.watches().await.len() == 1).await;
    write(&cell, b"after").await;
    assert_eq!(next(&mut watching).await.as_deref(), Some(&b"after"[..]));
    assert!(read.elapsed() < UNASKED, "it was not notified, and looked");
}

/// The transport sets its watches again, and nothing but a reading shows that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_cell_is_read_again_after_a_reconnect() {
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    let mut watching = watch(&far.cell("one")).await;
    assert_eq!(next(&mut watching).await, None);
    // A watch that begins may read twice.
    sleep(ms(500)).await;
    let read = Instant::now();
    let reading = DropReply::first(AfterDrop::Reset).matching(is(Op::GetData));
    testbed.proxy.drop_reply(reading).expect("it is armed");
    testbed.proxy.close_connections(Close::Reset).await;
    soon("it reads", testbed.proxy.dropped_reply()).await;
    assert!(read.elapsed() < UNASKED - ms(500), "it was not notified, and looked");
    // The lost answer to that is asked for again.
    write(&testbed.direct().await.cell("one"), b"a").await;
    assert_eq!(next(&mut watching).await.as_deref(), Some(&b"a"[..]));
}

/// Each write is made once: the first one, one over another, and a removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_was_lost_is_made_once() {
    let (testbed, near, far) = Testbed::near_and_far().await;
    // Not a heartbeat.
    let is_write = |bytes: &[u8]| is(Op::Multi)(bytes) && bytes.windows(2).any(|it| it == b"~c");
    for way in [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::BlackHole] {
        // Armed before the write begins, which goes on in a task of its own.
        let next_reply = || {
            testbed.proxy.drop_reply(DropReply::first(way).matching(is_write)).expect("armed");
            async {
                soon("a reply is lost", testbed.proxy.dropped_reply()).await;
                if matches!(way, AfterDrop::BlackHole) {
                    sleep(T / 4).await;
                    testbed.proxy.heal().await.expect("it is healed");
                }
            }
        };
        let counter = far.counter("one");
        for count in 1..=3 {
            let (added, ()) = tokio::join!(counter.add(1), next_reply());
            assert_eq!(added.expect("added"), count, "{way:?}");
            assert_eq!(near.counter("one").get().await.expect("an answer"), count, "{way:?}");
        }
        let (removed, ()) = tokio::join!(counter.remove(), next_reply());
        removed.expect("removed");
        assert!(nodes(&testbed).await.is_empty());
    }
}

/// Their paths take more than one session can ask for at a reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watched_cells_survive_every_connection_reset() {
    const CELLS: usize = 1_000;
    let name = |at: usize| format!("{at:->180}");
    let (testbed, near, far) = Testbed::near_and_far().await;
    let write_all = async |bytes: &'static [u8], locks: &Locks, step: usize| {
        let cells = (0..CELLS).step_by(step).map(|at| locks.cell(name(at)));
        let writing = stream::iter(cells.map(async |cell| write(&cell, bytes).await));
        within(LONG, "all are written", writing.buffer_unordered(50).collect::<()>()).await;
    };
    write_all(b"before", &near, 2).await;
    let watching = stream::iter((0..CELLS).map(|at| far.cell(name(at))));
    let watching = watching.map(async |cell| {
        let mut watching = watch(&cell).await;
        next(&mut watching).await;
        watching
    });
    let mut watches: Vec<_> =
        within(LONG, "all are watched", watching.buffered(50).collect()).await;
    // While one is read again, as each is after 5 s, it has no watch.
    until("all are watched", async || testbed.watches().await.len() == CELLS).await;
    let connections = testbed.proxy.stats().open;
    println!("{CELLS} cells by {connections} connections");
    for reset in 0..rounds(4) {
        let accepted = testbed.proxy.stats().accepted;
        testbed.proxy.close_connections(Close::Reset).await;
        soon("it connects", testbed.proxy.accepted(accepted + connections)).await;
        until("all are watched", async || testbed.watches().await.len() == CELLS).await;
        // A reconnect that fails is repeated.
        sleep(ms(500)).await;
        let reconnects = testbed.proxy.stats().accepted - accepted;
        assert!(reconnects <= connections * 2, "{reconnects} connections after reset {reset}");
    }
    write_all(b"after", &near, 1).await;
    let seeing = stream::iter(&mut watches).map(next).buffered(CELLS).collect::<Vec<_>>();
    let seen = within(LONG, "all changes are seen", seeing).await;
    assert!(seen.iter().all(|seen| seen.as_deref() == Some(b"after")));
    drop(watches);
    until("no watch is left", async || testbed.watches().await.is_empty()).await;
    soon("one connection is left", testbed.proxy.connections(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_cells_that_were_removed_and_watches_that_were_dropped() {
    let testbed = Testbed::alone().await;
    let (one, two) = (testbed.direct().await, testbed.direct().await);
    let cell = one.cell("one");
    let count = async || {
        let counts = testbed.servers.servers()[0].four_letter("mntr").await.expect("an answer");
        counts.lines().find_map(|line| line.strip_prefix("zk_watch_count\t")?.parse::<u32>().ok())
    };
    for is_there in [false, true] {
        if is_there {
            write(&cell, b"0").await;
        }
        let mut watching = watch(&two.cell("one")).await;
        assert_eq!(next(&mut watching).await.is_some(), is_there);
        assert_eq!(count().await, Some(1));
        // A second watch, which is the first one's at the servers.
        let mut second = watch(&two.cell("one")).await;
        assert_eq!(next(&mut second).await.is_some(), is_there);
        assert_eq!(count().await, Some(1));
        drop((watching, second));
        testbed.bare().await;
    }
    let mut watching = watch(&two.cell("one")).await;
    for round in 0..10u8 {
        write(&cell, &[round]).await;
        assert!(next(&mut watching).await.is_some());
        let latch = one.latch("latch", 1).wait_at_most(LONG);
        let (opened, counted) = tokio::join!(latch.wait(), latch.count_down());
        opened.expect("open");
        assert_eq!(counted.expect("an answer"), 0);
        latch.remove().await.expect("removed");
        one.counter("counter").add(1).await.expect("added");
        one.counter("counter").remove().await.expect("removed");
    }
    assert_eq!(nodes(&testbed).await, ["one~c"]);
    let path = format!("{}/one~c", testbed.root);
    assert_eq!(testbed.client.list_children(&path).await.expect("a list").len(), 1);
    // An operator's view of the lock of the same name.
    assert!(one.inspect("one").await.expect("an answer").holders.is_empty());
    cell.remove().await.expect("removed");
    drop(watching);
    testbed.bare().await;
    assert!(nodes(&testbed).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_costs_one_request_and_a_read_two() {
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    let (counter, cell) = (far.counter("counter"), far.cell("one"));
    write(&cell, b"0").await;
    let requests = || testbed.proxy.stats().requests;
    let before = requests();
    assert!(cell.read().await.expect("an answer").is_some());
    assert_eq!(requests() - before, 2);
    // It reads before it writes, and nothing is there.
    let before = requests();
    assert_eq!(counter.add(1).await.expect("added"), 1);
    assert_eq!(requests() - before, 3);
    counter.remove().await.expect("removed");
    cell.remove().await.expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_write_makes_a_root_that_was_removed() {
    let (testbed, locks) = Testbed::near().await;
    testbed.client.delete(&testbed.root, None).await.expect("deleted");
    assert!(locks.cell("one").read().await.expect("an answer").is_none());
    let written = soon("it is written", locks.cell("one").compare_and_set(None, *b"a")).await;
    assert!(written.expect("an answer"));
    locks.cell("one").remove().await.expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_other_programs_make_of_a_cell_is_reported_and_kept() {
    let (testbed, locks) = Testbed::near().await;
    let cell = locks.cell("one");
    let path = format!("{}/one~c", testbed.root);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for data in [&b""[..], b"short", b"long enough for a stamp and more"] {
        testbed.client.create(&path, data, &options).await.expect("created");
        let error = soon("an answer", cell.read()).await.expect_err("not a cell");
        assert_kind(&error, ErrorKind::Foreign);
        let write = soon("an answer", cell.compare_and_set(None, *b"a")).await;
        assert_kind(&write.expect_err("not a cell"), ErrorKind::Foreign);
        assert_eq!(testbed.client.get_data(&path).await.expect("there").0, data);
        testbed.client.delete(&path, None).await.expect("deleted");
    }
    write(&cell, b"a").await;
    let seen = cell.read().await.expect("an answer").expect("there").version();
    let children = testbed.client.list_children(&path).await.expect("a list");
    testbed.client.delete(&format!("{path}/{}", children[0]), None).await.expect("deleted");
    let write = soon("an answer", cell.compare_and_set(Some(seen), *b"b")).await;
    let error = write.expect_err("not whole");
    assert_kind(&error, ErrorKind::Foreign);
    assert!(error_chain(&error).contains(&path), "{error:?}");
    testbed.client.delete(&path, None).await.expect("deleted");
    assert!(cell.compare_and_set(None, *b"c").await.expect("written"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cells_of_a_login_are_closed_to_others() {
    let testbed = Testbed::start().await;
    let url = testbed.url(&testbed.servers.connect_string(), "auth=digest:me:hunter2");
    let own = connect(&url).await;
    write(&own.cell("one"), b"a").await;
    let path = format!("{}/one~c", testbed.root);
    no_right(&testbed.client, &path).await;
    write(&connect(&url).await.cell("one"), b"b").await;
    own.cell("one").remove().await.expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clearing_removes_the_cells_of_a_run_and_no_other() {
    let testbed = Testbed::start().await;
    let (kept, scratch) = (testbed.direct().await, Scratch::fresh("run:", "bench"));
    let url = testbed.url(&testbed.servers.connect_string(), "");
    let tool = connect(&url.replace("prefix=", &format!("prefix={}", scratch.prefix()))).await;
    for locks in [&kept, &tool] {
        write(&locks.cell("one"), b"a").await;
        release(acquire(locks, "one").await).await;
    }
    soon("it is cleared", tool.clear(&scratch, LONG)).await.expect("cleared");
    assert!(tool.cell("one").read().await.expect("an answer").is_none());
    let mut left = nodes(&testbed).await;
    left.sort();
    assert_eq!(left, ["one", "one~c"]);
    assert!(kept.cell("one").read().await.expect("an answer").is_some());
}
