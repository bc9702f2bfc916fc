//! What is made of cells, over a store that loses requests and replies, and forgets to notify.

use std::collections::HashSet;
use std::iter::{repeat, repeat_n};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencelock_core::{
    Claimed, ErrorKind, Keep, Locks, Once, Run, Settings, Tick, TokenEpoch, Trip, memory,
};
use tokio::time::{Instant, sleep, timeout};

use crate::lossy::{Fate, Lossy, each, swaps};
use crate::scripted::{SECOND, ms};

#[tokio::test(start_paused = true)]
async fn an_open_latch_is_not_written_again() {
    let store = Lossy::sound();
    let latch = store.locks().latch("import", 2);
    for left in [1, 0, 0, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    assert_eq!(store.changes.load(Ordering::SeqCst), 2);
}

/// Also if no other party has arrived before, so that nothing is there that its request would expect.
#[tokio::test(start_paused = true)]
async fn an_arrival_that_is_late_does_not_count_after_its_party_gave_up() {
    for is_first in [false, true] {
        let store = Lossy::sound();
        let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
        if !is_first {
            let (one, two) = tokio::join!(here.arrive_and_wait(), there.arrive_and_wait());
            assert!(one.is_ok() && two.is_ok());
        }
        let late = std::iter::once(Fate::Late(100 * SECOND));
        store.set(swaps(late.chain(std::iter::repeat(Fate::RequestLost))));
        here.arrive_and_wait().await.unwrap_err();
        store.set(|_| Fate::Answered);
        sleep(200 * SECOND).await;
        assert_eq!(there.arrived().await.unwrap(), 0, "it counts although nobody waits");
    }
}

/// Its watch is not notified, so that the limit comes before the next reading.
#[tokio::test(start_paused = true)]
async fn a_party_whose_limit_ends_after_the_trip_has_passed() {
    for names in [["one", "two"], ["two", "one"]] {
        let mut store = Lossy::sound();
        store.notifies = false;
        let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
        for generation in 1..=3 {
            let limited = here.clone().wait_at_most(SECOND);
            let waiting = tokio::spawn(async move { limited.arrive_as(names[0]).await });
            sleep(ms(500)).await;
            assert_eq!(there.arrive_as(names[1]).await.unwrap().generation(), generation);
            let passed = waiting.await.unwrap().expect("it has passed").generation();
            assert_eq!(passed, generation);
            assert_eq!(there.arrived().await.unwrap(), 0);
        }
    }
}

/// A latch and a barrier, by stores that answer, stop after their first answers, or are silent.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_limit_tells_a_silent_store_from_those_who_have_not_come() {
    let (busy, silent) = (ErrorKind::WaitTimedOut, ErrorKind::Unreachable);
    for (answers, expected) in [(usize::MAX, busy), (2, silent), (0, silent)] {
        let fates = repeat_n(Fate::Answered, answers).chain(repeat(Fate::Silent));
        let locks = Lossy::new(each(fates)).locks();
        let (latch, barrier) = (locks.latch("parts", 2), locks.barrier("phase", 2));
        for limit in [SECOND, Duration::ZERO] {
            let asked = Instant::now();
            let error = match answers {
                2 if limit > Duration::ZERO => {
                    barrier.clone().wait_at_most(limit).arrive_and_wait().await.unwrap_err()
                }
                _ => latch.clone().wait_at_most(limit).wait().await.unwrap_err(),
            };
            assert_eq!(error.kind(), expected, "{answers}: {error}");
            assert!(asked.elapsed() <= limit + ms(500), "{answers}: {:?}", asked.elapsed());
        }
    }
}

