//! Cells: values with compare-and-swap, also when replies are lost.

use fencelock_core::{Cell, Content, ErrorKind, Keep, Locks, Stamp};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::behaviours::interface::names::ODD;
use crate::behaviours::prelude::*;
use crate::behaviours::work::Lateness;
use crate::cancel_points::DroppedAfter;

const GROUP: &str = "cells";
const NEEDS: &[Need] = &[Need::Cells];
const LOSE_REPLY: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::LoseReply)];
const FAULTS: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::NetworkFaults)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "what_is_written_is_read_by_every_client", NEEDS, &written),
    behaviour(GROUP, "only_one_of_many_first_writes_wins", NEEDS, &first),
    behaviour(GROUP, "a_write_from_an_old_version_is_refused", NEEDS, &old),
    behaviour(GROUP, "a_repeated_swap_is_the_same_swap", NEEDS, &repeated),
    behaviour(GROUP, "a_swap_from_an_old_stamp_changes_nothing", NEEDS, &stamps),
    // Fault 7
    behaviour(GROUP, "a_write_whose_reply_was_lost_is_one_write", LOSE_REPLY, &lost_replies),
    behaviour(GROUP, "a_removed_cell_that_comes_again_is_another", NEEDS, &removed),
    behaviour(GROUP, "a_watch_is_notified_of_every_last_change", NEEDS, &watched),
    behaviour(GROUP, "no_change_is_missed_between_reading_and_watching", NEEDS, &raced),
    behaviour(GROUP, "a_watch_goes_on_after_a_cut", FAULTS, &cut_off),
    behaviour(GROUP, "a_cell_outlives_its_writer", NEEDS, &outlives),
    behaviour(GROUP, "a_cell_ends_after_its_time", NEEDS, &ends),
    behaviour(GROUP, "the_largest_value_fits_and_a_larger_one_is_refused", NEEDS, &largest),
    // Fault 42
    behaviour(GROUP, "any_text_is_the_name_of_a_cell", NEEDS, &names),
    behaviour(GROUP, "a_stale_token_writes_nothing", NEEDS, &stale),
    behaviour(GROUP, "cells_and_locks_of_one_name_are_apart", NEEDS, &apart),
    behaviour(GROUP, "a_cell_of_another_kind_is_foreign_and_stays", NEEDS, &kinds),
    // Fault 44
    behaviour(GROUP, "a_write_dropped_anywhere_is_all_or_nothing", NEEDS, &dropped),
    behaviour(GROUP, "a_store_without_cells_says_which_have_them", &[], &unsupported),
];

async fn read(context: &Context, cell: &Cell) -> Option<Vec<u8>> {
    let read = context.soon("the cell is read", cell.read()).await.expect("an answer");
    read.map(|value| value.bytes().to_vec())
}

/// Writes over what is there, at once.
async fn write(context: &Context, cell: &Cell, bytes: &[u8]) {
    let seen = context.soon("the cell is read", cell.read()).await.expect("an answer");
    let version = seen.map(|value| value.version());
    let set = context.soon("it is written", cell.compare_and_set(version, bytes)).await;
    assert!(set.expect("an answer"), "nobody else writes");
}

async fn remove(context: &Context, cell: &Cell) {
    context.soon("the cell is removed", cell.remove()).await.expect("removed");
}

async fn written(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (one, two) = (one.cell("value"), two.cell("value"));
    assert_eq!(read(&context, &two).await, None);
    for bytes in [&b"first"[..], b"", b"\0\xff{}\n", b"last"] {
        write(&context, &one, bytes).await;
        assert_eq!(read(&context, &two).await.as_deref(), Some(bytes));
    }
    remove(&context, &two).await;
    assert_eq!(read(&context, &one).await, None);
    // Nothing is there to remove.
    remove(&context, &one).await;
}

