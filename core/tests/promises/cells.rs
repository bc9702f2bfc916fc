//! Cells over a store that loses requests and replies, delays them, and forgets to notify.

use std::iter::{once, repeat};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::{ErrorKind, memory};
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lossy::{Fate, Lossy, each, swaps};
use crate::scripted::{SECOND, ms};

/// xorshift64 (Marsaglia, 2003).
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// A network that breaks each third request.
fn broken(seed: u64) -> impl FnMut(bool) -> Fate {
    let mut next = random(seed * 2 + 1);
    move |_| match next() % 12 {
        0 => Fate::RequestLost,
        1 => Fate::ReplyLost,
        2 => Fate::Late(ms(next() % 3_000)),
        3 => Fate::Late(ms(next() % 30)),
        _ => Fate::Answered,
    }
}

#[tokio::test(start_paused = true)]
async fn additions_are_exact_whatever_is_lost_late_or_repeated() {
    for seed in 1..=60 {
        let store = Lossy::new(broken(seed));
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let counter = store.locks().counter("orders");
            for _ in 0..2 {
                let counter = counter.clone();
                tasks.spawn(async move {
                    let (mut done, mut unknown) = (Vec::new(), 0_i64);
                    for _ in 0..10 {
                        match counter.add(1).await {
                            Ok(sum) => done.push(sum),
                            Err(error) => {
                                let said = error.to_string();
                                assert!(said.contains("may or may not have been made"), "{said}");
                                unknown += 1;
                            }
                        }
                    }
                    (done, unknown)
                });
            }
        }
        let all = tasks.join_all().await;
        // What was late has arrived.
        sleep(10 * SECOND).await;
        store.set(|_| Fate::Answered);
        let value = store.locks().counter("orders").get().await.unwrap();
        let mut sums: Vec<i64> = all.iter().flat_map(|(done, _)| done.clone()).collect();
        let unknown: i64 = all.iter().map(|(_, unknown)| unknown).sum();
        let done = sums.len() as i64;
        assert!(
            (done..=done + unknown).contains(&value),
            "seed {seed}: {value}, {done}, {unknown}"
        );
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len() as i64, done, "seed {seed}: a sum was given twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_latch_opens_neither_early_nor_never_whatever_is_lost() {
    for seed in 100..=140 {
        let store = Lossy::new(broken(seed));
        let come = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for shard in 0..6 {
            let (latch, come) = (store.locks().latch("import", 6), come.clone());
            tasks.spawn(async move {
                sleep(SECOND * shard).await;
                come.fetch_add(1, Ordering::SeqCst);
                let who = format!("shard {shard}");
                // A worker that does not know whether it counted asks again.
                while latch.count_down_as(&who).await.is_err() {}
                while latch.wait().await.is_err() {}
                assert_eq!(come.load(Ordering::SeqCst), 6, "seed {seed}: it opened early");
            });
        }
        timeout(600 * SECOND, tasks.join_all()).await.unwrap_or_else(|_| panic!("seed {seed}"));
        store.set(|_| Fate::Answered);
        assert_eq!(store.locks().latch("import", 6).remaining().await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_an_error_in_time_that_says_what_is_unknown() {
    let store = Lossy::sound();
    let locks = store.locks();
    let counter = locks.counter("orders");
    counter.add(1).await.unwrap();
    store.set(|is_swap| if is_swap { Fate::Silent } else { Fate::Answered });
    let started = locks.now();
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("may or may not have been made"), "{error}");
    store.set(|_| Fate::Silent);
    let error = counter.get().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(!error.to_string().contains("may or may not"), "a reading changes nothing: {error}");
    assert!(locks.now().duration_since(started) <= 21 * SECOND);
    store.set(|_| Fate::Answered);
    assert_eq!(counter.get().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_at_once_and_says_so_when_an_earlier_request_may_have_been_made() {
    let store = Lossy::sound();
    let counter = store.locks().counter("orders");
    store.set(|is_swap| if is_swap { Fate::Refused } else { Fate::Answered });
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(!error.to_string().contains("may or may not"), "{error}");
    // It is executed long after it was given up.
    store.set(swaps(once(Fate::Late(60 * SECOND)).chain(repeat(Fate::Refused))));
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("may or may not"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_ends_one_change_and_no_later_one() {
    let store = Lossy::sound();
    let counter = store.locks().counter("orders");
    store.set(each([Fate::Panics]));
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(counter.add(1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn changes_of_one_client_share_writes() {
    let store = Lossy::sound();
    let counter = store.locks().counter("orders");
    let sums = join_all((0..64).map(|_| counter.add(1))).await;
    let mut sums: Vec<i64> = sums.into_iter().map(Result::unwrap).collect();
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=64));
    let swaps = store.swaps.load(Ordering::SeqCst);
    assert!(swaps <= 3, "{swaps} swaps");
    // What this client has written last is not read again.
    let reads = store.reads.load(Ordering::SeqCst);
    assert!(reads <= 2, "{reads} reads");
}

/// Of two clients whose first writes meet, one is refused. By then it has more to write.
#[tokio::test(start_paused = true)]
async fn a_refused_write_is_repeated_with_the_changes_that_have_come_meanwhile() {
    let store = Lossy::sound();
    let clients = [store.locks(), store.locks()];
    let mut tasks = JoinSet::new();
    for (pause, count) in [(0, 1), (1, 9)] {
        sleep(ms(pause)).await;
        for latch in clients.iter().flat_map(|locks| vec![locks.latch("import", 20); count]) {
            tasks.spawn(async move { latch.count_down().await.unwrap() });
        }
        tokio::task::yield_now().await;
    }
    let mut left = tasks.join_all().await;
    left.sort_unstable();
    assert!(left.into_iter().eq(0..20));
    // Two of the one that was faster, one of the other.
    assert_eq!(store.changes.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn all_waiters_of_a_client_have_one_watch() {
    let store = Lossy::sound();
    let locks = store.locks();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let latch = locks.latch("import", 1);
            tokio::spawn(async move { latch.wait().await })
        })
        .collect();
    sleep(ms(100)).await;
    let reads = store.reads.load(Ordering::SeqCst);
    assert!(reads <= 4, "{reads} reads for a hundred waiters");
    let watches: std::collections::HashSet<_> =
        store.notifiers.lock().iter().map(Arc::as_ptr).collect();
    assert_eq!(watches.len(), 1);
    store.locks().latch("import", 1).count_down().await.unwrap();
    for waiting in waiting {
        timeout(SECOND, waiting).await.expect("notified").unwrap().unwrap();
    }
    // With the last waiter the watch ends.
    sleep(60 * SECOND).await;
    let reads = store.reads.load(Ordering::SeqCst);
    assert!(reads <= 8, "{reads} reads although nobody waits");
}

#[tokio::test(start_paused = true)]
async fn a_missed_notification_delays_a_waiter_by_seconds() {
    let mut store = Lossy::sound();
    store.notifies = false;
    let latch = store.locks().latch("import", 1);
    let waiting = tokio::spawn(async move { latch.wait().await });
    sleep(ms(100)).await;
    store.locks().latch("import", 1).count_down().await.unwrap();
    timeout(6 * SECOND, waiting).await.expect("it looks each 5 s").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_at_a_silent_store_ends_in_time_and_can_go_on() {
    let store = Lossy::new(|_| Fate::RequestLost);
    let latch = store.locks().latch("import", 1);
    let error = timeout(15 * SECOND, latch.wait()).await.expect("in time").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    store.set(|_| Fate::Answered);
    latch.count_down().await.unwrap();
    timeout(SECOND, latch.wait()).await.expect("open").unwrap();
}

#[test]
fn the_end_of_the_runtime_ends_changes_and_waits() {
    let store = Lossy::new(|_| Fate::Silent);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let locks = runtime.block_on(async { store.locks() });
    let other = tokio::runtime::Runtime::new().unwrap();
    let (counter, latch) = (locks.counter("orders"), locks.latch("import", 1));
    let later = counter.clone();
    let adding = other.spawn(async move { counter.add(1).await });
    let waiting = other.spawn(async move { latch.wait().await });
    std::thread::sleep(ms(50));
    runtime.shutdown_timeout(SECOND);
    let ended = other.block_on(async {
        let both =
            async { (adding.await.unwrap().unwrap_err(), waiting.await.unwrap().unwrap_err()) };
        timeout(5 * SECOND, both).await.expect("told")
    });
    assert_eq!((ended.0.kind(), ended.1.kind()), (ErrorKind::Closed, ErrorKind::Closed));
    let late = other.block_on(async { timeout(5 * SECOND, later.add(1)).await.expect("told") });
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_swap_that_is_refused_may_have_been_made_by_the_first_request() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().counter("orders"), store.locks().counter("orders"));
    // The first is executed, another client writes, and only then the second arrives.
    store.set(swaps([Fate::Late(ms(500)), Fate::Slow(ms(2_000)), Fate::Answered]));
    let adding = tokio::spawn(async move { here.add(1).await });
    sleep(ms(1_000)).await;
    assert_eq!(there.add(1).await.unwrap(), 2);
    assert_eq!(adding.await.unwrap().unwrap(), 1);
    assert_eq!(there.get().await.unwrap(), 2, "it was added twice");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_reading_after_an_unsure_swap_says_so_too() {
    let store = Lossy::sound();
    let counter = store.locks().counter("orders");
    counter.add(1).await.unwrap();
    let mut is_unsure = false;
    store.set(move |is_swap| {
        is_unsure |= is_swap;
        match (is_swap, is_unsure) {
            (true, _) => Fate::ReplyLost,
            (false, true) => Fate::Refused,
            (false, false) => Fate::Answered,
        }
    });
    let error = counter.add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("may or may not have been made"), "{error}");
}

/// A caller that asked again could add a second time.
#[tokio::test(start_paused = true)]
async fn an_unknown_write_is_not_to_be_retried() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().counter("orders"), store.locks().counter("orders"));
    here.add(1).await.unwrap();
    // It reads first; then it learns of nothing while the other client writes more than is remembered.
    store.set(each([Fate::Answered, Fate::ReplyLost, Fate::Slow(ms(3_000))]));
    let adding = tokio::spawn(async move { here.add(1).await });
    sleep(ms(1_000)).await;
    for _ in 0..20 {
        there.add(1).await.unwrap();
    }
    let error = adding.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unreachable, false));
    assert!(error.to_string().contains("others have changed the cell since"), "{error}");
}

/// What this client has written last need not be there any more.
#[tokio::test(start_paused = true)]
async fn a_change_that_writes_nothing_has_seen_what_is_there() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().counter("orders"), store.locks().counter("orders"));
    store.set(each([Fate::Answered, Fate::ReplyLost, Fate::Slow(ms(3_000))]));
    let also_here = here.clone();
    let adding = tokio::spawn(async move { here.add(1).await });
    sleep(ms(1_000)).await;
    assert_eq!(there.add(10).await.unwrap(), 11);
    assert_eq!(also_here.at_least(0).await.unwrap(), 11, "it was called after that");
    assert_eq!(adding.await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_first_write_replaces_nothing_that_another_task_of_its_client_writes() {
    let locks = memory::Memory::new().locks(Default::default()).unwrap();
    let guard = locks.lock("page").acquire().await.unwrap();
    let cell = locks.cell("page");
    let (written, is_first) =
        tokio::join!(cell.write(&guard, *b"a"), cell.compare_and_set(None, *b"b"));
    written.unwrap();
    assert!(!is_first.unwrap(), "the other was before it");
    assert_eq!(cell.read().await.unwrap().unwrap().bytes(), b"a");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_holds_no_longer_writes_nothing() {
    let locks = memory::Memory::new().locks(Default::default()).unwrap();
    let guard = locks.lock("page").hold_at_most(SECOND).acquire().await.unwrap();
    let cell = locks.cell("page");
    sleep(2 * SECOND).await;
    let error = cell.write(&guard, *b"late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(cell.read().await.unwrap().is_none());
}

/// No notification is needed for what a waiter that joins a watch is given.
#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_what_is_there_when_it_begins() {
    let mut store = Lossy::sound();
    store.notifies = false;
    let (here, there) = (store.locks().cell("page"), store.locks().cell("page"));
    let mut first = here.watch().await.unwrap();
    assert!(first.next().await.unwrap().is_none());
    assert!(there.compare_and_set(None, *b"1").await.unwrap());
    let one = here.watch().await.unwrap().next().await.unwrap().expect("it was written before");
    // A reading is under way when the next one begins.
    store.set(each([Fate::AnsweredLate(ms(500))]));
    let _reading = here.watch().await.unwrap();
    sleep(ms(100)).await;
    assert!(there.compare_and_set(Some(one.version()), *b"2").await.unwrap());
    let two = here.watch().await.unwrap().next().await.unwrap().expect("it is there");
    assert_eq!((one.bytes(), two.bytes()), (&b"1"[..], &b"2"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_a_refusal() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().cell("page"), store.locks().cell("page"));
    store.set(|_| Fate::Refused);
    let mut watch = here.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Refused);
    store.set(|_| Fate::Answered);
    assert!(there.compare_and_set(None, *b"1").await.unwrap());
    let seen = async {
        loop {
            if let Ok(Some(value)) = watch.next().await {
                return value;
            }
        }
    };
    assert_eq!(timeout(3 * SECOND, seen).await.expect("it reads again").bytes(), b"1");
}

#[tokio::test(start_paused = true)]
async fn a_notification_during_a_reading_is_not_lost() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().cell("page"), store.locks().cell("page"));
    store.set(each([Fate::AnsweredLate(ms(500))]));
    let mut watch = here.watch().await.unwrap();
    sleep(ms(100)).await;
    assert!(there.compare_and_set(None, *b"1").await.unwrap());
    assert!(watch.next().await.unwrap().is_none(), "it was read before");
    let seen = timeout(SECOND, watch.next()).await.expect("it reads again at once");
    assert_eq!(seen.unwrap().expect("it is there").bytes(), b"1");
}
