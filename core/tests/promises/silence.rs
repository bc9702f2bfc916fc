//! A store that does not answer is unreachable within bounded time, and never looks like a busy lock.

use std::future::pending;
use std::task::Poll;
use std::time::Duration;

use fencelock_core::batching::Priority;
use fencelock_core::{
    AttemptOutcome, Claim, ErrorKind, Lock, ParticipantId, ReleaseOutcome, Result, Snapshot,
    WaiterCheck,
};
use tokio::time::sleep;

use crate::scripted::{
    Call, Many, One, SECOND, Script, TTL, again, granted, is_attempt, is_check, is_release, ms,
    refused_connection, waiting,
};

/// The ways in which a store fails to answer.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Silent,
    Refuses,
}

impl Failure {
    const ALL: [Failure; 2] = [Failure::Silent, Failure::Refuses];

    async fn answer<T>(self) -> Result<T> {
        match self {
            Failure::Silent => pending().await,
            Failure::Refuses => refused_connection(),
        }
    }
}

/// A claim is queued, and its later attempts are not answered.
async fn queued_then_silent(asked: One) -> Result<AttemptOutcome> {
    match asked.n {
        0 => waiting(SECOND),
        _ => pending().await,
    }
}

async fn kind_of(lock: &Lock) -> [Option<ErrorKind>; 2] {
    let tried = lock.try_acquire().await.map_err(|error| error.kind());
    let acquired = lock.acquire().await.map_err(|error| error.kind());
    [tried.err(), acquired.err()]
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_is_never_a_lock_that_is_not_free() {
    for failure in Failure::ALL {
        let (_store, locks) = Script::new().attempts(move |_| failure.answer()).connect();
        for (lock, limit) in [
            (locks.lock("a"), TTL),
            (locks.lock("a").wait_at_most(SECOND), SECOND),
            (locks.lock("a").wait_at_most(2 * TTL), TTL),
            (locks.lock("a").unreachable_after(2 * SECOND), 2 * SECOND),
        ] {
            let asked = locks.now();
            let kinds = kind_of(&lock).await;
            assert_eq!(kinds, [Some(ErrorKind::Unreachable); 2], "{failure:?}, {limit:?}");
            let took = locks.now().duration_since(asked);
            assert!(took >= 2 * limit && took <= 2 * limit + SECOND, "{failure:?}: {took:?}");
        }
        let error = locks.lock("a").unreachable_after(2 * SECOND).acquire().await.unwrap_err();
        assert!(error.to_string().contains("unreachable_after=2s"), "{error}");
    }
}

/// The answer arrives after the limit, but before the task is polled, for example because the task or
/// its whole process had to wait for a processor.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_there_when_the_limit_is_noticed_counts() {
    let comes_late = |asked: One| async move {
        let (start, mut polls) = (tokio::time::Instant::now(), 0);
        std::future::poll_fn(move |_| {
            polls += u32::from(start.elapsed() >= SECOND);
            if polls < 2 { Poll::Pending } else { Poll::Ready(granted(&asked)) }
        })
        .await
    };
    let (_store, locks) = Script::new().attempts(comes_late).connect();
    let guard = locks.lock("a").wait_at_most(SECOND).acquire().await.unwrap();
    guard.release().await.unwrap();
    let guard = locks.lock("a").unreachable_after(SECOND).acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_after_queueing_is_unreachable_too() {
    let queued_then_refuses = |asked: One| async move {
        match asked.n {
            0 => waiting(SECOND),
            _ => refused_connection(),
        }
    };
    let no_answer = |_| async { Ok(Vec::new()) };
    let (store, locks) = Script::new().attempts(queued_then_refuses).checks(no_answer).connect();
    let lock = locks.lock("a").wait_at_most(10 * SECOND);
    let waiter = tokio::spawn(async move { lock.try_acquire().await });
    store.until(1, is_attempt).await;
    assert!(store.claim(0).wake());
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_dies_after_queueing_is_not_a_busy_lock() {
    let queues = |_| async { waiting(SECOND) };
    let dies = |asked: Many| async move {
        match asked.n {
            0 | 1 => again(&asked, SECOND),
            _ => refused_connection(),
        }
    };
    let comes_back = |asked: Many| async move {
        match asked.n {
            0..5 => refused_connection(),
            _ => again(&asked, SECOND),
        }
    };
    let limit = 10 * SECOND;
    let (_store, locks) = Script::new().attempts(queues).checks(dies).connect();
    let kinds = kind_of(&locks.lock("a").wait_at_most(limit)).await;
    assert_eq!(kinds, [Some(ErrorKind::Unreachable); 2]);
    let (_store, locks) = Script::new().attempts(queues).checks(comes_back).connect();
    let kinds = kind_of(&locks.lock("a").wait_at_most(limit)).await;
    assert_eq!(kinds, [None, Some(ErrorKind::WaitTimedOut)], "its last answer counts");
}

/// What a store does when it is asked for a lock that is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Store {
    Grants,
    Queues,
    /// Queues, and stands still after two checks.
    Stops,
    Silent,
}

/// The end of a limit of three seconds means the same for every kind of wait, and is told within half a second.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_limit_means_the_same_for_every_wait() {
    let (limit, busy) = (3 * SECOND, ErrorKind::WaitTimedOut);
    for (store, used_up, expected) in [
        (Store::Grants, true, None),
        (Store::Queues, true, Some(busy)),
        (Store::Silent, true, Some(ErrorKind::Unreachable)),
        (Store::Queues, false, Some(busy)),
        (Store::Stops, false, Some(ErrorKind::Unreachable)),
        (Store::Silent, false, Some(ErrorKind::Unreachable)),
    ] {
        let attempt = move |asked: One| async move {
            sleep(ms(100)).await;
            match store {
                Store::Grants => granted(&asked),
                Store::Queues | Store::Stops => waiting(SECOND),
                Store::Silent => pending().await,
            }
        };
        let check = move |asked: Many| async move {
            if store == Store::Stops && asked.n >= 2 {
                pending().await
            } else {
                again(&asked, SECOND)
            }
        };
        for way in ["alone", "in turn", "of several"] {
            let script = Script::new().local_handoffs(8).attempts(attempt).checks(check);
            let (_store, locks) = script.connect();
            let lock = match way {
                "in turn" => locks.lock("a").local_handoffs(8),
                _ => locks.lock("a"),
            };
            let since = tokio::time::Instant::now();
            if used_up {
                sleep(limit).await;
            }
            let asked = locks.now();
            let acquiring = async {
                match way {
                    "of several" if !used_up => {
                        let both = [lock, locks.lock("b")];
                        fencelock_core::all(both).wait_at_most(limit).acquire().await.map(drop)
                    }
                    _ => lock.wait_at_most(limit).waiting_since(since).acquire().await.map(drop),
                }
            };
            let ended = acquiring.await;
            assert_eq!(ended.map_err(|error| error.kind()).err(), expected, "{way}, {store:?}");
            let left = if used_up { Duration::ZERO } else { limit };
            let took = locks.now().duration_since(asked);
            assert!(
                took >= left.min(ms(100)) && took <= left + ms(500),
                "{way}, {store:?}: {took:?}"
            );
        }
    }
}