async fn first(context: Arc<Context>) {
    for round in 0..5 {
        let name = format!("value-{round}");
        let mut tasks = JoinSet::new();
        // So that none of them finds the first write of another that has ended.
        let together = Arc::new(Barrier::new(20));
        for client in 0..4u8 {
            let locks = context.client().await;
            for task in 0..5u8 {
                let (cell, mine) = (locks.cell(&name), vec![client, task]);
                let together = together.clone();
                tasks.spawn(async move {
                    together.wait().await;
                    let won = cell.compare_and_set(None, mine.clone()).await.expect("an answer");
                    won.then_some(mine)
                });
            }
        }
        let all = context.soon("all have an answer", tasks.join_all()).await;
        let won: Vec<_> = all.into_iter().flatten().collect();
        context.assert_final(won.len() == 1, || format!("{} first writes won", won.len()));
        let cell = context.client().await.cell(&name);
        assert_eq!(read(&context, &cell).await.as_ref(), Some(&won[0]));
        remove(&context, &cell).await;
    }
}

async fn old(context: Arc<Context>) {
    let cell = context.client().await.cell("value");
    write(&context, &cell, b"one").await;
    let seen = cell.read().await.expect("an answer").expect("it is there");
    // The same bytes: another version all the same.
    write(&context, &cell, b"one").await;
    for expected in [Some(seen.version()), None] {
        let set = cell.compare_and_set(expected, *b"two").await.expect("an answer");
        context.assert_final(!set, || "a write from an old version was made".to_owned());
    }
    assert_eq!(read(&context, &cell).await.as_deref(), Some(&b"one"[..]));
    remove(&context, &cell).await;
    let set = cell.compare_and_set(Some(seen.version()), *b"two").await.expect("an answer");
    assert!(!set && read(&context, &cell).await.is_none());
}

fn content(n: u8) -> Content {
    // No content of the core: these tests are of the store.
    Content { stamp: Stamp::from_bytes([n; Stamp::BYTES]), bytes: vec![n; usize::from(n)] }
}

/// A swap of the store itself.
async fn swap(
    context: &Context,
    locks: &Locks,
    from: Option<&Content>,
    to: Option<&Content>,
) -> bool {
    let (from, keep) = (from.map(|content| content.stamp), Keep::For(Duration::from_secs(600)));
    let swapping = locks.swap_cell("value", from, to, keep);
    context.soon("the store swaps", swapping).await.expect("an answer")
}

async fn there(context: &Context, locks: &Locks) -> Option<Content> {
    context.soon("the store reads", locks.read_cell("value")).await.expect("an answer")
}

async fn repeated(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (a, b) = (content(1), content(2));
    for locks in [&one, &one, &two] {
        assert!(swap(&context, locks, None, Some(&a)).await, "the first write, and again");
    }
    for locks in [&one, &two, &one] {
        assert!(swap(&context, locks, Some(&a), Some(&b)).await, "the second write, and again");
    }
    context.assert_final(there(&context, &two).await == Some(b.clone()), || "not b".to_owned());
    // A late repetition of the first writes.
    assert!(!swap(&context, &one, None, Some(&a)).await);
    let c = content(3);
    assert!(swap(&context, &two, Some(&b), Some(&c)).await);
    let late = swap(&context, &one, Some(&a), Some(&b)).await;
    context.assert_final(!late, || "a late repetition was made again".to_owned());
    assert!(swap(&context, &two, Some(&c), None).await);
    // The core takes a cell that is not there for the answer to a repeated removal.
    swap(&context, &one, Some(&c), None).await;
    assert_eq!(there(&context, &one).await, None);
}

