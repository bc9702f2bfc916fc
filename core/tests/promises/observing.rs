//! The program's own code that the library calls while it hands a lock on: a subscriber may use the
//! same lock within an event, and may panic.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use fencelock_core::{Error, Guard, Lock, Locks, Owner, all};
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::program::{Hooks, on_a_thread, settle};
use crate::scripted::{Jumping, SECOND, Script, TTL, is_attempt};

/// A lock with hand-offs, of which one task has a turn and another one waits for the next.
struct Scene {
    locks: Locks,
    lock: Lock,
    clock: Arc<Jumping>,
    hooks: Hooks,
    /// Of an earlier tenure, which was lost.
    stale: Guard,
    turn: Guard,
    waiting: JoinHandle<Result<Guard, Error>>,
}

impl Scene {
    async fn begin(hooks: Hooks) -> Scene {
        let (_store, locks, clock) = Script::new().local_handoffs(8).jumping();
        let lock = locks.lock("a").local_handoffs(8);
        let stale = lock.acquire().await.unwrap();
        let turn = spawn_waiter(&lock).await;
        clock.jump(TTL);
        assert!(!stale.is_held());
        let turn = timeout(SECOND, turn).await.expect("granted").unwrap().unwrap();
        let waiting = spawn_waiter(&lock).await;
        Scene { locks, lock, clock, hooks, stale, turn, waiting }
    }
}

async fn spawn_waiter(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    waiter
}

/// Plays a scene on a thread of its own.
fn play(scene: impl AsyncFnOnce(Scene) + Send + 'static) {
    on_a_thread(async |hooks| scene(Scene::begin(hooks).await).await);
}

/// A subscriber that ends a guard of the lock whose loss it is told of, and asks for the lock.
fn uses(lock: Lock, guard: Guard) -> impl FnOnce() + Send {
    move || {
        drop(guard);
        // Whatever they answer, they do so at once.
        drop(lock.try_acquire().now_or_never());
        drop(lock.acquire().now_or_never());
    }
}

async fn until_granted(waiter: JoinHandle<Result<Guard, Error>>) -> Guard {
    timeout(SECOND, waiter).await.expect("granted").expect("no panic").unwrap()
}

#[test]
fn a_subscriber_may_use_a_lock_whose_loss_the_end_of_a_turn_finds() {
    play(async |scene| {
        scene.hooks.at_a_loss().set(uses(scene.lock.clone(), scene.stale));
        scene.clock.jump(TTL);
        // Too late, and the first to notice.
        drop(scene.turn);
        scene.hooks.at_a_loss().assert_called();
        assert!(until_granted(scene.waiting).await.is_held());
    });
}

#[test]
fn a_subscriber_may_use_a_lock_whose_loss_the_next_turn_finds() {
    play(async |scene| {
        scene.hooks.at_a_loss().set(uses(scene.lock.clone(), scene.stale));
        drop(scene.turn);
        // Between the offer and the poll of the waiter that got it.
        scene.clock.jump(TTL);
        assert!(until_granted(scene.waiting).await.is_held());
        scene.hooks.at_a_loss().assert_called();
    });
}

#[test]
fn a_subscriber_may_use_a_lock_whose_loss_a_dropped_waiter_finds() {
    play(async |scene| {
        let last = spawn_waiter(&scene.lock).await;
        scene.hooks.at_a_loss().set(uses(scene.lock.clone(), scene.stale));
        drop(scene.turn);
        // With the offer that it got.
        scene.waiting.abort();
        scene.clock.jump(TTL);
        assert!(until_granted(last).await.is_held());
        scene.hooks.at_a_loss().assert_called();
    });
}

#[test]
fn a_subscriber_that_panics_at_a_loss_leaves_the_lock_to_those_who_wait() {
    play(async |scene| {
        scene.hooks.at_a_loss().set(|| panic!("a subscriber of the program"));
        scene.clock.jump(TTL);
        drop(scene.turn);
        assert!(until_granted(scene.waiting).await.is_held());
        drop(scene.stale);
        let next = timeout(SECOND, scene.lock.acquire()).await.expect("granted");
        assert!(next.unwrap().is_held());
    });
}