/// As on a machine with more work than processors.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_process_was_too_busy_to_read_counts() {
    let check = |asked: Many| async move {
        sleep(ms(100)).await;
        // Through a connection's task and others.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        again(&asked, 10 * SECOND)
    };
    let script = Script::new().attempts(|_| async { waiting(10 * SECOND) }).checks(check);
    let (store, locks) = script.connect();
    let waiting = locks.lock("a").wait_at_most(5 * SECOND);
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    let priority = || Claim::check_priority(store.claims().iter());
    store.until(1, is_attempt).await;
    assert_eq!(priority(), Priority::Look);
    store.until(1, is_check).await;
    assert_eq!(priority(), Priority::Attempt, "no release waits behind the ends of many limits");
    // The answer is due, and the end of the patience with it.
    tokio::time::advance(SECOND).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::WaitTimedOut);
}

/// Looks go behind all else, and are late where there are many.
#[tokio::test(start_paused = true)]
async fn a_late_look_is_no_silence() {
    let check = |asked: Many| async move {
        if Claim::check_priority(asked.of.iter()) == Priority::Look {
            pending().await
        } else {
            again(&asked, SECOND)
        }
    };
    let script = Script::new().attempts(|_| async { waiting(SECOND) }).checks(check);
    let (_store, locks) = script.connect();
    let ended = locks.lock("a").wait_at_most(5 * SECOND).acquire().await;
    assert_eq!(ended.map(drop).unwrap_err().kind(), ErrorKind::WaitTimedOut);
}

/// Behind requests of thousands of other waits.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_others_is_not_silent() {
    let check = |asked: Many| async move {
        match asked.of[0].name().as_str() {
            "a" => pending().await,
            _ => again(&asked, ms(100)),
        }
    };
    let script = Script::new().attempts(|_| async { waiting(ms(100)) }).checks(check);
    let (_store, locks) = script.connect();
    let ended = async |name, limit| {
        let ended = locks.lock(name).wait_at_most(limit).acquire().await;
        ended.map(drop).unwrap_err().kind()
    };
    let (a, _other) = tokio::join!(ended("a", ms(1_500)), ended("b", 5 * SECOND));
    assert_eq!(a, ErrorKind::WaitTimedOut);
    assert_eq!(ended("a", ms(1_500)).await, ErrorKind::Unreachable);
}

