//! Local hand-offs: the turns of a tenure, and those who wait for them.

use std::pin::Pin;
use std::sync::Arc;

use fencelock_core::{Clock, Guard, Lock, Moment, TokioClock};
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::program::{Hooks, on_a_thread, settle};
use crate::scripted::{Call, Jumping, SECOND, Script, ms};

async fn spawn_waiter(lock: &Lock) -> JoinHandle<Guard> {
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("granted") });
    settle().await;
    waiter
}

fn is_attempt(call: &Call) -> bool {
    *call == Call::Attempt
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
        let clock = Arc::new(Jumping::default());
        let (store, locks) = Script::new().local_handoffs(8).clock(clock.clone()).connect();
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
