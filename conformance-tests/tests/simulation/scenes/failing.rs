//! Directed tests of backends that panic, or that keep the thread they are called on: what they are
//! asked for next continues, so do all other locks of the process, and nothing is left.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use fencelock_core::{
    Claim, ErrorKind, Liveness, Locks, ReleaseOutcome, RenewalPlan, Snapshot, WaiterCheck,
};
use tokio::time::{Instant, sleep, timeout};

use crate::scenes::scripted::{
    Call, SECOND, Scripted, Stall, Step, granted, holding, is_release, is_renewal, renewed,
    unreachable, waiting,
};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_clean_up_survives_backend_failures() {
    for failure in [Step::Panic, Step::Never] {
        // A session that lives keeps what is not released.
        let store = Scripted::new(Liveness::Session(6 * SECOND), RenewalPlan::Every(SECOND));
        store.on_release(move |asked| match asked.nth {
            0 | 1 => failure.clone(),
            _ => Step::Now(Ok(ReleaseOutcome::Removed)),
        });
        drop(store.locks().lock("a").acquire().await.unwrap());
        timeout(MINUTE, store.until(3, is_release)).await.expect("asked for again");
        sleep(MINUTE).await;
        assert_eq!(store.count(is_release), 3, "until it is gone, and no longer");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_release_is_retried_in_the_background() {
    let store = Scripted::new(Liveness::Session(6 * SECOND), RenewalPlan::Every(SECOND));
    store.on_release(|asked| match asked.nth {
        0 => Step::Panic,
        _ => Step::Now(Ok(ReleaseOutcome::Removed)),
    });
    let locks = store.locks();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(tokio::spawn(guard.release()).await.unwrap_err().is_panic());
    locks.close().await.unwrap();
    assert_eq!(store.count(is_release), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_begin_blocks_no_other_client() {
    let (store, locks, held) = holding("held").await;
    let panics = |claim: &Claim| assert!(!is_a(claim), "the backend panics");
    store.change(|script| script.begins(panics));
    let lock = locks.lock("a");
    assert!(tokio::spawn(async move { lock.acquire().await }).await.unwrap_err().is_panic());
    sleep(10 * SECOND).await;
    assert!(held.is_held());
    locks.lock("b").acquire().await.unwrap().release().await.unwrap();
    timeout(SECOND, locks.close()).await.expect("no release is pending").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_inspect_blocks_no_other_client() {
    let (store, locks, held) = holding("a").await;
    store.on_inspect(Step::Panic);
    let asking = locks.clone();
    assert!(tokio::spawn(async move { asking.inspect("a").await }).await.unwrap_err().is_panic());
    store.on_inspect(Step::Never);
    let asked = Instant::now();
    let error = locks.inspect("a").await.unwrap_err();
    assert_eq!((error.kind(), asked.elapsed()), (ErrorKind::Unreachable, 5 * SECOND));
    assert!(held.is_held());
}

/// Where a backend blocks its thread, once, when it is asked about lock `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Begin,
    Attempt,
    Release,
    Renew,
    Check,
    Inspect,
}

fn is_a(claim: &Claim) -> bool {
    claim.name().as_str() == "a"
}

fn script(store: &Arc<Scripted>, place: Place, stall: &Arc<Stall>) {
    let blocks = stall.clone();
    match place {
        Place::Begin => {
            let begins = move |claim: &Claim| {
                if is_a(claim) {
                    blocks.block();
                }
            };
            store.change(|script| script.begins(begins));
        }
        Place::Attempt => store.on_attempt(move |asked| {
            let granted = granted(&asked);
            if is_a(&asked.of) { Step::Blocks(blocks.clone(), granted) } else { Step::Now(granted) }
        }),
        Place::Release => store.on_release(move |_| match blocks.has_begun() {
            false => Step::Blocks(blocks.clone(), Ok(ReleaseOutcome::Removed)),
            true => Step::Now(Ok(ReleaseOutcome::Removed)),
        }),
        Place::Renew => {
            store.on_renew(move |asked| match is_a(&asked.of) && !blocks.has_begun() {
                true => Step::Blocks(blocks.clone(), Err(unreachable())),
                false => Step::Now(renewed(&asked)),
            });
        }
        Place::Check => {
            store.on_attempt(move |asked| {
                Step::Now(match is_a(&asked.of) && asked.nth == 0 {
                    true => waiting(SECOND),
                    false => granted(&asked),
                })
            });
            store.on_check(move |asked| match blocks.has_begun() {
                false => Step::Blocks(blocks.clone(), Err(unreachable())),
                true => Step::Now(Ok(vec![WaiterCheck::Attempt; asked.of.len()])),
            });
        }
        Place::Inspect => store.on_inspect(Step::Blocks(blocks, Ok(Snapshot::default()))),
    }
}

async fn has_begun(stall: &Stall) {
    while !stall.has_begun() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// What brings the backend to block.
async fn use_a(locks: Locks, place: Place, stall: Arc<Stall>) {
    if place == Place::Inspect {
        locks.inspect("a").await.expect("answered in the end");
        return;
    }
    match locks.lock("a").acquire().await {
        Ok(guard) => {
            if place == Place::Renew {
                has_begun(&stall).await;
            }
            let (held, released) = (guard.is_held(), guard.release().await);
            assert!(held || released.is_err(), "a lost hold cannot be released");
        }
        // Granted, but so late that its validity had ended.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost),
    }
}

/// On threads and a clock of their own, as the backend keeps one of them.
fn other_locks_continue_while_a_backend_blocks_in(place: Place) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(4).enable_time().build().expect("a few threads");
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let waking = runtime.handle().clone();
    // A thread that blocks may be the one that has just had tokio's timers, which are lost then
    // until another is woken by something else (tokio issue 4730). Here something always is.
    std::thread::spawn(move || {
        while is_done.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
            waking.spawn(async {});
        }
    });
    let store = runtime.block_on(async {
        let (store, stall) = (Scripted::leases(), Arc::new(Stall::default()));
        script(&store, place, &stall);
        let locks = store.locks();
        let held = locks.lock("held").acquire().await.expect("granted");
        let using = tokio::spawn(use_a(locks.clone(), place, stall.clone()));
        has_begun(&stall).await;
        for _ in 0..10 {
            let guard = timeout(MINUTE, locks.lock("b").acquire()).await.expect("no hang");
            let released = timeout(MINUTE, guard.expect("granted").release()).await;
            released.expect("no hang").expect("held");
        }
        let renewals = || store.count(is_renewal);
        let before = renewals();
        while renewals() == before {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(held.remaining() > Duration::ZERO, "renewed while another call blocks");
        stall.end();
        timeout(MINUTE, using).await.expect("no hang").expect("no panic");
        drop(held);
        timeout(MINUTE, locks.close()).await.expect("no hang").expect("closed");
        store
    });
    drop(done);
    let calls = store.calls();
    let released = |id: &u64| calls.contains(&Call::Release(*id));
    let asked = calls.iter().filter_map(|call| match call {
        Call::Attempt(id) => Some(*id),
        _ => None,
    });
    let left: Vec<u64> = asked.filter(|id| !released(id)).collect();
    assert!(left.is_empty(), "{left:?} were not released: {calls:?}");
}

#[test]
fn other_locks_continue_while_a_backend_blocks() {
    use Place::{Attempt, Begin, Check, Inspect, Release, Renew};
    for place in [Begin, Attempt, Release, Renew, Check, Inspect] {
        other_locks_continue_while_a_backend_blocks_in(place);
    }
}
