//! The test that the README shows.

use fencelock::{ErrorKind, Locks};
use fencelock_testkit::TestStore;

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn work_ends_when_its_lock_is_lost(locks: Locks, store: TestStore) -> fencelock::Result<()> {
    let guard = locks.lock("report").acquire().await?;
    let work = guard.run(std::future::pending::<()>());
    let (work, lost) = tokio::join!(work, store.lose("report")); // or cut_off, slow, freeze, restart
    assert_eq!(work.unwrap_err().kind(), ErrorKind::Lost);
    lost
}

#[test]
fn the_readme_shows_this_test() {
    let (_, shown) = include_str!("../../../README.md")
        .split_once("```rust\nuse fencelock::{ErrorKind, Locks};")
        .expect("the README shows a test");
    let (shown, _) = shown.split_once("```").expect("the code has an end");
    assert!(include_str!("readme.rs").contains(shown), "the README shows another test:\n{shown}");
}