async fn stamps(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let [a, b, c] = [content(1), content(2), content(3)];
    assert!(!swap(&context, &one, Some(&a), Some(&b)).await, "nothing is there");
    assert!(!swap(&context, &one, Some(&a), None).await);
    assert!(swap(&context, &one, None, Some(&a)).await);
    // Two race from the same stamp, again and again.
    let mut last = a;
    for round in 10..40u8 {
        let [mine, theirs] = [content(round), content(100 + round)];
        let (won, lost) = tokio::join!(
            swap(&context, &one, Some(&last), Some(&mine)),
            swap(&context, &two, Some(&last), Some(&theirs))
        );
        context.assert_final(won != lost, || format!("round {round}: {won} and {lost}"));
        last = if won { mine } else { theirs };
        assert_eq!(there(&context, &two).await.as_ref(), Some(&last));
    }
    assert!(!swap(&context, &two, Some(&b), Some(&c)).await);
    assert!(!swap(&context, &two, Some(&c), None).await);
    assert!(swap(&context, &two, Some(&last), None).await);
    assert_eq!(there(&context, &one).await, None);
}

async fn lost_replies(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (cell, seen_by) = (one.cell("value"), two.cell("value"));
    for round in 0..3u8 {
        let before = cell.read().await.expect("an answer").map(|value| value.version());
        context.inject_fault(NetworkFault::ReplyDropped).await;
        let setting = cell.compare_and_set(before, vec![round]);
        let set = context.soon("it is written", setting).await.expect("an answer");
        context.assert_final(set, || "a write was made and denied".to_owned());
        context.heal().await;
        assert_eq!(read(&context, &seen_by).await, Some(vec![round]));
    }
    context.inject_fault(NetworkFault::ReplyDropped).await;
    remove(&context, &cell).await;
    context.heal().await;
    assert_eq!(read(&context, &seen_by).await, None);
}

async fn removed(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (one, two) = (one.cell("value"), two.cell("value"));
    write(&context, &one, b"a").await;
    let before = two.read().await.expect("an answer").expect("it is there");
    remove(&context, &one).await;
    write(&context, &one, b"a").await;
    let set = two.compare_and_set(Some(before.version()), *b"b").await.expect("an answer");
    context.assert_final(!set, || "it was taken for the one that was removed".to_owned());
    remove(&context, &one).await;
}

async fn watched(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let cell = one.cell("value");
    let mut watch = two.cell("value").watch().await.expect("a watch");
    assert!(context.soon("the first answer", watch.next()).await.expect("an answer").is_none());
    let mut lateness = Lateness::of_changes();
    for round in 0..10u8 {
        let started = Instant::now();
        write(&context, &cell, &[round]).await;
        let seen = lateness.observe(started.elapsed(), watch.next()).await.expect("an answer");
        assert_eq!(seen.expect("written").bytes(), [round]);
    }
    remove(&context, &cell).await;
    assert!(context.soon("the removal", watch.next()).await.expect("an answer").is_none());
    write(&context, &cell, b"again").await;
    let seen = context.soon("the cell comes again", watch.next()).await.expect("an answer");
    assert_eq!(seen.expect("written").bytes(), b"again");
    remove(&context, &cell).await;
}

/// One writes as fast as it can; the other must see the last value, without the help of a later change.
async fn raced(context: Arc<Context>) {
    const WRITES: u8 = 60;
    let (one, two) = (context.client().await, context.client().await);
    let mut lateness = Lateness::of_changes();
    for round in 0..5 {
        let name = format!("value-{round}");
        let (cell, watched) = (one.cell(&name), two.cell(&name));
        let watching = tokio::spawn(async move {
            let mut watch = watched.watch().await.expect("a watch");
            loop {
                let seen = watch.next().await.expect("an answer");
                if seen.is_some_and(|seen| seen.bytes() == [WRITES]) {
                    return;
                }
            }
        });
        let started = Instant::now();
        for value in 0..=WRITES {
            write(&context, &cell, &[value]).await;
        }
        let usual = started.elapsed() / u32::from(WRITES);
        lateness.observe(usual, watching).await.expect("the last write is seen");
        remove(&context, &cell).await;
    }
}

