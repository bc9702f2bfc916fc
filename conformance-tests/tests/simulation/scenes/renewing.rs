//! Directed tests of the renewal worker: what a backend may do wrong while it renews, and how late an
//! answer may come, without a hold that lasts too long.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Guard, Liveness, LostReason, Moment, RenewOutcome, RenewalPlan, lease_end};
use tokio::time::{sleep, timeout};

use crate::scenes::scripted::{
    Call, SECOND, Scripted, Step, TTL, holding, in_the_end, is_release, is_renewal, renewed,
    unreachable,
};

/// Waits for the loss, which must come as the validity ends: not before, hardly after.
async fn is_lost_at(store: &Scripted, guard: &Guard, end: Moment) {
    assert!(guard.is_held());
    let reason = in_the_end(guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    let late = store.now().duration_since(end);
    assert!(store.now() >= end && late <= Duration::from_millis(2), "reported {late:?} late");
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_never_returns_is_a_loss_at_the_deadline() {
    let store = Scripted::leases();
    store.on_renew(|_| Step::Never);
    let guard = store.locks().lock("a").acquire().await.unwrap();
    let end = guard.valid_until();
    is_lost_at(&store, &guard, end).await;
    store.until(1, is_release).await;
    let asked = store.count(is_renewal);
    assert!((2..=8).contains(&asked), "asked {asked} times: one lost answer is not the last word");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_renew_is_retried() {
    let (store, locks, guard) = holding("a").await;
    store.on_renew(|asked| match asked.n {
        0 => Step::Panic,
        _ => Step::Now(renewed(&asked)),
    });
    let other = locks.lock("b").acquire().await.unwrap();
    sleep(10 * SECOND).await;
    assert!(guard.is_held() && other.is_held());
    let times = |id| store.times(move |call| *call == Call::Renew(id));
    let (panicked, other) = (times(store.claim(0).id()), times(store.claim(1).id()));
    assert_eq!(
        panicked[1].duration_since(panicked[0]),
        SECOND / 4,
        "again after a quarter of the period"
    );
    assert_eq!(other[1].duration_since(other[0]), SECOND, "the panic costs no other renewal");
}

/// Fault 9: memory, redis, sentinel, cluster, redlock, postgres, postgres-sync, pgbouncer
#[tokio::test(start_paused = true)]
async fn a_lost_renewal_reply_leaves_the_old_deadline() {
    for step in [Step::Panic, Step::Now(Err(unreachable()))] {
        let store = Scripted::leases();
        store.on_renew(move |_| step.clone());
        let guard = store.locks().lock("a").acquire().await.unwrap();
        let end = guard.valid_until();
        is_lost_at(&store, &guard, end).await;
        assert!(store.count(is_renewal) >= 6, "asked again until the end: {:?}", store.calls());
        let asked = store.count(is_renewal);
        sleep(10 * SECOND).await;
        assert_eq!(store.count(is_renewal), asked, "and never after it");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_answer_about_a_hold_itself_counts() {
    let (store, locks, kept) = holding("kept").await;
    let lost = locks.lock("lost").acquire().await.unwrap();
    // The loss is reported at once, although the backend panics in the other renewal.
    let (id, taken) = (store.claim(1).id(), store.now() + SECOND);
    store.on_renew(move |asked| match (asked.of.id() == id, asked.n) {
        (true, _) => Step::Now(Ok(RenewOutcome::Lost)),
        (false, 0 | 1) => Step::Panic,
        (false, _) => Step::Now(renewed(&asked)),
    });
    assert_eq!(lost.lost().await, LostReason::TakenAway);
    assert_eq!(store.now(), taken);
    sleep(10 * SECOND).await;
    assert!(kept.is_held());
}

#[tokio::test(start_paused = true)]
async fn renewed_after_the_deadline_revives_nothing() {
    let store = Scripted::leases();
    let far = store.now() + 100 * SECOND;
    let end = lease_end(store.now(), TTL);
    // From just before the deadline to long after it; at the deadline itself it is too late.
    let first_renewal = store.now() + SECOND;
    for after_end in [0, 1, 2, 3, 500] {
        let delay = end.duration_since(first_renewal) + Duration::from_millis(after_end);
        let store = Scripted::leases();
        store.on_renew(move |_| Step::After(delay, Ok(RenewOutcome::Renewed { valid_until: far })));
        let guard = store.locks().lock("a").acquire().await.unwrap();
        let end = guard.valid_until();
        is_lost_at(&store, &guard, end).await;
        sleep(3 * SECOND).await;
        assert!(!guard.is_held() && guard.valid_until() < store.now());
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_just_before_the_deadline_still_counts() {
    let store = Scripted::leases();
    let delay = lease_end(store.now(), TTL).duration_since(store.now() + SECOND);
    store.on_renew(move |asked| match asked.n {
        0 => Step::After(delay - Duration::from_millis(1), renewed(&asked)),
        _ => Step::Now(renewed(&asked)),
    });
    let guard = store.locks().lock("a").acquire().await.unwrap();
    sleep(20 * SECOND).await;
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_slow_shard_delays_no_renewal_of_other_shards() {
    // More than the core has in flight at once in one shard.
    const SLOW: u64 = 150;
    let store = Scripted::leases();
    store.change(|script| script.shards(|claim| u64::from(claim.id() <= SLOW)));
    store.on_renew(|asked| match asked.of.id() <= SLOW {
        true => Step::Never,
        false => Step::Now(renewed(&asked)),
    });
    let locks = store.locks();
    let mut slow = Vec::new();
    for number in 0..SLOW {
        slow.push(locks.lock(format!("slow{number}")).acquire().await.unwrap());
    }
    let end = slow[0].valid_until();
    let healthy = locks.lock("healthy").acquire().await.unwrap();
    is_lost_at(&store, &slow[0], end).await;
    sleep(20 * SECOND).await;
    assert!(healthy.is_held() && !slow.iter().any(Guard::is_held));
    store.forget_claims();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_holds_are_renewed_in_a_few_batches() {
    let store = Scripted::leases();
    let locks = store.locks();
    let mut guards = Vec::new();
    for number in 0..10_000u32 {
        // Acquired over a whole period, as in a service that has just started.
        if number % 100 == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        guards.push(locks.lock(format!("n{number}")).acquire().await.unwrap());
    }
    let before = store.times(is_renewal).len();
    sleep(9 * SECOND).await;
    let renewals = store.times(is_renewal).split_off(before);
    // Renewals that are sent at one moment are one batch.
    let batches = renewals.iter().collect::<BTreeSet<_>>().len();
    let renewals = renewals.len();
    assert!(batches <= 9 * 10, "{batches} batches");
    assert!((80_000..=110_000).contains(&renewals), "{renewals} renewals");
    assert!(guards.iter().all(Guard::is_held));
    drop(guards);
    store.forget_claims();
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_during_a_renewal_causes_another() {
    let store = Scripted::leases();
    // The first answer describes the state before the wake-up.
    store.on_renew(|asked| match asked.n {
        0 => Step::After(Duration::from_millis(50), renewed(&asked)),
        _ => Step::Now(Ok(RenewOutcome::Lost)),
    });
    let guard = store.locks().lock("a").acquire().await.unwrap();
    assert!(store.claim(0).wake());
    store.until(1, is_renewal).await;
    assert!(store.claim(0).wake() && store.claim(0).wake());
    let asked = store.now();
    assert_eq!(guard.lost().await, LostReason::TakenAway);
    assert_eq!(store.now().duration_since(asked), Duration::from_millis(50));
    assert_eq!(store.count(is_renewal), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hold_without_expiry_is_renewed_only_when_woken() {
    let store = Scripted::new(Liveness::Process, RenewalPlan::None);
    store.on_attempt(|asked| {
        let token = fencelock_core::FencingToken::new(asked.of.id());
        Step::Now(Ok(fencelock_core::AttemptOutcome::Granted { token, valid_until: Moment::NEVER }))
    });
    store.on_renew(|asked| {
        Step::Now(Ok(match asked.n {
            0 => RenewOutcome::Renewed { valid_until: Moment::NEVER },
            _ => RenewOutcome::Lost,
        }))
    });
    let guard = store.locks().lock("a").acquire().await.unwrap();
    sleep(10_000 * SECOND).await;
    assert_eq!(store.count(is_renewal), 0);
    assert!(store.claim(0).wake());
    sleep(10_000 * SECOND).await;
    assert_eq!(store.count(is_renewal), 1);
    assert!(guard.is_held() && guard.remaining() == Duration::MAX);
    assert!(store.claim(0).wake());
    assert_eq!(guard.lost().await, LostReason::TakenAway);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_guard_is_released_at_its_limit() {
    let store = Scripted::leases();
    let limit = 20 * SECOND + Duration::from_millis(500);
    let guard = store.locks().lock("a").hold_at_most(limit).acquire().await.unwrap();
    let granted = store.now();
    std::mem::forget(guard);
    store.until(1, is_release).await;
    let held = store.now().duration_since(granted);
    assert!(held >= limit && held <= limit + Duration::from_millis(2), "held for {held:?}");
    assert!(store.count(is_renewal) >= 19, "renewed until then");
    sleep(10 * SECOND).await;
    assert_eq!(store.count(is_release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_to_every_waiting_task() {
    let store = Scripted::leases();
    store.on_renew(|_| Step::Never);
    let guard = Arc::new(store.locks().lock("a").acquire().await.unwrap());
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let guard = guard.clone();
            tokio::spawn(async move { guard.lost().await })
        })
        .collect();
    guard.expiring(SECOND).await;
    assert!(guard.is_held() && guard.remaining() <= SECOND);
    let work = guard.run(std::future::pending::<()>()).await;
    assert_eq!(work.unwrap_err().kind(), fencelock_core::ErrorKind::Lost);
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), LostReason::Expired);
    }
    assert!(timeout(SECOND, guard.lost()).await.is_ok(), "and to a later caller");
}
