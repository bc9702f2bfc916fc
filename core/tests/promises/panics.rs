//! A panic of the program's own code, in its subscriber or its recorder of metrics, ends nothing that
//! others depend on: it is the program's own, and stays where it was called.

#[cfg(feature = "metrics")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use fencelock_core::LostReason;
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};

use crate::program::{on_a_thread, settle};
use crate::scripted::{One, SECOND, Script, TTL, is_release, refused_connection, renewed};

#[test]
fn a_panic_at_a_loss_does_not_end_the_renewal_of_others() {
    on_a_thread(async |hooks| {
        let (_store, locks) = Script::new().connect();
        let renewed = locks.lock("a").acquire().await.unwrap();
        let short = locks.lock("b").fixed_lease(SECOND).acquire().await.unwrap();
        hooks.panic_at("lock lost");
        sleep(2 * TTL).await;
        assert!(!short.is_held());
        assert!(renewed.is_held(), "{:?}", renewed.lost().now_or_never());
        assert!(locks.lock("c").acquire().await.is_ok());
    });
}

#[test]
fn a_panic_at_a_loss_leaves_no_hold_of_a_client_that_is_closed() {
    on_a_thread(async |hooks| {
        let (_store, locks) = Script::new().connect();
        let held = [locks.lock("a"), locks.lock("b")].map(|lock| lock.acquire().now_or_never());
        let held = held.map(|acquired| acquired.expect("it is free").unwrap());
        hooks.panic_at("lock lost");
        locks.close().await.unwrap();
        for guard in held {
            assert!(!guard.is_held());
            let reason = timeout(SECOND, guard.lost()).await.expect("reported");
            assert_eq!(reason, LostReason::Closed);
        }
        assert_eq!(hooks.events("lock lost").len(), 2);
    });
}

#[test]
fn a_panic_at_one_answer_hides_no_other_of_the_batch() {
    on_a_thread(async |hooks| {
        let renewals = |asked: One| async move {
            match asked.of.name().as_str() {
                "unanswered" => refused_connection(),
                _ => renewed(&asked),
            }
        };
        let (_store, locks) = Script::new().renewals(renewals).connect();
        let _first = locks.lock("unanswered").acquire().await.unwrap();
        let others = [locks.lock("a"), locks.lock("b")].map(|lock| lock.acquire().now_or_never());
        hooks.panic_at("renewal unknown");
        sleep(2 * TTL).await;
        assert!(others.into_iter().all(|acquired| acquired.unwrap().unwrap().is_held()));
    });
}

#[test]
fn a_panic_at_a_loss_reaches_neither_the_guard_nor_those_who_wait() {
    on_a_thread(async |hooks| {
        let (store, locks, clock) = Script::new().local_handoffs(8).jumping();
        hooks.panic_at("lock lost");
        for handoffs in [1, 8] {
            let lock = locks.lock("a").local_handoffs(handoffs);
            let guard = lock.acquire().await.unwrap();
            let released = store.count(is_release);
            clock.jump(TTL);
            assert!(!guard.is_held());
            std::mem::forget(guard);
            let release = store.until(released + 1, is_release);
            timeout(SECOND, release).await.expect("it is released");
        }
    });
}

#[test]
fn a_panic_at_the_end_of_a_span_does_not_end_the_renewal_of_others() {
    on_a_thread(async |hooks| {
        let (_store, locks, clock) = Script::new().jumping();
        let short = locks.lock("a").fixed_lease(SECOND).acquire().await.unwrap();
        let renewed = locks.lock("b").acquire().await.unwrap();
        settle().await;
        clock.jump(SECOND);
        // The worker keeps what has ended until it was due.
        assert!(!short.is_held());
        drop(short);
        settle().await;
        hooks.at_an_end().set(|| panic!("a subscriber of the program"));
        sleep(2 * TTL).await;
        assert!(renewed.is_held(), "{:?}", renewed.lost().now_or_never());
    });
}

#[cfg(feature = "metrics")]
mod recorder {
    use std::sync::atomic::{AtomicBool, Ordering};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;
    use crate::scripted::waiting;

    /// Panics at each use, once told to.
    #[derive(Default)]
    struct Panics(AtomicBool);

    impl Panics {
        fn used<T>(&self, handle: T) -> T {
            assert!(!self.0.load(Ordering::SeqCst), "a recorder of the program");
            handle
        }
    }

    impl Recorder for Panics {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            self.used(Counter::noop())
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            self.used(Gauge::noop())
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            self.used(Histogram::noop())
        }
    }

    #[test]
    fn a_recorder_that_panics_does_not_end_the_renewal_of_others() {
        on_a_thread(async |_| {
            let recorder = Panics::default();
            let _installed = metrics::set_default_local_recorder(&recorder);
            let (_store, locks) = Script::new().connect();
            let renewed = locks.lock("a").acquire().await.unwrap();
            let short = locks.lock("b").fixed_lease(SECOND).acquire().await.unwrap();
            recorder.0.store(true, Ordering::SeqCst);
            sleep(2 * TTL).await;
            assert!(!short.is_held());
            assert!(renewed.is_held(), "{:?}", renewed.lost().now_or_never());
        });
    }

    #[test]
    fn a_recorder_that_panics_leaves_no_place_of_a_dropped_waiter() {
        on_a_thread(async |_| {
            let recorder = Panics::default();
            let _installed = metrics::set_default_local_recorder(&recorder);
            let queues = |_| async { waiting(SECOND) };
            let (store, locks) = Script::new().local_handoffs(8).attempts(queues).connect();
            for handoffs in [1, 8] {
                let lock = locks.lock("a").local_handoffs(handoffs);
                let mut waiter = Box::pin(async move { lock.acquire().await });
                assert!((&mut waiter).now_or_never().is_none());
                settle().await;
                recorder.0.store(true, Ordering::SeqCst);
                let released = store.count(is_release);
                let dropped = catch_unwind(AssertUnwindSafe(|| drop(waiter)));
                recorder.0.store(false, Ordering::SeqCst);
                let release = store.until(released + 1, is_release);
                timeout(SECOND, release).await.expect("it has left the queue");
                assert!(dropped.is_ok(), "the panic is the program's own");
            }
        });
    }
}
