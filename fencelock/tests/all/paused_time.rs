//! The tests that `fencelock/docs/testing.md` shows: locks under tokio's paused clock.

use std::time::Duration;

use fencelock::{LostReason, Memory, Settings};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_past_its_ttl() -> fencelock::Result<()> {
    let locks = fencelock::connect("mem://").await?;
    let guard = locks.lock("report").ttl(Duration::from_secs(1)).acquire().await?;
    sleep(Duration::from_secs(3600)).await;
    assert!(guard.is_held());
    guard.release().await
}

#[tokio::test(start_paused = true)]
async fn a_wait_takes_exactly_its_limit() -> fencelock::Result<()> {
    let locks = fencelock::connect("mem://").await?;
    let _held = locks.lock("report").acquire().await?;
    let asked = Instant::now();
    let second = locks.lock("report").wait_at_most(Duration::from_secs(2)).acquire().await;
    assert!(second.is_err());
    assert_eq!(asked.elapsed(), Duration::from_secs(2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_is_cancelled_when_its_lock_is_taken_away() -> fencelock::Result<()> {
    // Two clients of one store, like two processes and one server.
    let store = Memory::new();
    let (service, operator) =
        (store.locks(Settings::default())?, store.locks(Settings::default())?);
    let guard = service.lock("report").acquire().await?;
    let holder = operator.inspect("report").await?.holders.remove(0);
    operator.evict("report", &holder.id).await?;

    let work = guard.run(std::future::pending::<()>()).await;
    assert!(work.is_err());
    assert_eq!(guard.lost().await, LostReason::TakenAway);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_leaves_no_lock() -> fencelock::Result<()> {
    let store = Memory::new();
    let locks = store.locks(Settings::default())?;
    let request = async {
        let _guard = locks.lock("report").acquire().await;
        std::future::pending::<()>().await;
    };
    // The client of the service disconnects after a second.
    let ended = tokio::time::timeout(Duration::from_secs(1), request).await;
    assert!(ended.is_err());
    locks.close().await?; // waits for the release, which runs in the background
    assert!(store.is_empty());
    Ok(())
}

#[test]
fn the_page_shows_these_tests() {
    let page = include_str!("../../docs/testing.md");
    let (_, rest) = page.split_once("```rust,no_run\n").expect("the page shows tests");
    let (shown, _) = rest.split_once("```").expect("the code has an end");
    assert!(include_str!("paused_time.rs").contains(shown), "docs/testing.md shows other tests");
}
