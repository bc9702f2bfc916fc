//! A client used on one runtime and connected on another, which ends first: no caller waits for
//! renewals, timers or a connection that never come.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::memory::{Memory, SCHEME};
use fencelock_core::url::connect_lazy;
use fencelock_core::{BootClock, Clock, ErrorKind, Lock, Locks, Owner, Settings, TokioClock};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::scripted::{
    One, SECOND, Script, Scripted, granted, is_attempt, is_release, ms, waiting,
};

/// Bounds a test that fails.
const AT_LAST: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// `free` is free, `queued` has a queue, and everything else hangs, as do releases.
fn connect(on: &Runtime, boot_clock: bool, unreachable_after: Duration) -> (Arc<Scripted>, Locks) {
    let attempt = |asked: One| async move {
        match asked.of.name().as_str() {
            "free" => granted(&asked),
            "queued" => waiting(SECOND),
            _ => pending().await,
        }
    };
    let _entered = on.enter();
    let clock: Arc<dyn Clock> = match boot_clock {
        true => Arc::new(BootClock::start().unwrap()),
        false => Arc::new(TokioClock::new()),
    };
    let script = Script::new().clock(clock).unreachable_after(unreachable_after);
    script.attempts(attempt).releases(|_| pending()).connect()
}

#[test]
fn waiters_elsewhere_end_with_the_runtime_that_connected() {
    for boot_clock in [false, true] {
        let (connected, elsewhere) = (runtime(), runtime());
        let (store, locks) = connect(&connected, boot_clock, 1_000 * SECOND);
        let waiters = ["hangs", "queued"].map(|name| {
            let lock = locks.lock(name);
            elsewhere.spawn(async move { lock.acquire().await })
        });
        elsewhere.block_on(async {
            store.until(2, is_attempt).await;
            connected.shutdown_background();
            for waiter in waiters {
                let result = timeout(AT_LAST, waiter).await.unwrap().unwrap();
                let kind = result.unwrap_err().kind();
                assert_eq!(kind, ErrorKind::Closed, "boot clock: {boot_clock}");
            }
        });
    }
}

/// As in a `static` that the first of many `#[tokio::test]`s connects.
#[test]
fn a_client_whose_runtime_has_ended_says_what_to_do() {
    let (first, second, memory) = (runtime(), runtime(), Memory::new());
    let [ended, lazy, closed] = {
        let _entered = first.enter();
        let settings = Settings::default;
        let lazy = connect_lazy(&[SCHEME], "mem://").unwrap();
        [memory.locks(settings()).unwrap(), lazy, memory.locks(settings()).unwrap()]
    };
    second.block_on(closed.close()).unwrap();
    drop(first);
    for (locks, has_remedy) in [(ended, true), (lazy, true), (closed, false)] {
        let errors = second.block_on(async {
            let acquired = locks.lock("free").acquire().await.unwrap_err();
            let handed_on = locks.lock("free").local_handoffs(8).acquire().await.unwrap_err();
            let read = locks.cell("free").read().await.unwrap_err();
            [acquired, handed_on, read, locks.inspect("free").await.unwrap_err()]
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert_eq!(error.to_string().contains("connect in each test"), has_remedy, "{error}");
        }
    }
}

/// Takes a while to be dropped.
struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(ms(300));
    }
}

#[test]
fn waiters_elsewhere_end_when_the_clock_ends_long_before_the_closing() {
    let (connects, connected) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let script = {
            let _entered = runtime.enter();
            let script = Script::new().clock(Arc::new(BootClock::start().unwrap()));
            // The task that is dropped after the clock's and before the client's.
            runtime.spawn(async {
                let _slow = Slow;
                pending::<()>().await;
            });
            let script = script.unreachable_after(1_000 * SECOND).local_handoffs(8);
            script.attempts(|_| async { waiting(SECOND) }).connect()
        };
        runtime.block_on(async {
            connects.send(script).ok().unwrap();
            let _ = ended.await;
        });
    });
    let (store, locks) = connected.recv().unwrap();
    let bounded = |lock: Lock| lock.wait_at_most(1_000 * SECOND);
    let of_an_owner = locks.lock("owner").owned_by(&Owner::new());
    let waiters = [
        locks.lock("plain"),
        bounded(locks.lock("bounded")),
        locks.lock("handed on").local_handoffs(8),
        bounded(locks.lock("handed on, bounded").local_handoffs(8)),
        of_an_owner.clone(),
        // Waits for the one before it.
        bounded(of_an_owner),
    ];
    runtime().block_on(async {
        let mut tasks = Vec::new();
        for (before, lock) in waiters.into_iter().enumerate() {
            tasks.push(tokio::spawn(async move { lock.acquire().await }));
            store.until((before + 1).min(5), is_attempt).await;
        }
        end.send(()).unwrap();
        for (index, task) in tasks.into_iter().enumerate() {
            let result = timeout(AT_LAST, task).await.unwrap().unwrap();
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Closed, "{index}");
        }
    });
    thread.join().unwrap();
}

#[test]
fn a_release_elsewhere_ends_in_time_when_the_runtime_that_connected_ends() {
    for boot_clock in [false, true] {
        let (connected, elsewhere) = (runtime(), runtime());
        let (store, locks) = connect(&connected, boot_clock, ms(200));
        let guard = elsewhere.block_on(locks.lock("free").acquire()).unwrap();
        let releasing = elsewhere.spawn(guard.release());
        elsewhere.block_on(async {
            store.until(1, is_release).await;
            connected.shutdown_background();
            let error = timeout(AT_LAST, releasing).await.unwrap().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreachable, "boot clock: {boot_clock}");
        });
        let asked = store.count(is_release);
        assert!(asked <= 10, "asked {asked} times, boot clock: {boot_clock}");
    }
}

#[test]
fn a_runtime_that_ended_before_the_worker_began_closes_too() {
    let connected = Builder::new_current_thread().enable_all().build().unwrap();
    let locks = connected.block_on(async { Memory::new().locks(Settings::default()) }).unwrap();
    // The runtime polled nothing but the connecting itself.
    drop(connected);
    runtime().block_on(async {
        let error = locks.lock("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    });
}

#[test]
fn sleeps_end_with_the_boot_clocks_runtime() {
    let started = runtime();
    let clock = started.block_on(async { BootClock::start() }).unwrap();
    runtime().block_on(async {
        let never = clock.now() + 1_000 * SECOND;
        started.shutdown_background();
        timeout(AT_LAST, clock.sleep_until(never)).await.unwrap();
    });
}

#[test]
fn waiters_of_the_memory_store_skip_a_claim_that_ended_with_its_runtime() {
    let store = Memory::new();
    let (ended, alive) = (runtime(), runtime());
    let guard = ended.block_on(async {
        let locks = store.locks(Settings::default()).unwrap();
        locks.lock("a").fixed_lease(ms(200)).acquire().await.unwrap()
    });
    // Neither released nor dropped, as if its thread were gone.
    std::mem::forget(guard);
    drop(ended);
    alive.block_on(async {
        let locks = store.locks(Settings::default()).unwrap();
        let acquired = timeout(AT_LAST, locks.lock("a").acquire()).await.unwrap();
        assert!(acquired.unwrap().is_held());
    });
}