/// Its program has it in a `select!` whose other branch goes on.
#[tokio::test(start_paused = true)]
async fn a_party_that_is_not_polled_any_more_is_withdrawn_when_its_client_is_closed() {
    let store = Lossy::sound();
    let (here, there) = (store.locks(), store.locks());
    let (barrier, other) = (here.barrier("phase", 2), there.barrier("phase", 2));
    let mut arriving = Box::pin(barrier.arrive_and_wait());
    assert!(timeout(SECOND, &mut arriving).await.is_err(), "it waits for the other");
    assert_eq!(other.arrived().await.unwrap(), 1);
    timeout(SECOND, here.close()).await.expect("nothing keeps it").unwrap();
    assert_eq!(other.arrived().await.unwrap(), 0);
    assert_eq!(arriving.await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Its watch is not notified, so that it sees only the later barrier.
#[tokio::test(start_paused = true)]
async fn a_party_is_not_left_waiting_at_a_barrier_that_was_removed_and_made_anew() {
    let mut store = Lossy::sound();
    store.notifies = false;
    let (here, there) = (store.locks().barrier("phase", 3), store.locks().barrier("phase", 3));
    let waiting = tokio::spawn(async move { here.arrive_and_wait().await });
    sleep(SECOND).await;
    there.remove().await.unwrap();
    let anew = there.clone();
    let _anew = tokio::spawn(async move { anew.arrive_and_wait().await });
    let error = timeout(10 * SECOND, waiting).await.expect("told").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(there.arrived().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_party_that_arrives_again_while_its_dropped_arrival_is_taken_back_counts() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
    timeout(SECOND, here.arrive_as("one")).await.expect_err("it waits");
    // At once, before the task that takes back the first one.
    let other = async {
        sleep(SECOND).await;
        assert_eq!(there.arrived().await.unwrap(), 1);
        there.arrive_as("two").await
    };
    let (again, other) = tokio::join!(here.arrive_as("one"), other);
    assert_eq!(again.expect("it counts").generation(), 1);
    assert_eq!(other.unwrap().generation(), 1);
}

/// Its arrival was counted, and nobody has told it so by the end of its limit.
#[tokio::test(start_paused = true)]
async fn a_party_without_an_answer_has_passed_if_it_is_among_those_who_did() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
    store.set(each([Fate::Answered, Fate::ReplyLost, Fate::Slow(ms(1_200))]));
    let limited = here.wait_at_most(SECOND);
    let waiting = tokio::spawn(async move { limited.arrive_and_wait().await });
    sleep(ms(500)).await;
    assert_eq!(there.arrive_and_wait().await.unwrap().generation(), 1);
    assert_eq!(waiting.await.unwrap().expect("it has passed").generation(), 1);
}

/// Others have passed the next round before it looks again.
#[tokio::test(start_paused = true)]
async fn a_party_that_was_counted_has_passed_also_when_later_rounds_are_over() {
    let mut store = Lossy::sound();
    store.notifies = false;
    let [here, there, other] = [(); 3].map(|()| store.locks().barrier("phase", 2));
    let limited = here.wait_at_most(SECOND);
    let waiting = tokio::spawn(async move { limited.arrive_and_wait().await });
    sleep(ms(100)).await;
    assert_eq!(there.arrive_and_wait().await.unwrap().generation(), 1);
    let again = there.clone();
    let second = tokio::spawn(async move { again.arrive_and_wait().await });
    sleep(ms(100)).await;
    assert_eq!(other.arrive_and_wait().await.unwrap().generation(), 2);
    assert_eq!(waiting.await.unwrap().expect("it has passed").generation(), 1);
    assert_eq!(second.await.unwrap().unwrap().generation(), 2);
}

/// It has tripped the round, its answer comes after its limit, and others have passed the next round by then.
#[tokio::test(start_paused = true)]
async fn a_party_whose_late_answer_may_have_counted_is_not_told_that_it_does_not() {
    for (fate, passed) in [(Fate::AnsweredLate(ms(1_200)), true), (Fate::Silent, false)] {
        let store = Lossy::sound();
        let [here, there, other] = [(); 3].map(|()| store.locks().barrier("phase", 2));
        let first = there.clone();
        let first = tokio::spawn(async move { first.arrive_and_wait().await });
        sleep(ms(100)).await;
        store.set(swaps([fate]));
        let limited = here.wait_at_most(SECOND);
        let waiting = tokio::spawn(async move { limited.arrive_and_wait().await });
        sleep(ms(100)).await;
        if !passed {
            let (third, _) = tokio::join!(other.arrive_and_wait(), first);
            third.unwrap();
        }
        let (one, two) = tokio::join!(there.arrive_and_wait(), other.arrive_and_wait());
        assert_eq!([one.unwrap(), two.unwrap()].map(Trip::generation), [2; 2]);
        match waiting.await.unwrap() {
            Ok(trip) => assert!(passed && trip.generation() == 1),
            Err(error) => {
                assert_eq!((passed, error.kind()), (false, ErrorKind::Unreachable), "{error}");
                assert!(error.message().contains("not known whether"), "{error}");
            }
        }
    }
}

/// Its watch is not notified, so that it sees the later barrier only when that has been passed.
#[tokio::test(start_paused = true)]
async fn a_party_has_not_passed_with_those_of_a_barrier_that_was_made_anew() {
    for (limit, told) in [(Duration::MAX, ErrorKind::Lost), (3 * SECOND, ErrorKind::WaitTimedOut)] {
        let mut store = Lossy::sound();
        store.notifies = false;
        let [here, there, other] = [(); 3].map(|()| store.locks().barrier("phase", 2));
        let here = here.wait_at_most(limit);
        let waiting = tokio::spawn(async move { here.arrive_and_wait().await });
        sleep(SECOND).await;
        there.remove().await.unwrap();
        for generation in 1..=2 {
            let (one, two) = tokio::join!(there.arrive_and_wait(), other.arrive_and_wait());
            assert_eq!([one.unwrap(), two.unwrap()].map(Trip::generation), [generation; 2]);
        }
        let error = timeout(10 * SECOND, waiting).await.expect("told").unwrap().unwrap_err();
        assert_eq!(error.kind(), told);
    }
}

/// Its watch is not notified, so that it sees only the later latch.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_that_a_latch_was_removed_although_it_was_made_anew() {
    for in_one_write in [true, false] {
        let mut store = Lossy::sound();
        store.notifies = false;
        let [here, there] = [(); 2].map(|()| store.locks().latch("import", 2));
        assert_eq!(here.count_down().await.unwrap(), 1);
        let waiting = tokio::spawn(async move { here.wait().await });
        sleep(SECOND).await;
        if in_one_write {
            let (removed, left) = tokio::join!(there.remove(), there.count_down());
            assert_eq!((removed.unwrap(), left.unwrap()), ((), 1));
            assert_eq!(store.changes.load(Ordering::SeqCst), 2);
        } else {
            there.remove().await.unwrap();
            assert_eq!(there.count_down().await.unwrap(), 1);
        }
        let told = timeout(10 * SECOND, waiting).await.expect("told").unwrap();
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Lost);
    }
}

