//! What is made of cells, over a store that loses requests and replies, and forgets to notify.

use std::sync::atomic::Ordering;

use fencelock_core::ErrorKind;
use tokio::time::{sleep, timeout};

use crate::lossy::{Fate, Lossy};
use crate::scripted::{SECOND, ms};

#[tokio::test(start_paused = true)]
async fn an_open_latch_is_not_written_again() {
    let store = Lossy::sound();
    let latch = store.locks().latch("import", 2);
    for left in [1, 0, 0, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    assert_eq!(store.changes.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn an_arrival_that_is_late_does_not_count_after_its_party_gave_up() {
    let store = Lossy::sound();
    let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
    let (one, two) = tokio::join!(here.arrive_and_wait(), there.arrive_and_wait());
    assert!(one.is_ok() && two.is_ok());
    let mut swaps = 0;
    store.set(move |is_swap| {
        swaps += u32::from(is_swap);
        match (is_swap, swaps) {
            (false, _) => Fate::Answered,
            (true, 1) => Fate::Late(100 * SECOND),
            (true, _) => Fate::RequestLost,
        }
    });
    here.arrive_and_wait().await.unwrap_err();
    store.set(|_| Fate::Answered);
    sleep(200 * SECOND).await;
    assert_eq!(there.arrived().await.unwrap(), 0, "it counts although nobody waits");
}

/// Its watch is not notified, so that the limit comes before the next reading.
#[tokio::test(start_paused = true)]
async fn a_party_whose_limit_ends_after_the_trip_has_passed() {
    for names in [["one", "two"], ["two", "one"]] {
        let mut store = Lossy::sound();
        store.notifies = false;
        let (here, there) = (store.locks().barrier("phase", 2), store.locks().barrier("phase", 2));
        for generation in 1..=3 {
            let limited = here.clone().wait_at_most(SECOND);
            let waiting = tokio::spawn(async move { limited.arrive_as(names[0]).await });
            sleep(ms(500)).await;
            assert_eq!(there.arrive_as(names[1]).await.unwrap().generation(), generation);
            let passed = waiting.await.unwrap().expect("it has passed").generation();
            assert_eq!(passed, generation);
            assert_eq!(there.arrived().await.unwrap(), 0);
        }
    }
}

/// Its watch is not notified, so that it sees only the later barrier.
#[tokio::test(start_paused = true)]
async fn a_party_is_not_left_waiting_at_a_barrier_that_was_removed_and_made_anew() {
    let mut store = Lossy::sound();
    store.notifies = false;
    let (here, there) = (store.locks().barrier("phase", 3), store.locks().barrier("phase", 3));
    let waiting = tokio::spawn(async move { here.arrive_and_wait().await });
    sleep(SECOND).await;
    there.remove().await.unwrap();
    let anew = there.clone();
    let _anew = tokio::spawn(async move { anew.arrive_and_wait().await });
    let error = timeout(10 * SECOND, waiting).await.expect("told").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(there.arrived().await.unwrap(), 1);
}