/// Its wake-up was lost: the question at the end of its limit finds it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_told_of_is_taken_at_the_end_of_a_limit() {
    for handoffs in [1, 8] {
        let attempt = |asked: One| async move {
            sleep(ms(100)).await;
            if asked.n > 0 { granted(&asked) } else { waiting(10 * SECOND) }
        };
        let check = |asked: Many| async move { Ok(vec![WaiterCheck::Attempt; asked.of.len()]) };
        let script = Script::new().local_handoffs(handoffs).attempts(attempt).checks(check);
        let (_store, locks) = script.connect();
        let lock = locks.lock("a").local_handoffs(handoffs).wait_at_most(5 * SECOND);
        assert!(lock.acquire().await.unwrap().is_held(), "{handoffs}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_silent_for_the_whole_bound_is_not_waited_for_again() {
    let never = |_| pending();
    let (store, locks) = Script::new().releases(never).closes(|_| pending()).connect();
    drop(locks.lock("a").acquire().await.unwrap());
    let asked = store.now();
    assert_eq!(locks.close().await.unwrap_err().kind(), ErrorKind::Unreachable);
    let took = store.now().duration_since(asked);
    assert!(took >= TTL && took <= TTL + 2 * SECOND, "{took:?}");
    assert_eq!(store.count(|call| *call == Call::Close), 1, "its connection ends all the same");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_check_makes_a_waiter_detect_the_silence() {
    let hangs = |_| pending();
    let (store, locks) = Script::new().attempts(queued_then_silent).checks(hangs).connect();
    let asked = store.now();
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let took = store.now().duration_since(asked);
    assert!(took <= 2 * TTL, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_check_hides_no_grant_from_a_waiter_whose_store_answers_attempts() {
    let free_later = |asked: One| async move {
        match asked.n {
            0 => waiting(SECOND),
            _ => granted(&asked),
        }
    };
    let hangs = |_| pending();
    let (store, locks) = Script::new().attempts(free_later).checks(hangs).connect();
    let asked = store.now();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(guard.is_held());
    let took = store.now().duration_since(asked);
    assert!(took <= TTL + 2 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn answered_checks_end_the_silence() {
    let answered = |asked| async move { again(&asked, SECOND) };
    let (store, locks) = Script::new().attempts(queued_then_silent).checks(answered).connect();
    let waiter = tokio::spawn(async move { locks.lock("a").acquire().await });
    store.until(100, is_check).await;
    assert!(!waiter.is_finished(), "waiting for a busy lock is not silence");
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_answered_by_waiting_is_busy_and_released() {
    let queues = |_| async { waiting(SECOND) };
    let (store, locks) = Script::new().attempts(queues).connect();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    store.until(1, is_release).await;
    let lock = locks.lock("a").wait_at_most(std::time::Duration::ZERO);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    store.until(2, is_release).await;
    assert!(store.claims().iter().all(|claim| claim.is_over()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_release_is_unreachable_and_continues() {
    let silent_at_first = |asked: One| async move {
        match asked.n {
            0 => pending().await,
            _ => Ok(ReleaseOutcome::Removed),
        }
    };
    let (store, locks) = Script::new().releases(silent_at_first).connect();
    let guard = locks.lock("a").acquire().await.unwrap();
    let asked = store.now();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(store.now().duration_since(asked) <= TTL + SECOND);
    store.until(2, is_release).await;
}

/// The panic is in the task that asks for all of them.
#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_leaves_no_task_waiting_for_its_turn() {
    let fails_at_first = |asked: One| async move {
        match asked.n {
            0 => panic!("the backend panics as scripted"),
            _ => granted(&asked),
        }
    };
    let (_store, locks) = Script::new().local_handoffs(8).attempts(fails_at_first).connect();
    let lock = locks.lock("a").local_handoffs(8);
    let both = async { tokio::join!(lock.acquire(), lock.acquire()) };
    let (one, two) = tokio::time::timeout(TTL, both).await.expect("both end");
    for ended in [one, two] {
        let error = ended.expect_err("nobody asks for it");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    let next = tokio::time::timeout(TTL, lock.acquire()).await.expect("an answer");
    next.expect("the next one asks again").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn health_says_whether_the_store_answers_within_a_limit() {
    let (store, locks) = Script::new().connect();
    let health = locks.health(SECOND).await;
    assert!(health.connected && health.answered == Some(Duration::ZERO) && health.error.is_none());
    let late = || async {
        sleep(2 * SECOND).await;
        Ok(Snapshot::default())
    };
    store.change(|script| script.inspections(move |()| late()));
    let health = locks.health(SECOND).await;
    assert!(health.connected && health.answered.is_none());
    let error = health.error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("within 1s"), "{error}");
    assert_eq!(locks.health(3 * SECOND).await.answered, Some(2 * SECOND));
    store.change(|script| script.inspections(|()| async { refused_connection() }));
    let health = locks.health(SECOND).await;
    assert!(health.error.unwrap().to_string().contains("connection refused"));
    let error = locks.evict("a", &ParticipantId::new("1")).await.unwrap_err();
    assert!(error.message().contains("may or may not have been evicted"), "{error}");
    locks.close().await.unwrap();
    assert_eq!(locks.health(SECOND).await.error.unwrap().kind(), ErrorKind::Closed);
}
