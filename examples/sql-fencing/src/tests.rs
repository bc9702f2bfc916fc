//! Both ways to check a token, under tokio's paused clock.

use super::*;
use crate::database::{PASS_FENCE, SET_REMAINING};

#[tokio::test(start_paused = true)]
async fn a_late_write_is_rejected() {
    let locks = fencelock::connect("mem://").await.unwrap();
    late_write(&locks, &mut Database::open().unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_late_transaction_is_rolled_back() {
    let locks = fencelock::connect("mem://").await.unwrap();
    late_transaction(&locks, &mut Database::open().unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_holder_may_write_several_times_and_the_next_one_after_it() {
    let locks = fencelock::connect("mem://").await.unwrap();
    let mut database = Database::open().unwrap();
    for buyer in ["Ada", "Bob"] {
        let guard = locks.lock("stock/lamp").acquire().await.unwrap();
        for _ in 0..2 {
            let token = guard.fencing_token();
            assert!(database.order("lamp", buyer, "stock/lamp", token).unwrap());
        }
    }
    assert_eq!(database.buyers().unwrap(), ["Ada", "Ada", "Bob", "Bob"]);
    assert_eq!(database.remaining("lamp").unwrap(), 6);
}

#[test]
fn the_statements_for_postgres_are_those_that_are_tested() {
    for (postgres, sqlite) in [
        (include_str!("../sql/postgres/set_remaining.sql"), SET_REMAINING),
        (include_str!("../sql/postgres/pass_fence.sql"), PASS_FENCE),
    ] {
        assert_eq!(postgres.replace('$', "?"), sqlite);
    }
}
