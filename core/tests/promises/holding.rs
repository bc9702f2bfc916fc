//! What a holder may rely on while it works.

use std::cell::Cell;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{
    Cells, Clock, Error, ErrorKind, Guard, Guards, Moment, Run, Settings, Tick, TokioClock, all,
};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::lossy::Lossy;
use crate::scripted::{SECOND, Script, TTL, in_the_end};

#[tokio::test(start_paused = true)]
async fn work_is_not_polled_after_the_end_of_the_validity() {
    let (_store, locks, clock) = Script::new().jumping();
    let guard = locks.lock("a").acquire().await.unwrap();
    let went_on = Cell::new(false);
    let work = async {
        clock.jump(TTL);
        yield_now().await;
        went_on.set(true);
    };
    let error = guard.run(work).await.unwrap_err();
    assert_eq!((error.kind(), went_on.get()), (ErrorKind::Lost, false));
}

#[tokio::test(start_paused = true)]
async fn the_result_of_work_that_ends_too_late_is_dropped() {
    let (_store, locks, clock) = Script::new().jumping();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(guard.run(async { 1 }).await.unwrap(), 1);
    let error = guard.run(async { clock.jump(TTL) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let started = Cell::new(false);
    assert!(guard.run(async { started.set(true) }).await.is_err() && !started.get());
}

/// A clock that jumps past all leases after so many readings, as if the machine had stood still then.
#[derive(Default)]
struct StandsStill {
    clock: TokioClock,
    readings: AtomicUsize,
    after: usize,
}

impl StandsStill {
    fn shown(&self, readings: usize) -> Moment {
        let jump = if readings > self.after { 2 * TTL } else { Duration::ZERO };
        self.clock.now() + jump
    }

    /// The time, which is no reading.
    fn time(&self) -> Moment {
        self.shown(self.readings.load(Ordering::SeqCst))
    }
}

impl Clock for StandsStill {
    fn now(&self) -> Moment {
        self.shown(self.readings.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.clock.sleep_until(at)
    }
}

/// A function that is not async begins the work when it is called.
#[tokio::test(start_paused = true)]
async fn no_function_is_called_to_begin_work_on_a_lost_lock() {
    const READINGS: usize = 40;
    let mut begun = [0; 4];
    for (starter, begun) in begun.iter_mut().enumerate() {
        for after in 0..READINGS {
            let clock = Arc::new(StandsStill { after, ..StandsStill::default() });
            let cells = Cells::of(Arc::new(Lossy::sound()));
            let (_, locks) = Script::new().clock(clock.clone()).cells(cells).connect();
            let mut begins = |guard: &Guard| {
                assert!(guard.valid_until() > clock.time(), "{starter} after {after} readings");
                *begun += 1;
                ready(Ok::<_, Error>(true))
            };
            // Some end with an error.
            match starter {
                0 => drop(locks.lock("a").with(begins).await),
                1 => {
                    let both = all([locks.lock("a"), locks.lock("b")]);
                    drop(both.with(|both: &Guards| begins(&both[1])).await);
                }
                2 => {
                    let once = locks.once("a").tick(Tick::number(1));
                    drop(once.run(|run: &Run| begins(run.guard())).await);
                }
                _ => {
                    let election = locks.election("a");
                    in_the_end(election.lead(|term| begins(term.guard()))).await.unwrap();
                }
            }
        }
    }
    // Each begins where the clock jumps later than it begins.
    assert!(begun.iter().all(|begun| *begun > READINGS / 4), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_of_the_memory_store_ends_for_its_waiters_too() {
    let locks = Memory::new().locks(Settings::default()).unwrap();
    let holder = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let end = holder.valid_until();
    let waiter = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    assert!(!holder.is_held() && waiter.is_held());
    assert!(
        locks.now().duration_since(end) <= SECOND,
        "{:?} too late",
        locks.now().duration_since(end)
    );
    // The hand-off by a wake-up does not make its lease longer.
    let end = waiter.valid_until();
    sleep(5 * SECOND).await;
    assert_eq!(waiter.valid_until(), end);
}
