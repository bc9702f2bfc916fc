//! Guards that share one grant: those of an owner, and the turns of local hand-offs.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use fencelock_core::memory::Memory;
use fencelock_core::sync::Mutex;
use fencelock_core::{
    Error, ErrorKind, Lock, Locks, LostReason, Mode, Owner, ReleaseOutcome, Settings, all,
};
use futures_util::FutureExt;
use tokio::time::{sleep, timeout};

use crate::program::{on_a_thread, settle};
use crate::scripted::{Jumping, One, SECOND, Script, granted, is_attempt, ms};

fn memory() -> Locks {
    Memory::new().locks(Settings::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_limited_turn_ends_for_its_owner_too() {
    let locks = memory();
    let owner = Owner::new();
    let lock = locks.lock("a").local_handoffs(8);
    let first = lock.clone().hold_at_most(ms(5)).owned_by(&owner).acquire().await.unwrap();
    let other = tokio::spawn(async move { lock.acquire().await.unwrap() });
    settle().await;
    let reason = timeout(SECOND, first.lost()).await.expect("reported");
    assert_eq!(reason, LostReason::HoldLimit);
    let other = timeout(SECOND, other).await.unwrap().unwrap();
    assert!(other.is_held() && !first.is_held(), "two hold it: {first:?} and {other:?}");
    let again = locks.lock("a").owned_by(&owner).try_acquire().await.unwrap();
    assert!(again.is_none(), "joined what has ended: {again:?} beside {other:?}");
    assert_eq!(first.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn the_end_of_a_turn_does_not_forget_a_later_one_of_the_same_owner() {
    on_a_thread(async |hooks| {
        let locks = memory();
        let plain = locks.lock("a").local_handoffs(8);
        let owned = plain.clone().owned_by(&Owner::new());
        let first = owned.acquire().await.unwrap();
        let mut waiting = Box::pin(async move { plain.acquire().await });
        assert!((&mut waiting).now_or_never().is_none());
        settle().await;
        let later = Arc::new(Mutex::new(None));
        let (found, again) = (later.clone(), owned.clone());
        // What other threads may do while the first guard is dropped.
        hooks.at_an_end().set(move || {
            let mut again = Box::pin(async move { again.acquire().await });
            assert!((&mut again).now_or_never().is_none(), "it waits for its turn");
            drop((&mut waiting).now_or_never().expect("it has the turn").unwrap());
            *found.lock() = Some(again.now_or_never().expect("it has the next turn").unwrap());
        });
        drop(first);
        let later = later.lock().take().expect("the hook ran");
        assert!(later.is_held());
        let inner = owned.try_acquire().await.unwrap();
        assert!(inner.is_some(), "the owner waits for itself: {later:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn a_reader_stays_as_it_is_beside_readers_of_its_owner() {
    let locks = memory();
    let owner = Owner::new();
    let read = locks.rw_lock("a").read().owned_by(&owner);
    let (one, _two) = (read.acquire().await.unwrap(), read.acquire().await.unwrap());
    one.downgrade().await.expect("it reads");
    let lock = locks.rw_lock("b");
    let writer = lock.write().owned_by(&owner).acquire().await.unwrap();
    writer.downgrade().await.unwrap();
    let _reader = lock.read().owned_by(&owner).acquire().await.unwrap();
    writer.downgrade().await.expect("it reads already");
    let writer = locks.rw_lock("c").write().owned_by(&owner);
    let (one, two) = (writer.acquire().await.unwrap(), writer.acquire().await.unwrap());
    assert_eq!(one.downgrade().await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!((one.mode(), two.mode()), (Mode::Exclusive, Mode::Exclusive));
    drop(two);
    one.downgrade().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_of_several_locks_names_the_store_of_the_lost_one() {
    let (_store, scripted) = Script::new().connect();
    let wanted = [memory().lock("a"), scripted.lock("a").hold_at_most(ms(50))];
    let guards = all(wanted).wait_at_most(SECOND).acquire().await.unwrap();
    let error = guards.run(std::future::pending::<()>()).await.unwrap_err();
    assert!(error.to_string().contains("scripted://"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_error_of_several_locks_says_that_one_is_held_here() {
    let locks = memory();
    let _account = locks.lock("b").acquire().await.unwrap();
    let both = all([locks.lock("a"), locks.lock("b")]).wait_at_most(ms(50));
    let error = both.acquire().await.unwrap_err().to_string();
    assert!(error.contains("this client holds it itself"), "{error}");
    // A reader that wants to write is not helped by an owner.
    let lock = locks.rw_lock("c");
    let _reader = lock.read().acquire().await.unwrap();
    let error = lock.write().wait_at_most(ms(50)).acquire().await.unwrap_err().to_string();
    assert!(error.contains("release the read guard first"), "{error}");
}

/// One of them would have no effect.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_twice_has_one_owner_and_one_lease() {
    let locks = memory();
    let lock = || locks.lock("a");
    let (one, two) = (Owner::new(), Owner::new());
    for (twice, expected) in [
        ([lock().owned_by(&one), lock().owned_by(&two)], Some("owners")),
        ([lock(), lock().ttl(5 * SECOND)], Some("leases")),
        ([lock().ttl(30 * SECOND), lock().fixed_lease(30 * SECOND)], Some("leases")),
        ([lock().owned_by(&one), lock().owned_by(&one.clone())], None),
        ([lock(), lock().owned_by(&one).ttl(30 * SECOND)], None),
    ] {
        let acquired = all(twice).try_acquire().await;
        match expected {
            None => drop(acquired.unwrap().expect("it is free")),
            Some(what) => {
                let error = acquired.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.message().contains(what), "{error}");
            }
        }
        sleep(ms(1)).await;
    }
}

/// It would begin again when the first one is over, and never have all.
#[tokio::test(start_paused = true)]
async fn a_try_of_fixed_leases_that_are_too_short_ends() {
    let slow = |asked: One| async move {
        sleep(ms(60)).await;
        granted(&asked)
    };
    let (_store, locks) = Script::new().attempts(slow).connect();
    let leases = ["a", "b", "c"].map(|name| locks.lock(name).fixed_lease(ms(100)));
    let ended = timeout(SECOND, all(leases).try_acquire()).await.expect("it ends");
    let error = ended.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Lost, true), "{error}");
}

/// The other one is a branch of a `select!` whose handler goes on.
#[tokio::test(start_paused = true)]
async fn a_dropped_acquisition_of_an_owner_is_gone_although_another_is_not_polled() {
    let locks = memory();
    let held = locks.lock("a").acquire().await.unwrap();
    let lock = locks.lock("a").owned_by(&Owner::new());
    let [mut one, mut two] = [(); 2].map(|()| Box::pin(lock.acquire()));
    assert!(timeout(ms(10), &mut one).await.is_err() && timeout(ms(10), &mut two).await.is_err());
    drop(one);
    settle().await;
    assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 0);
    held.release().await.unwrap();
    drop(two);
}

/// It is held for an owner already, and another one does not share it.
#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_for_another_is_not_told_to_have_an_owner() {
    let locks = memory();
    let [one, two] = [(); 2].map(|()| Owner::new());
    let _held = locks.lock("a").owned_by(&one).acquire().await.unwrap();
    let waiting = locks.lock("a").owned_by(&two).wait_at_most(ms(50));
    let error = waiting.acquire().await.unwrap_err().to_string();
    assert!(error.contains("one all([…])") && !error.contains("pass it the guard"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn work_under_several_locks_has_no_result_if_one_was_not_held() {
    let releases = |asked: One| async move {
        match asked.of.name().as_str() {
            "refused" => Err(Error::new(ErrorKind::Refused, "not today")),
            "taken" => Ok(ReleaseOutcome::Absent),
            _ => Ok(ReleaseOutcome::Removed),
        }
    };
    let (_store, locks) = Script::new().releases(releases).connect();
    let two = all(["refused", "free"].map(|name| locks.lock(name)));
    assert_eq!(two.with(async |_| 42).await.expect("the work ended while it was held"), 42);
    let three = all(["refused", "free", "taken"].map(|name| locks.lock(name)));
    let error = three.with(async |_| 42).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::NotHeld, Some("taken")), "{error}");
}

#[test]
fn the_errors_of_all_releases_are_logged_or_returned() {
    on_a_thread(async |hooks| {
        let releases = |asked: One| async move {
            match asked.of.name().as_str() {
                "a" | "c" => Ok(ReleaseOutcome::Absent),
                _ => Err(Error::new(ErrorKind::Refused, "not today")),
            }
        };
        let (_store, locks) = Script::new().releases(releases).connect();
        let all = all(["a", "b", "c", "d"].map(|name| locks.lock(name)));
        let error = all.with(async |_| 42).await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::NotHeld, Some("a")), "{error}");
        let logged = hooks.events("its release is not");
        assert_eq!(logged.len(), 3, "{logged:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_acquired_anew_if_one_was_lost_at_the_last_grant() {
    let clock = Arc::new(Jumping::default());
    let slow = clock.clone();
    let attempts = move |asked: One| {
        // The second answer is that for "b".
        if asked.n == 1 {
            slow.jump(2 * SECOND);
        }
        async move { granted(&asked) }
    };
    let (store, locks) = Script::new().clock(clock).attempts(attempts).connect();
    let both = all([locks.lock("a").fixed_lease(SECOND), locks.lock("b")]);
    let guards = both.acquire().await.unwrap();
    assert!(guards.is_held(), "{guards:?}");
    assert_eq!(store.count(is_attempt), 4);
}

#[tokio::test(start_paused = true)]
async fn several_locks_that_are_given_up_are_released_in_reverse() {
    let released = Arc::new(Mutex::new(Vec::new()));
    let seen = released.clone();
    let releases = move |asked: One| {
        seen.lock().push(asked.of.name().to_string());
        async { Ok(ReleaseOutcome::Removed) }
    };
    let attempts = |asked: One| async move {
        match asked.of.name().as_str() {
            "d" => Err(Error::new(ErrorKind::Refused, "not today")),
            _ => granted(&asked),
        }
    };
    let (_store, locks) = Script::new().attempts(attempts).releases(releases).connect();
    let error = all(["a", "b", "c", "d"].map(|name| locks.lock(name))).acquire().await.unwrap_err();
    assert_eq!(error.lock(), Some("d"), "{error}");
    settle().await;
    assert_eq!(
        *released.lock(),
        ["d", "c", "b", "a"],
        "another client is granted none before the last"
    );
}

#[tokio::test(start_paused = true)]
async fn too_many_locks_are_refused_before_any_request() {
    let (store, locks) = Script::new().connect();
    let several = |count: usize| all((0..count).map(|index| locks.lock(index.to_string())));
    let error = several(257).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(text.starts_with("acquire on scripted://: invalid argument: "), "{text}");
    assert!(text.contains("257 locks; expected at most 256: acquire fewer"), "{text}");
    assert!(several(1_000).try_acquire().await.is_err());
    assert!(store.calls().is_empty(), "{:?}", store.calls());
    let guards = several(256).acquire().await.unwrap();
    assert_eq!(guards.len(), 256);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_permits_says_how_many_are_held_here() {
    let memory = Memory::new();
    let [locks, other] = [(); 2].map(|()| memory.locks(Settings::default()).unwrap());
    let uploads = locks.semaphore("a", 3);
    let _one = uploads.acquire().await.unwrap();
    let error = uploads.clone().permits(3).wait_at_most(ms(50)).acquire().await.unwrap_err();
    assert!(error.message().contains("this client holds 1 permit itself: if"), "{error}");
    let _two = uploads.clone().permits(2).acquire().await.unwrap();
    for limit in [ms(0), ms(50)] {
        let error = uploads.clone().wait_at_most(limit).acquire().await.unwrap_err();
        let message = error.message();
        assert!(message.contains("this client holds 3 permits itself: if other"), "{error}");
        assert!(message.contains("acquires again while it holds may wait for itself"), "{error}");
        let theirs = other.semaphore("a", 3).wait_at_most(limit).acquire().await.unwrap_err();
        assert!(!theirs.message().contains("itself"), "{theirs}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_advice_on_an_own_hold_is_one_that_helps() {
    let memory = Memory::new();
    let [locks, other] = [(); 2].map(|()| memory.locks(Settings::default()).unwrap());
    let error =
        async |lock: Lock| lock.wait_at_most(ms(50)).acquire().await.unwrap_err().to_string();
    // A writer of another client is between the two readers.
    let _reader = locks.rw_lock("a").read().acquire().await.unwrap();
    let writer = other.rw_lock("a").write();
    let writer = tokio::spawn(async move { writer.acquire().await });
    settle().await;
    let text = error(locks.rw_lock("a").read()).await;
    assert!(text.contains("owned_by one Owner") && !text.contains("release"), "{text}");
    writer.abort();
    // Permits have no owner, and those of a lock do not count for it.
    let _lock = locks.lock("b").acquire().await.unwrap();
    let text = error(locks.semaphore("b", 5)).await;
    assert!(text.contains("give the permits another name"), "{text}");
    assert!(text.contains("this client holds it itself") && !text.contains("Owner"), "{text}");
    let _permit = locks.semaphore("c", 5).acquire().await.unwrap();
    let text = error(locks.lock("c")).await;
    assert!(text.contains("give the permits another name"), "{text}");
    assert!(text.contains("holds 1 permit itself") && !text.contains("permits(n)"), "{text}");
}

#[test]
fn a_panic_of_a_subscriber_leaves_no_turn() {
    on_a_thread(async |hooks| {
        for handoffs in [1, 8] {
            let lock = memory().lock("a").local_handoffs(handoffs).wait_at_most(100 * SECOND);
            let mut acquiring = Box::pin(AssertUnwindSafe(lock.acquire()).catch_unwind());
            if handoffs > 1 {
                // The first span is that of the store's grant, and not of the turn.
                assert!((&mut acquiring).now_or_never().is_none());
                settle().await;
            }
            hooks.at_a_span().set(|| panic!("a subscriber of the program"));
            assert!(acquiring.await.is_err(), "it panics");
            let next = lock.acquire().await;
            assert!(next.is_ok(), "{handoffs} hand-offs: {next:?}");
        }
    });
}

#[tokio::test(start_paused = true)]
async fn the_first_turn_waits_for_a_runtime_that_is_slow_to_poll() {
    let memory = Memory::new();
    let [slow, other] = [(); 2].map(|()| memory.locks(Settings::default()).unwrap());
    let lock = slow.lock("a").local_handoffs(8);
    let mut acquiring = Box::pin(lock.acquire());
    assert!((&mut acquiring).now_or_never().is_none());
    settle().await;
    sleep(SECOND).await;
    let guard = acquiring.await.unwrap();
    assert_eq!(guard.fencing_token().get(), 1, "granted once");
    guard.release().await.unwrap();
    // One that is not polled any more does not keep the lock.
    let mut frozen = Box::pin(lock.acquire());
    assert!((&mut frozen).now_or_never().is_none());
    settle().await;
    let second = other.lock("a");
    let guard = timeout(3 * SECOND, second.acquire()).await.expect("in time").unwrap();
    guard.release().await.unwrap();
    frozen.await.unwrap().release().await.unwrap();
}