async fn cut_off(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let cell = one.cell("value");
    write(&context, &cell, b"before").await;
    let mut watch = two.cell("value").watch().await.expect("a watch");
    let seen = context.soon("the first answer", watch.next()).await.expect("an answer");
    assert_eq!(seen.expect("written").bytes(), b"before");
    context.inject_fault(NetworkFault::ConnectionsReset).await;
    context.heal().await;
    let bound = context.patience() * 4;
    let writing = async {
        loop {
            let seen = cell.read().await.expect("an answer").map(|value| value.version());
            if cell.compare_and_set(seen, *b"after").await.expect("an answer") {
                return;
            }
        }
    };
    context.within(bound, "it is written after the cut", writing).await;
    let seen = context.within(bound, "the change after the cut", watch.next()).await;
    assert_eq!(seen.expect("an answer").expect("written").bytes(), b"after");
    remove(&context, &cell).await;
}

async fn outlives(context: Arc<Context>) {
    let params = context.params();
    let writer = context.connect(&params).await;
    write(&context, &writer.cell("value"), b"mine").await;
    context.soon("the writer closes", writer.close()).await.expect("closed");
    let error = writer.cell("value").read().await.expect_err("closed");
    work::assert_kind(&error, ErrorKind::Closed);
    let cell = context.client().await.cell("value");
    assert_eq!(read(&context, &cell).await.as_deref(), Some(&b"mine"[..]));
    remove(&context, &cell).await;
}

async fn ends(context: Arc<Context>) {
    let locks = context.client().await;
    let brief = locks.cell("brief").keep_for(Duration::from_secs(1));
    let long = locks.cell("long");
    write(&context, &brief, b"a").await;
    write(&context, &long, b"b").await;
    context
        .until_within(context.patience() + Duration::from_secs(2), "its time is over", async || {
            read(&context, &brief).await.is_none()
        })
        .await;
    assert_eq!(read(&context, &long).await.as_deref(), Some(&b"b"[..]));
    // What is over can be written anew.
    assert!(brief.compare_and_set(None, *b"c").await.expect("an answer"));
    assert_eq!(read(&context, &brief).await.as_deref(), Some(&b"c"[..]));
    for wrong in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let error = locks.cell("brief").keep_for(wrong).read().await.expect_err("out of range");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
    remove(&context, &brief).await;
    remove(&context, &long).await;
}

async fn largest(context: Arc<Context>) {
    let cell = context.client().await.cell("value");
    let bytes: Vec<u8> = (0..16_000u32).map(|at| at.to_le_bytes()[0]).collect();
    // Also with all the stamps that a record remembers.
    for _ in 0..10 {
        write(&context, &cell, &bytes).await;
    }
    assert_eq!(read(&context, &cell).await.as_ref(), Some(&bytes));
    let larger = [&bytes[..], &[0]].concat();
    let error = cell.compare_and_set(None, larger).await.expect_err("too large");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("16001 bytes"), "{error}");
    remove(&context, &cell).await;
}

