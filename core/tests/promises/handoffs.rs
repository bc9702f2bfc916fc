//! Local hand-offs: the turns of a tenure, and those who wait for them.

use std::pin::Pin;
use std::sync::Arc;

use fencelock_core::{AttemptOutcome, Clock, ErrorKind, Guard, Lock, Moment, TokioClock};
use futures_util::FutureExt;
use futures_util::future::join;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::program::{Hooks, on_a_thread, settle};
use crate::scripted::{Jumping, One, SECOND, Script, TTL, granted, is_attempt, ms};

async fn spawn_waiter(lock: &Lock) -> JoinHandle<Guard> {
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("granted") });
    settle().await;
    waiter
}

#[test]
fn a_grant_is_taken_although_its_report_took_longer_than_a_tenure() {
    on_a_thread(async |hooks| {
        fn slow(hooks: &Hooks, clock: &Arc<Jumping>) {
            let (again, at) = (hooks.clone(), clock.clone());
            hooks.at_a_span().set(move || {
                slow(&again, &at);
                at.jump(ms(11));
            });
        }
        let (store, locks, clock) = Script::new().local_handoffs(8).jumping();
        slow(&hooks, &clock);
        let waiter = spawn_waiter(&locks.lock("a").local_handoffs(8)).await;
        settle().await;
        assert_eq!(store.count(is_attempt), 1, "each grant is given back");
        assert!(waiter.now_or_never().expect("it has a turn").unwrap().is_held());
    });
}

/// Ends its sleeps of some seconds early, as the clock of a runtime that has ended does.
struct Ended {
    clock: TokioClock,
    ended: CancellationToken,
}

impl Clock for Ended {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let is_short = at <= self.now() + 4 * SECOND && at > self.now() + 2 * SECOND;
        Box::pin(async move {
            tokio::select! {
                () = self.clock.sleep_until(at) => {}
                () = self.ended.cancelled(), if is_short => {}
            }
        })
    }
}

#[test]
fn a_limited_turn_does_not_end_early_with_its_clock() {
    on_a_thread(async |_| {
        let ended = CancellationToken::new();
        let clock = Arc::new(Ended { clock: TokioClock::new(), ended: ended.clone() });
        let (_store, locks) = Script::new().local_handoffs(8).clock(clock).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let first = lock.clone().hold_at_most(3 * SECOND).acquire().await.unwrap();
        let mut next = spawn_waiter(&lock).await;
        ended.cancel();
        settle().await;
        assert!(first.is_held());
        assert!((&mut next).now_or_never().is_none(), "two hold it");
    });
}

#[test]
fn a_waiter_whose_offer_was_revoked_is_the_next() {
    on_a_thread(async |_| {
        let (_store, locks) = Script::new().local_handoffs(8).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let first = lock.acquire().await.unwrap();
        let mut slow = Box::pin(lock.acquire());
        assert!((&mut slow).now_or_never().is_none());
        let second = spawn_waiter(&lock).await;
        let third = spawn_waiter(&lock).await;
        drop(first);
        // It does not begin the turn in time.
        sleep(ms(20)).await;
        let second = timeout(SECOND, second).await.expect("granted").unwrap();
        assert!((&mut slow).now_or_never().is_none(), "its turn is over");
        drop(second);
        settle().await;
        let slow = slow.now_or_never().expect("it comes ahead of the third").unwrap();
        drop(slow);
        assert!(timeout(SECOND, third).await.expect("granted").unwrap().is_held());
    });
}

#[test]
fn a_group_that_is_not_listed_any_more_does_not_remove_its_successor() {
    on_a_thread(async |_| {
        let (store, locks) = Script::new().local_handoffs(8).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let first = lock.acquire().await.unwrap();
        let mut slow = Box::pin(lock.acquire());
        assert!((&mut slow).now_or_never().is_none());
        drop(first);
        // Its offer is revoked, and no other waiter is left: the group is removed.
        sleep(ms(20)).await;
        let second = lock.acquire().await.unwrap();
        drop(slow);
        let asked = store.count(is_attempt);
        let third = spawn_waiter(&lock).await;
        assert_eq!(store.count(is_attempt), asked, "it waits for its turn");
        drop(second);
        assert!(timeout(SECOND, third).await.expect("granted").unwrap().is_held());
    });
}

