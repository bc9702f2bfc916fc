//! Keys of other programs, and missing permissions.

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::TestRedis;
use tokio::time::Instant;

use crate::support::*;

/// The permissions that the scripts and connections need, and no more.
const NEEDED: &str = "resetchannels ~lock:* ~{lock:* &lock:* -@all +hello +auth +ping +select \
                      +subscribe +publish +evalsha +eval +time +exists +type +get +set +del +pttl \
                      +pexpire +pexpireat +zadd +zrem +zincrby +zscore +zrange +zrangebyscore \
                      +zrevrangebyscore";

/// Row 41: the documented ACL suffices, and each part of it is needed.
/// Fault 41: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acl_that_denies_something_is_final_at_once() {
    let server = TestRedis::start().await.unwrap();
    let user = async |name: &str, more: &str| {
        let rules = format!("ACL SETUSER {name} reset on >pw {NEEDED} {more}");
        redis_command(&server, &rules.split_whitespace().collect::<Vec<_>>()).await;
        try_connect(&format!("redis://{name}:pw@{}/0?ttl=900ms", server.addr())).await
    };
    let locks = user("enough", "").await.unwrap();
    let held = acquire(&locks, "lock").await;
    let waiter = spawn_waiter(&locks, "lock");
    until_queued(&locks, "lock", 1).await;
    until_renewed(&locks, &held, ms(900)).await;
    release(held).await;
    release(until_granted(waiter).await).await;
    let readers = locks.rw_lock("doc");
    let reader = readers.read().acquire().await.unwrap();
    until_renewed(&locks, &reader, ms(900)).await;
    release(readers.read().acquire().await.unwrap()).await;
    release(reader).await;
    let blocker = acquire(&direct(&server, "").await, "lock").await;
    for denied in ["-eval", "-evalsha", "-set", "-time", "-zadd", "resetkeys"] {
        let locks = user(&format!("no{denied}"), denied).await.unwrap();
        // Texts of scripts are sent only to a server that does not have them.
        redis_command(&server, &["SCRIPT", "FLUSH"]).await;
        let asked = Instant::now();
        let error = soon(denied, locks.lock("lock").acquire()).await;
        let error = error.expect_err(denied);
        assert_kind(&error, ErrorKind::Refused);
        assert!(!error.is_retryable(), "{denied}");
        assert!(asked.elapsed() < ms(1000), "{denied} was reported after {:?}", asked.elapsed());
    }
    for denied in ["resetchannels", "-subscribe"] {
        let error = user(&format!("no{denied}"), denied).await.unwrap_err();
        assert_kind(&error, ErrorKind::Refused);
        assert!(error_chain(&error).contains("ACL"), "{}", error_chain(&error));
    }
    release(blocker).await;
}

/// Row 43.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_other_programs_are_an_error_and_stay_as_they_are() {
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "").await;
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
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "").await;
    redis_command(&server, &["SET", "lock:x", "deadbeef", "NX", "PX", "60000"]).await;
    let waiters = [spawn_waiter(&locks, "x"), spawn_waiter(&locks, "x")];
    until_queued(&locks, "x", 2).await;
    assert!(is_busy(&locks, "x").await);
    assert_eq!(redis_command(&server, &["GET", "lock:x"]).await, "deadbeef");
    let freed = Instant::now();
    redis_command(&server, &["DEL", "lock:x"]).await;
    assert_eq!(in_turns(waiters).await.len(), 2);
    assert!(freed.elapsed() < ms(900), "noticed only after {:?}", freed.elapsed());
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
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "").await;
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
                let error = within(ms(5000), "it is an error", way.acquire()).await;
                assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
            }
        }
        redis_command(&server, &["DEL", token]).await;
        let held = acquire(&locks, "x").await;
        let waiter = spawn_waiter(&locks, "x");
        until_queued(&locks, "x", 1).await;
        redis_command(&server, &["DEL", token]).await;
        redis_command(&server, put).await;
        // The release succeeds, even if the hand-off fails.
        release(held).await;
        let error = within(ms(5000), "the waiter fails", waiter).await.unwrap();
        assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
        redis_command(&server, &["DEL", token]).await;
        drained(&server).await;
    }
}

/// Row 43, while there is a waiter.
/// Fault 43: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_at_once_when_its_lock_becomes_foreign() {
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "").await;
    let held = acquire(&locks, "x").await;
    let waiter = spawn_waiter(&locks, "x");
    until_queued(&locks, "x", 1).await;
    redis_command(&server, &["DEL", "lock:x"]).await;
    redis_command(&server, &["RPUSH", "lock:x", "a"]).await;
    let error = within(ms(5000), "the waiter fails", waiter).await.unwrap();
    assert_kind(&error.expect_err("foreign"), ErrorKind::Foreign);
    drop(held);
    until("the place in the queue is left", async || leftovers(&server).await == ["lock:x"]).await;
}

/// Row 41, while there is a waiter.
/// Fault 41: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_fails_at_once_when_it_loses_its_permission() {
    let server = TestRedis::start().await.unwrap();
    let owner = direct(&server, "").await;
    let rules = format!("ACL SETUSER guest reset on >pw {NEEDED}");
    redis_command(&server, &rules.split_whitespace().collect::<Vec<_>>()).await;
    let guest = connect(&format!("redis://guest:pw@{}", server.addr())).await;
    let held = acquire(&owner, "x").await;
    let waiter = spawn_waiter(&guest, "x");
    until_queued(&owner, "x", 1).await;
    redis_command(&server, &["ACL", "SETUSER", "guest", "-evalsha"]).await;
    let error = within(ms(5000), "the waiter fails", waiter).await.unwrap();
    assert_kind(&error.expect_err("refused"), ErrorKind::Refused);
    release(held).await;
}

/// Other libraries write random bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_not_text_is_shown_and_evicted() {
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "").await;
    let set = "return redis.call('SET', KEYS[1], '\\255\\254\\1', 'PX', 60000)";
    redis_command(&server, &["EVAL", set, "1", "lock:lock"]).await;
    let seen = locks.inspect("lock").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    let waiter = spawn_waiter(&locks, "lock");
    until_queued(&locks, "lock", 1).await;
    locks.evict("lock", &seen.holders[0].id).await.unwrap();
    release(until_granted(waiter).await).await;
    drained(&server).await;
}