async fn names(context: Arc<Context>) {
    let locks = context.client().await;
    let longest = "x".repeat(512);
    let names: Vec<&str> = ODD.iter().copied().chain([longest.as_str()]).collect();
    for (index, name) in names.iter().enumerate() {
        let set = locks.cell(name).compare_and_set(None, index.to_be_bytes()).await;
        assert!(set.expect("any text is a name"), "{name:?} is another cell");
    }
    for (index, name) in names.iter().enumerate() {
        let bytes = read(&context, &locks.cell(name)).await;
        assert_eq!(bytes.as_deref(), Some(&index.to_be_bytes()[..]), "{name:?}");
        remove(&context, &locks.cell(name)).await;
    }
    for invalid in ["", &"x".repeat(513)] {
        let error = locks.cell(invalid).read().await.expect_err("invalid");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
}

async fn stale(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let earlier = context.acquire(&one, &name).await;
    let (cell, their) = (one.cell("page"), two.cell("page"));
    cell.write(&earlier, *b"one").await.expect("written");
    cell.write(&earlier, *b"two").await.expect("written again with the same token");
    context.release(earlier).await;
    let earlier = context.acquire(&one, &name).await;
    // The token of a later grant, on a lock of its own, so that both are held.
    let other = context.name("other");
    let mut later = context.acquire(&two, &other).await;
    while later.fencing_token() <= earlier.fencing_token() {
        context.release(later).await;
        later = context.acquire(&two, &other).await;
    }
    their.write(&later, *b"three").await.expect("written");
    let error = cell.write(&earlier, *b"four").await.expect_err("stale");
    work::assert_kind(&error, ErrorKind::Stale);
    assert_eq!(read(&context, &cell).await.as_deref(), Some(&b"three"[..]));
    // A compare-and-set keeps the largest token.
    write(&context, &cell, b"five").await;
    let error = cell.write(&earlier, *b"six").await.expect_err("still stale");
    work::assert_kind(&error, ErrorKind::Stale);
    context.release(earlier).await;
    context.release(later).await;
    remove(&context, &cell).await;
}

async fn apart(context: Arc<Context>) {
    let name = context.name("same");
    let locks = context.client().await;
    let cell = locks.cell(&name);
    write(&context, &cell, b"value").await;
    let guard = context.acquire(&locks, &name).await;
    let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 1).await;
    write(&context, &cell, b"other").await;
    context.release(guard).await;
    let guard = context.until_granted("the waiter is granted", waiter).await;
    assert_eq!(read(&context, &cell).await.as_deref(), Some(&b"other"[..]));
    remove(&context, &cell).await;
    assert!(guard.is_held());
    context.release(guard).await;
}

async fn kinds(context: Arc<Context>) {
    let locks = context.client().await;
    context.soon("it counts", locks.counter("number").add(1)).await.expect("counted");
    let error = locks.latch("number", 2).count_down().await.expect_err("another kind");
    work::assert_kind(&error, ErrorKind::Foreign);
    assert!(error.to_string().contains("is a counter, not a latch"), "{error}");
    let error = locks.cell("number").read().await.expect_err("another kind");
    work::assert_kind(&error, ErrorKind::Foreign);
    let there = content(9);
    assert!(swap(&context, &locks, None, Some(&there)).await);
    let error = locks.counter("value").add(1).await.expect_err("not ours");
    work::assert_kind(&error, ErrorKind::Foreign);
    assert_eq!(self::there(&context, &locks).await.as_ref(), Some(&there));
    assert!(swap(&context, &locks, Some(&there), None).await);
    context.soon("it counts", locks.counter("number").add(1)).await.expect("counted");
    context.soon("removed", locks.counter("number").remove()).await.expect("removed");
}

async fn dropped(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (cell, seen_by) = (one.cell("value"), two.cell("value"));
    for polls in 0..12 {
        let (before, mine) = (format!("before {polls}"), format!("{polls} polls").into_bytes());
        // From here on what an earlier turn dropped has an old version, however late it is written.
        remove(&context, &cell).await;
        write(&context, &cell, before.as_bytes()).await;
        let version = cell.read().await.expect("an answer").map(|value| value.version());
        let setting = cell.compare_and_set(version, mine.clone());
        let done = DroppedAfter::polls(polls, setting).await;
        let mut last = Vec::new();
        for _ in 0..10 {
            last = read(&context, &seen_by).await.expect("it is there");
            context.assert_final(last == mine || last == before.as_bytes(), || format!("{last:?}"));
            sleep(Duration::from_millis(2)).await;
        }
        if let Some(set) = done {
            assert!(set.expect("an answer") && last == mine);
        }
    }
    remove(&context, &cell).await;
}

async fn unsupported(context: Arc<Context>) {
    let locks = context.client().await;
    if context.profile().cells.is_some() {
        return;
    }
    for error in [
        locks.cell("value").read().await.expect_err("no cells"),
        locks.counter("value").add(1).await.expect_err("no cells"),
        locks.latch("value", 1).count_down().await.expect_err("no cells"),
        locks.barrier("value", 1).arrive_and_wait().await.expect_err("no cells"),
    ] {
        work::assert_kind(&error, ErrorKind::Unsupported);
        assert!(error.to_string().contains("redis:// (one server"), "{error}");
    }
}