mod elections {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_old_leader_that_knows_nothing_of_its_loss_writes_nothing() {
        let store = Lossy::sound();
        let (one, two) = (store.locks().election("main"), store.locks().election("main"));
        let first = one.with_words("first").campaign().await.unwrap();
        let second = two.with_words("second").campaign().await.unwrap();
        assert!(first.is_held() && second.fencing_token() > first.fencing_token());
        assert_eq!(first.proclaim("late").await.unwrap_err().kind(), ErrorKind::Stale);
        second.proclaim("still").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_candidate_that_was_overtaken_campaigns_again() {
        for leads in [false, true] {
            let store = Lossy::sound();
            let (one, two) = (store.locks().election("main"), store.locks().election("main"));
            // Its first words arrive after those of a later leader.
            store.set(swaps([Fate::Slow(SECOND)]));
            let campaign = tokio::spawn(async move {
                match leads {
                    false => one.campaign().await.map(|term| term.fencing_token()),
                    true => one.lead(|term| async move { Ok(term.fencing_token()) }).await,
                }
            });
            sleep(ms(500)).await;
            let second = two.campaign().await.unwrap();
            match campaign.await.unwrap() {
                Ok(term) => assert!(leads && term > second.fencing_token()),
                Err(error) => {
                    assert!(!leads, "{error}");
                    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Lost, true));
                }
            }
        }
    }

    async fn evict(locks: &Locks) {
        let holder = locks.inspect("main").await.unwrap().holders.remove(0);
        assert!(locks.evict("main", &holder.id).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_or_has_a_permit_does_not_lead() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let election = locks.election("main");
        for other in [locks.rw_lock("main").read(), locks.semaphore("main", 2)] {
            let held = other.acquire().await.unwrap();
            assert_eq!(election.leader().await.unwrap(), None);
            held.release().await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_evicted_again_and_again_pauses() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let (election, mut terms) = (locks.election("main"), 0);
        let leading = election.lead::<(), _>(|term| {
            terms += 1;
            assert!(terms < 1_000, "it does not pause");
            let locks = locks.clone();
            async move {
                evict(&locks).await;
                term.lost().await;
                std::future::pending().await
            }
        });
        timeout(10 * SECOND, leading).await.expect_err("it is evicted each time");
        assert!((10..=30).contains(&terms), "{terms} terms in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_term_proclaims_nothing() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let election = locks.election("main").with_words("first");
        let term = election.campaign().await.unwrap();
        evict(&locks).await;
        term.lost().await;
        assert_eq!(term.proclaim("late").await.unwrap_err().kind(), ErrorKind::Lost);
        // The lock is not needed to see what is written.
        let next = election.with_words("next").campaign().await.unwrap();
        next.proclaim("next").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lead_campaigns_after_a_loss_and_has_resigned_at_its_end() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let (election, terms) = (locks.election("main"), Arc::new(AtomicUsize::new(0)));
        let counted = terms.clone();
        let leading = tokio::spawn(async move {
            let work = |_| {
                let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    if is_first {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                }
            };
            election.lead(work).await
        });
        sleep(SECOND).await;
        evict(&locks).await;
        timeout(10 * SECOND, leading).await.expect("it leads again").unwrap().unwrap();
        assert_eq!(terms.load(Ordering::SeqCst), 2);
        assert!(locks.lock("main").try_acquire().await.unwrap().is_some(), "it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn all_observers_of_a_client_cost_what_one_does() {
        let reads = async |count: usize| {
            let store = Lossy::sound();
            let locks = store.locks();
            let mut observers = Vec::new();
            for _ in 0..count {
                let mut observer = locks.election("main").observe().await.unwrap();
                assert!(observer.next().await.unwrap().is_none());
                observers.push(observer);
            }
            sleep(10 * SECOND).await;
            let watches: HashSet<_> = store.notifiers.lock().iter().map(Arc::as_ptr).collect();
            assert_eq!(watches.len(), 1);
            store.reads.load(Ordering::SeqCst)
        };
        assert_eq!(reads(100).await, reads(1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_observer_learns_of_a_leader_at_once_and_of_none_within_a_second() {
        let memory = memory::Memory::new();
        let [here, there] = [(); 2].map(|()| memory.locks(Default::default()).unwrap());
        let mut observer = here.election("main").observe().await.unwrap();
        assert!(observer.next().await.unwrap().is_none());
        sleep(ms(10_300)).await;
        let before = here.now();
        let term = there.election("main").with_words("it").campaign().await.unwrap();
        while observer.next().await.unwrap().is_none_or(|leader| leader.words() != b"it") {}
        assert!(here.now().duration_since(before) < ms(100), "the cell is watched");
        term.resign().await.unwrap();
        assert!(observer.next().await.unwrap().is_none());
        assert!(here.now().duration_since(before) < 2 * SECOND, "the lock is asked each second");
    }
}

mod once {
    use super::*;

    async fn runs(once: &Once) -> Run {
        match once.claim().await.unwrap() {
            Claimed::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    fn ticked(store: &Lossy, tick: u64) -> Once {
        store.locks().once("report").tick(Tick::number(tick))
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_run_that_knows_nothing_of_its_loss_marks_nothing() {
        let store = Lossy::sound();
        let (first, second) = (runs(&ticked(&store, 1)).await, runs(&ticked(&store, 2)).await);
        second.done().await.unwrap();
        assert!(first.is_held());
        assert_eq!(first.done().await.unwrap_err().kind(), ErrorKind::Stale);
        let _still = runs(&ticked(&store, 1)).await;
    }

    /// No retry helps, and the error names what does. The work does not begin.
    #[tokio::test(start_paused = true)]
    async fn a_smaller_token_epoch_is_refused_before_any_work() {
        let store = memory::Memory::new();
        let locks = |epoch| {
            let epoch = TokenEpoch::new(epoch).unwrap();
            store.locks(Settings::default().token_epoch(epoch)).unwrap()
        };
        let (new, old) = (locks(2), locks(1));
        let once = |locks: &Locks, tick| locks.once("report").tick(Tick::number(tick));
        runs(&once(&new, 1)).await.done().await.unwrap();
        new.election("main").campaign().await.unwrap().resign().await.unwrap();
        let held = new.lock("other").acquire().await.unwrap();
        new.cell("cell").write(&held, *b"new").await.unwrap();
        let stale = old.lock("another").acquire().await.unwrap();
        let began = async |_: &Run| -> fencelock_core::Result<()> { panic!("it begins") };
        for error in [
            once(&old, 2).run(began).await.unwrap_err(),
            once(&old, 2).never_twice().wait_at_most(SECOND).run(began).await.unwrap_err(),
            old.election("main").lead(async |_| Ok(())).await.unwrap_err(),
            old.cell("cell").write(&stale, *b"old").await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Stale, false), "{error}");
            assert!(error.message().contains("token_epoch=2 or more"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_lost_its_lock_marks_nothing() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let once = locks.once("report").tick(Tick::number(1));
        let run = runs(&once.clone().at_most_for(SECOND)).await;
        run.lost().await;
        assert_eq!(run.done().await.unwrap_err().kind(), ErrorKind::Lost);
        let _again = runs(&once).await;
    }

    /// It is read before the lock is acquired, and again under it.
    #[tokio::test(start_paused = true)]
    async fn a_tick_that_was_done_before_the_lock_was_acquired_is_not_run() {
        for never_twice in [false, true] {
            let store = Lossy::sound();
            let once = ticked(&store, 1);
            let once = if never_twice { once.never_twice() } else { once };
            store.set(each([Fate::AnsweredLate(SECOND)]));
            let claiming = tokio::spawn(async move { once.claim().await });
            sleep(ms(500)).await;
            runs(&ticked(&store, 1)).await.done().await.unwrap();
            let claimed = claiming.await.unwrap().unwrap();
            assert!(matches!(claimed, Claimed::Done { .. }), "{claimed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_was_overtaken_before_it_began_does_not_begin() {
        let store = Lossy::sound();
        let once = ticked(&store, 1).never_twice();
        store.set(swaps([Fate::Slow(SECOND)]));
        let claiming = tokio::spawn(async move { once.claim().await });
        sleep(ms(500)).await;
        let _later = runs(&ticked(&store, 2).never_twice()).await;
        assert_eq!(claiming.await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_whose_end_could_not_be_recorded_neither_begins_nor_counts_as_begun() {
        let store = Lossy::sound();
        for (tick, once) in [ticked(&store, 1), ticked(&store, 2).never_twice()].iter().enumerate()
        {
            store.is_full.store(true, Ordering::SeqCst);
            assert_eq!(once.claim().await.unwrap_err().kind(), ErrorKind::Refused, "{tick}");
            store.is_full.store(false, Ordering::SeqCst);
            runs(once).await.done().await.unwrap();
        }
        let lost = ticked(&store, 3).never_twice().at_most_for(ms(1)).claim().await;
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        runs(&ticked(&store, 3).never_twice()).await.done().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_that_is_done_needs_no_lock() {
        let locks = memory::Memory::new().locks(Default::default()).unwrap();
        let once = |tick| locks.once("report").tick(Tick::number(tick));
        runs(&once(1)).await.done().await.unwrap();
        let _running = runs(&once(2)).await;
        let claimed = once(1).claim().await.unwrap();
        assert!(matches!(claimed, Claimed::Done { .. }), "{claimed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_is_remembered_for_ten_periods_and_90_days_at_least() {
        let day = Duration::from_secs(86_400);
        for (period, days) in [(SECOND, 90), (30 * day, 300), (1_000 * day, 3_650)] {
            let store = Lossy::sound();
            let once = store.locks().once("report").tick(Tick::every(period));
            runs(&once).await.done().await.unwrap();
            assert_eq!(*store.kept.lock(), Some(Keep::For(days * day)));
        }
    }
}

/// Their tokens are no order, so that the next one would make the earlier one stale.
#[tokio::test(start_paused = true)]
async fn a_cell_is_written_only_with_the_token_of_an_exclusive_lock() {
    let locks = memory::Memory::new().locks(Default::default()).unwrap();
    let cell = locks.cell("report");
    let writer = locks.rw_lock("prices").write().acquire().await.unwrap();
    cell.write(&writer, *b"1").await.unwrap();
    writer.downgrade().await.unwrap();
    let permit = locks.semaphore("slots", 2).acquire().await.unwrap();
    for guard in [writer, permit] {
        let error = cell.write(&guard, *b"2").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn ids_name_the_lock_that_keeps_them_waiting() {
    let locks = memory::Memory::new().locks(Default::default()).unwrap();
    let _held = locks.lock("ids:orders").acquire().await.unwrap();
    let error = locks.ids("orders").next().await.unwrap_err();
    assert!(error.message().contains("ids(\"orders\")"), "{error}");
}