#[test]
fn a_grant_that_came_too_late_fails_one_waiter_only() {
    on_a_thread(async |_| {
        let attempts = |asked: One| async move {
            match (asked.n, granted(&asked)) {
                (0, Ok(AttemptOutcome::Granted { token, .. })) => {
                    Ok(AttemptOutcome::Granted { token, valid_until: asked.at })
                }
                (_, answer) => answer,
            }
        };
        let (_store, locks) = Script::new().local_handoffs(8).attempts(attempts).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let (one, two) = (lock.acquire(), lock.acquire());
        let (one, two) = timeout(SECOND, join(one, two)).await.expect("each has an answer");
        assert_eq!(one.unwrap_err().kind(), ErrorKind::Lost);
        assert!(two.unwrap().is_held());
    });
}

#[test]
fn the_limit_of_a_turn_is_logged_with_its_token() {
    on_a_thread(async |hooks| {
        let (_store, locks) = Script::new().local_handoffs(8).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let first = lock.acquire().await.unwrap();
        let second = spawn_waiter(&lock.clone().hold_at_most(SECOND)).await;
        drop(first);
        let second = second.await.unwrap();
        second.lost().await;
        settle().await;
        let [logged] = &hooks.events("lock lost")[..] else { panic!("once") };
        let token = format!("token={} ", second.fencing_token());
        assert!(logged.contains(&token), "{logged}, and not {token}");
    });
}

#[test]
fn a_loss_while_a_turn_begins_is_reported_as_its_own() {
    on_a_thread(async |hooks| {
        let (_store, locks) = Script::new().local_handoffs(8).connect();
        let lock = locks.lock("a").local_handoffs(8);
        let first = lock.acquire().await.unwrap();
        let second = spawn_waiter(&lock).await;
        // The span of the second turn.
        hooks.at_a_span().set(move || drop(locks.close().now_or_never()));
        drop(first);
        let second = second.await.unwrap();
        hooks.at_a_span().assert_called();
        assert!(!second.is_held());
        let token = format!("token={} ", second.fencing_token());
        assert_eq!(hooks.events("lock lost").iter().filter(|it| it.contains(&token)).count(), 1);
    });
}

/// The second request is never answered: who came before it met a lock that was held, but a store that is silent is
/// not a busy lock. It is not silent yet after twice the time of its last answer, of
/// 2 s at most.
#[tokio::test(start_paused = true)]
async fn a_limit_that_ends_between_two_grants_ends_the_wait_for_a_busy_lock() {
    limits_that_end_between_two_grants(0, 2, ErrorKind::Unreachable).await;
    limits_that_end_between_two_grants(600, 2, ErrorKind::WaitTimedOut).await;
    limits_that_end_between_two_grants(5000, 4, ErrorKind::Unreachable).await;
}

async fn limits_that_end_between_two_grants(takes: u64, seconds: u32, then: ErrorKind) {
    let attempts = move |asked: One| async move {
        sleep(if asked.n > 0 { TTL } else { ms(takes) }).await;
        granted(&asked)
    };
    let (store, locks) = Script::new().local_handoffs(8).attempts(attempts).connect();
    let lock = locks.lock("a").local_handoffs(8);
    let wait = |limit| {
        let acquire = lock.clone().wait_at_most(limit);
        tokio::spawn(async move { acquire.acquire().await.unwrap_err().kind() })
    };
    let first = lock.acquire().await.unwrap();
    let (before, longer) = (wait(SECOND), wait(seconds * SECOND));
    sleep(ms(900)).await;
    drop(first);
    store.until(2, is_attempt).await;
    sleep(ms(1)).await;
    let after = wait(ms(100));
    assert_eq!(before.await.unwrap(), ErrorKind::WaitTimedOut);
    assert_eq!(after.await.unwrap(), ErrorKind::Unreachable);
    assert_eq!(longer.await.unwrap(), then);
}
