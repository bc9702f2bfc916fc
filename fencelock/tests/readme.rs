//! The test that the README shows.

use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_hold_outlives_its_ttl_and_a_wait_takes_its_limit() -> fencelock::Result<()> {
    let locks = fencelock::connect("mem://").await?;
    let guard = locks.lock("report").acquire().await?;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(guard.is_held(), "renewed all the while");

    let asked = tokio::time::Instant::now();
    let second = locks.lock("report").wait_at_most(Duration::from_secs(2)).try_acquire().await?;
    assert!(second.is_none() && asked.elapsed() == Duration::from_secs(2));
    guard.release().await
}

#[test]
fn the_readme_shows_this_test() {
    let (_, shown) = include_str!("../../README.md")
        .split_once("```rust\n#[tokio::test")
        .expect("the README shows a test");
    let (shown, _) = shown.split_once("```").expect("the code has an end");
    assert!(include_str!("readme.rs").contains(shown), "the README shows another test:\n{shown}");
}
