//! Keys of other programs, and missing permissions.

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::TestRedis;
use tokio::time::Instant;

use crate::endless::steps;
use crate::shared::{waiters_that_are_over, what_another_program_wrote};
use crate::support::*;

/// Row 43.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_other_programs_are_an_error_and_stay_as_they_are() {
    let (server, locks) = started("").await;
    let (lock, queue) = ("lock:x", "{lock:x}:q");
    let foreign: [(&str, &[&str]); 9] = [
        (lock, &["RPUSH", lock, "a"]),
        (lock, &["HSET", lock, "a", "b"]),
        (lock, &["SADD", lock, "a"]),
        (lock, &["XADD", lock, "1-1", "a", "b"]),
        (lock, &["ZADD", lock, "1", "a"]),
        (queue, &["SET", queue, "a"]),
        (queue, &["RPUSH", queue, "a"]),
        (queue, &["HSET", queue, "a", "b"]),
        (queue, &["ZADD", queue, "9e15", "a"]),
    ];
    for (key, put) in foreign {
        redis_command(&server, put).await;
        let dump = async || {
            redis_command(
                &server,
                &["EVAL", "return redis.sha1hex(redis.call('DUMP', KEYS[1]))", "1", key],
            )
            .await
        };
        let before = dump().await;
        let ways = [locks.lock("x"), locks.rw_lock("x").read(), locks.semaphore("x", 2)];
        for way in ways {
            for way in [way.clone(), way.wait_at_most(ms(0))] {
                match soon(&format!("{put:?} has an answer"), way.acquire()).await {
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{put:?}: {error}"),
                    // Without waiters the queue is not read.
                    Ok(guard) if key == queue => release(guard).await,
                    Ok(guard) => panic!("{put:?} was overlooked: {guard:?}"),
                }
            }
        }
        if key == queue {
            redis_command(&server, &["DEL", key]).await;
            let held = acquire(&locks, "x").await;
            redis_command(&server, put).await;
            let error = soon("a claim that has to wait fails", locks.lock("x").acquire()).await;
            assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
            release(held).await;
        }
        // What a claim wrote before it found the foreign key is removed in the background.
        until("nothing but the foreign key is left", async || {
            leftovers(&server).await.iter().all(|left| left == key)
        })
        .await;
        assert_eq!(dump().await, before, "{put:?} was changed");
        redis_command(&server, &["FLUSHALL"]).await;
    }
    release(acquire(&locks, "x").await).await;
}

/// Row 43: `SET NX PX` of any client is a holder, and its release wakes no waiter.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_another_library_is_waited_for_and_left_alone() {
    let (server, locks) = started("").await;
    redis_command(&server, &["SET", "lock:x", "deadbeef", "NX", "PX", "60000"]).await;
    let waiters = [spawn_waiter(&locks, "x"), spawn_waiter(&locks, "x")];
    until_queued(&locks, "x", 2).await;
    assert!(is_busy(&locks, "x").await);
    assert_eq!(redis_command(&server, &["GET", "lock:x"]).await, "deadbeef");
    // A lock of ours is checked each second, so that three checks take more than two. A busy machine may be
    // slow to send them, but not each time.
    let mut slow = Vec::new();
    while slow.last().is_none_or(|took| *took > ms(1500)) {
        assert!(slow.len() < 10, "three checks took {slow:?}");
        let (asked, before) = (Instant::now(), steps(&server).await);
        until("three checks", async || steps(&server).await >= before + 3).await;
        slow.push(asked.elapsed());
    }
    redis_command(&server, &["DEL", "lock:x"]).await;
    assert_eq!(in_turns(waiters).await.len(), 2);
    // Without a TTL it would never expire, which is up to the other program.
    redis_command(&server, &["SET", "lock:x", "for ever"]).await;
    assert!(is_busy(&locks, "x").await);
    assert_eq!(redis_command(&server, &["PTTL", "lock:x"]).await, "-1");
    redis_command(&server, &["DEL", "lock:x"]).await;
    drained(&server).await;
}

/// Row 43, for the key that is written last.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_token_is_reported_to_every_claim() {
    let (server, locks) = started("").await;
    let token = "{lock:x}:f";
    let put: [&[&str]; 3] = [
        &["SET", token, "not a number"],
        &["RPUSH", token, "a"],
        &["SET", token, "99999999999999999999"],
    ];
    for put in put {
        redis_command(&server, put).await;
        for way in [locks.lock("x"), locks.rw_lock("x").read(), locks.semaphore("x", 2)] {
            for way in [way.clone(), way.wait_at_most(ms(0))] {
                let error = soon("it is an error", way.acquire()).await;
                assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
            }
        }
        redis_command(&server, &["DEL", token]).await;
        let (held, waiter) = contested(&locks, &locks, "x").await;
        redis_command(&server, &["DEL", token]).await;
        redis_command(&server, put).await;
        // The release succeeds, even if the hand-off fails.
        release(held).await;
        let error = soon("the waiter fails", waiter).await.unwrap();
        assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
        redis_command(&server, &["DEL", token]).await;
        drained(&server).await;
    }
}

/// Row 43, while there is a waiter.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_at_once_when_its_lock_becomes_foreign() {
    let (server, locks) = started("").await;
    let (held, waiter) = contested(&locks, &locks, "x").await;
    redis_command(&server, &["DEL", "lock:x"]).await;
    redis_command(&server, &["RPUSH", "lock:x", "a"]).await;
    let error = soon("the waiter fails", waiter).await.unwrap();
    assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
    drop(held);
    until("the place in the queue is left", async || leftovers(&server).await == ["lock:x"]).await;
}

/// Row 41, while there is a waiter.
/// Fault 41: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_at_once_when_it_loses_its_permission() {
    let (server, owner) = started("").await;
    let rules = ["on", ">pw", "~*", "&*", "+@all"];
    redis_command(&server, &[&["ACL", "SETUSER", "guest"], &rules[..]].concat()).await;
    let guest = connect(&format!("redis://guest:pw@{}", server.addr())).await;
    let (held, waiter) = contested(&owner, &guest, "x").await;
    redis_command(&server, &["ACL", "SETUSER", "guest", "-evalsha"]).await;
    let error = soon("the waiter fails", waiter).await.unwrap();
    assert_kind(&error.expect_err("refused"), ErrorKind::Refused);
    release(held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_wrote_is_shown_and_evicted() {
    let server = TestRedis::start().await.unwrap();
    what_another_program_wrote(&direct(&server, "").await, std::slice::from_ref(&server)).await;
    drained(&server).await;
}

/// Row 12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_over_do_not_keep_others_of_their_client_out() {
    let (server, locks) = started("ttl=60s").await;
    waiters_that_are_over(&locks, std::slice::from_ref(&server)).await;
    drained(&server).await;
}