#[test]
fn a_panic_of_the_waiter_that_finds_a_loss_leaves_the_lock_to_those_after_it() {
    play(async |scene| {
        let last = spawn_waiter(&scene.lock).await;
        scene.hooks.at_a_loss().set(|| panic!("a subscriber of the program"));
        drop(scene.turn);
        // Between the offer and the poll of the waiter that got it.
        scene.clock.jump(TTL);
        let found = scene.waiting.await;
        drop(found);
        assert!(until_granted(last).await.is_held());
    });
}

#[test]
fn a_guard_that_is_dropped_after_its_validity_is_lost() {
    play(async |scene| {
        let plain = scene.locks.lock("b").acquire().await.unwrap();
        scene.hooks.at_a_loss().set(|| {});
        scene.clock.jump(TTL);
        drop(plain);
        scene.hooks.at_a_loss().assert_called();
    });
}

#[cfg(feature = "metrics")]
#[test]
fn a_turn_that_ends_after_the_validity_is_counted_as_lost() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    play(async |scene| {
        let recorder = DebuggingRecorder::new();
        let _installed = metrics::set_default_local_recorder(&recorder);
        scene.clock.jump(TTL);
        drop(scene.turn);
        let seen = recorder.snapshotter().snapshot().into_vec();
        let lost = seen.iter().find(|(key, ..)| key.key().name() == "fencelock_lost_total");
        assert!(matches!(lost, Some((_, _, _, DebugValue::Counter(1)))), "{seen:#?}");
    });
}

/// A waker, or a subscriber, that asks for a lock of the client that calls it.
fn asks_for(lock: Lock) -> impl Fn() + Send + Sync {
    move || drop(lock.try_acquire().now_or_never())
}

#[test]
fn a_subscriber_may_use_the_owner_whose_acquisition_finds_a_loss() {
    on_a_thread(async |hooks| {
        let (_store, locks, clock) = Script::new().jumping();
        let lock = locks.lock("a").owned_by(&Owner::new());
        let _lost = lock.acquire().await.unwrap();
        hooks.at_a_loss().set(asks_for(lock.clone()));
        clock.jump(TTL);
        assert!(lock.try_acquire().await.is_ok());
        hooks.at_a_loss().assert_called();
    });
}

#[test]
fn a_subscriber_may_use_the_owner_that_is_asked_for_the_order() {
    on_a_thread(async |hooks| {
        let (_store, locks, clock) = Script::new().jumping();
        let owner = Owner::new();
        let lock = locks.lock("b").owned_by(&owner);
        let lost = lock.acquire().await.unwrap();
        hooks.at_a_loss().set(asks_for(lock));
        clock.jump(TTL);
        let earlier = all([locks.lock("a").owned_by(&owner)]).acquire().await;
        assert!(earlier.unwrap().is_held() && !lost.is_held());
        hooks.at_a_loss().assert_called();
        assert_eq!(hooks.events("comes before one that it holds"), [""; 0], "it holds none");
    });
}

#[test]
fn a_subscriber_may_use_the_owner_whose_last_guard_ends() {
    on_a_thread(async |hooks| {
        let (_store, locks) = Script::new().connect();
        let lock = locks.lock("a").owned_by(&Owner::new());
        let guard = lock.acquire().await.unwrap();
        settle().await;
        hooks.at_an_end().set(asks_for(lock));
        drop(guard);
        settle().await;
        hooks.at_an_end().assert_called();
    });
}

#[test]
fn a_subscriber_may_use_a_lock_at_the_end_of_a_hold_that_the_worker_had() {
    on_a_thread(async |hooks| {
        let (_store, locks, clock) = Script::new().jumping();
        let lock = locks.lock("a");
        let guard = lock.acquire().await.unwrap();
        settle().await;
        clock.jump(TTL);
        assert!(!guard.is_held());
        drop(guard);
        settle().await;
        hooks.at_an_end().set(asks_for(lock));
        // The worker finds that it has ended.
        sleep(2 * TTL).await;
        hooks.at_an_end().assert_called();
    });
}

struct Calls<F>(F);

impl<F: Fn() + Send + Sync> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn a_waker_may_use_a_lock_at_a_renewal() {
    on_a_thread(async |_| {
        let (store, locks) = Script::new().connect();
        let guard = locks.lock("a").acquire().await.unwrap();
        let waker = Waker::from(Arc::new(Calls(asks_for(locks.lock("b")))));
        let mut lost = Box::pin(guard.lost());
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        sleep(TTL).await;
        assert!(guard.is_held());
        let asked = store.count(is_attempt);
        assert_eq!(asked, 2, "the waker was called");
    });
}
