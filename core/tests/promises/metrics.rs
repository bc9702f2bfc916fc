//! Metrics and their labels.

use std::time::Duration;

use fencelock_core::memory::{self, Memory};
use fencelock_core::url::connect_with;
use fencelock_core::{Label, Owner, Settings};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

fn settings() -> Settings {
    Settings::default().label(Label::new("test"))
}

/// Every metric as `name{label=value,…}` with a number: histograms count their records.
fn seen(snapshotter: &Snapshotter) -> Vec<(String, f64)> {
    let metrics = snapshotter.snapshot().into_vec();
    let one = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let (_, key) = key.into_parts();
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let number = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(records) => records.len() as f64,
        };
        (format!("{}{{{}}}", key.name(), labels.join(",")), number)
    };
    metrics.into_iter().map(one).collect()
}

fn assert_contains(seen: &[(String, f64)], expected: &[(&str, f64)]) {
    for (key, number) in expected {
        let expected = ((*key).to_owned(), *number);
        assert!(seen.contains(&expected), "{expected:?} not in {seen:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_count_waits_holds_outcomes_and_losses() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // Installed after the store was connected, as programs may do.
    let locks = Memory::new().locks(settings()).unwrap();
    let _installed = metrics::set_default_local_recorder(&recorder);

    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let limited = locks.lock("a").wait_at_most(Duration::from_millis(5));
    assert!(limited.acquire().await.is_err());
    guard.release().await.unwrap();
    let reader = locks.rw_lock("a").read().hold_at_most(Duration::from_secs(1));
    let reader = reader.acquire().await.unwrap();
    reader.lost().await;
    let _permit = locks.semaphore("s", 2).acquire().await.unwrap();
    // The limit of one of an owner's guards, which is dropped at once, is not the end of their hold.
    let owned = locks.rw_lock("o").write().owned_by(&Owner::new());
    let outer = owned.acquire().await.unwrap();
    let inner = owned.hold_at_most(Duration::from_secs(1)).acquire().await.unwrap();
    inner.lost().await;
    drop(inner);
    assert!(outer.is_held());
    outer.release().await.unwrap();

    let seen = seen(&snapshotter);
    assert_contains(
        &seen,
        &[
            ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=granted}", 2.0),
            ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=busy}", 1.0),
            ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=timed_out}", 1.0),
            ("fencelock_wait_seconds{store=memory,mode=exclusive}", 2.0),
            ("fencelock_hold_seconds{store=memory,mode=exclusive}", 2.0),
            ("fencelock_waiting{store=memory,mode=exclusive}", 0.0),
            ("fencelock_held{store=memory,mode=exclusive}", 0.0),
            ("fencelock_held{store=memory,mode=permits}", 1.0),
            ("fencelock_lost_total{store=memory,mode=shared,reason=hold_limit}", 1.0),
            ("fencelock_lost_total{store=memory,mode=exclusive,reason=hold_limit}", 1.0),
        ],
    );
    assert!(!seen.iter().any(|(key, _)| key.contains("lock=")), "names only on request");
}

#[tokio::test(start_paused = true)]
async fn metrics_count_each_turn_and_its_loss_once() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let locks = Memory::new().locks(settings()).unwrap();
    let lock = locks.lock("a").local_handoffs(8);
    let again = lock.clone();
    let first = lock.acquire().await.unwrap();
    let second = tokio::spawn(async move { again.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(1)).await;
    first.release().await.unwrap();
    // A forgotten turn is not held any more after its loss.
    std::mem::forget(second.await.unwrap());
    let holder = &locks.inspect("a").await.unwrap().holders[0];
    locks.evict("a", &holder.id).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let lost = lock.acquire().await.unwrap();
    let holder = &locks.inspect("a").await.unwrap().holders[0];
    locks.evict("a", &holder.id).await.unwrap();
    lost.lost().await;
    drop(lost);

    let seen = seen(&snapshotter);
    assert_contains(
        &seen,
        &[
            ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=granted}", 3.0),
            ("fencelock_handoffs_total{store=memory,mode=exclusive}", 1.0),
            ("fencelock_hold_seconds{store=memory,mode=exclusive}", 3.0),
            ("fencelock_held{store=memory,mode=exclusive}", 0.0),
            ("fencelock_lost_total{store=memory,mode=exclusive,reason=taken_away}", 2.0),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_name_the_lock_on_request_and_time_renewals() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let url = "mem://?metrics_by_lock=true";
    let locks = connect_with(&[memory::SCHEME], url, settings()).await.unwrap();
    let guard = locks.lock("orders/42").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(guard.is_held());
    let seen = seen(&snapshotter);
    let held = "fencelock_held{store=memory,mode=exclusive,lock=orders/42}";
    assert_contains(&seen, &[(held, 1.0), ("fencelock_renewal_seconds{store=memory}", 1.0)]);
}
