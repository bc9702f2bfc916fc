//! What an operator removes of a store that cannot end cells by time.

use std::time::Duration;

use fencelock_core::{Content, ErrorKind, ExpiredCell, ExpiredCells, Locks, Stamp};

use crate::lossy::{Fate, Lossy, swaps};
use crate::scripted::SECOND;

const ALL: &[String] = &[];

async fn find(locks: &Locks, beginnings: &[String], grace: Duration) -> ExpiredCells {
    locks
        .expired_cells(beginnings, grace)
        .await
        .unwrap()
        .expect("this store ends no cell by itself")
}

fn names(found: &ExpiredCells) -> Vec<&str> {
    found.expired.iter().map(|cell| cell.name().as_str()).collect()
}

/// A store with the latches "a" and "b", whose time is over, and a counter, whose time never is.
async fn expired() -> Lossy {
    let store = Lossy::sound();
    let locks = store.locks();
    locks.counter("orders").add(1).await.unwrap();
    for name in ["b", "a"] {
        locks.latch(name, 2).keep_for(SECOND).count_down().await.unwrap();
    }
    assert!(names(&find(&locks, ALL, Duration::ZERO).await).is_empty(), "not yet");
    // It is a wall clock that says so.
    std::thread::sleep(Duration::from_millis(1_100));
    store
}

async fn first(locks: &Locks) -> ExpiredCell {
    find(locks, ALL, Duration::ZERO).await.expired.remove(0)
}

#[tokio::test(start_paused = true)]
async fn only_what_is_over_is_found_and_removed() {
    let store = expired().await;
    let locks = store.locks();
    let stamp = Stamp::from_bytes([7; 16]);
    let foreign = Content { stamp, bytes: b"of another program".to_vec() };
    store.cells.lock().insert("lock:foreign".to_owned(), foreign.clone());
    store.cells.lock().insert("other:a".to_owned(), foreign);
    let found = find(&locks, ALL, Duration::ZERO).await;
    assert_eq!((names(&found), found.others), (vec!["a", "b"], 2));
    assert_eq!(found.expired[0].kind(), "latch");
    assert!(found.expired[0].expired_for() < 60 * SECOND);
    let unread: Vec<_> = found.unread.iter().map(|it| (it.kind(), it.lock())).collect();
    assert_eq!(unread, [(ErrorKind::Foreign, Some("foreign"))]);
    assert!(names(&find(&locks, ALL, 60 * SECOND).await).is_empty(), "for too short a time");
    assert_eq!(names(&find(&locks, &["b".to_owned()], Duration::ZERO).await), ["b"]);
    for cell in &found.expired {
        assert!(locks.remove_expired(cell).await.unwrap());
        assert!(!locks.remove_expired(cell).await.unwrap(), "it is gone");
    }
    let mut left: Vec<String> = store.cells.lock().keys().cloned().collect();
    left.sort();
    assert_eq!(left, ["lock:foreign", "lock:orders", "other:a"]);
}

#[tokio::test(start_paused = true)]
async fn a_removal_whose_reply_is_lost_is_one() {
    let store = expired().await;
    let locks = store.locks();
    let cell = first(&locks).await;
    store.set(swaps([Fate::ReplyLost]));
    assert!(locks.remove_expired(&cell).await.unwrap());
    assert!(!store.cells.lock().contains_key("lock:a"));
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_is_written_anew_while_a_removal_is_repeated_was_not_removed() {
    let store = expired().await;
    let locks = store.locks();
    let cell = first(&locks).await;
    let anew = Content { stamp: Stamp::from_bytes([7; 16]), bytes: b"anew".to_vec() };
    let (cells, written) = (store.cells.clone(), anew.clone());
    let mut swaps = 0;
    store.set(move |is_swap| {
        swaps += u32::from(is_swap);
        match (is_swap, swaps) {
            (true, 1) => {
                cells.lock().insert("lock:a".to_owned(), written.clone());
                Fate::RequestLost
            }
            _ => Fate::Answered,
        }
    });
    assert!(!locks.remove_expired(&cell).await.unwrap());
    assert_eq!(store.cells.lock().get("lock:a"), Some(&anew));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_an_error_in_time() {
    let store = expired().await;
    let locks = store.locks();
    let cell = first(&locks).await;
    store.set(|_| Fate::Silent);
    let error = locks.expired_cells(ALL, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = locks.remove_expired(&cell).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unreachable, Some("a")));
}
