//! Keys without an expiry, or with a distant one: after a restore or a migration that dropped their
//! TTL, or by hand.

use fencelock_testkit::servers::TestRedis;

use crate::shared::held_without_an_expiry;
use crate::support::*;

const NAME: &str = "lock";
const L: &str = "lock:lock";
const OWNER: &str = "67e5504410b1426f9247bb680e5fe0c8";

/// The identity of a claim of ours that is gone, with this TTL.
fn identity(mode: &str, ttl: u32) -> String {
    format!("{mode} {ttl} lock:@0123456789abcdef {OWNER} host")
}

/// How many scripts the server has executed.
pub(crate) async fn steps(server: &TestRedis) -> u64 {
    calls(server, "evalsha").await + calls(server, "eval").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_at_a_locks_key_makes_its_first_waiter_poll_in_a_hot_loop() {
    const LONG: u32 = 600_000;
    let own = identity("x", LONG);
    let marked = format!("{own}\n");
    let is_ours_but_for_a_tab = own.replace("@0123", "@01\t23");
    let has_a_short_owner = own.replace(OWNER, "0123");
    let far = "99999999999999";
    let (reader, permit) = (identity("s", LONG), identity("p1/1", LONG));
    let owner = format!("#{OWNER}");
    let puts: [&[&str]; 12] = [
        &["SET", L, "of another program"],
        &["SET", L, "of another program", "PX", "60000"],
        &["SET", L, "of another program", "PX", "9000000000000"],
        &["SET", L, ""],
        &["SET", L, &own],
        &["SET", L, &marked],
        &["SET", L, &own, "PX", "9000000000000"],
        &["SET", L, &is_ours_but_for_a_tab],
        &["SET", L, &has_a_short_owner],
        &["ZADD", L, "-1", "=s", far, &reader, "1700000000000000", &owner],
        &["ZADD", L, "-1", "=p", far, &permit, "1700000000000000", &owner],
        &["ZADD", L, "-2", "=p", far, &permit],
    ];
    let (server, locks) = started("ttl=60s").await;
    let mut waiters = Vec::new();
    for (n, put) in puts.into_iter().enumerate() {
        let (name, key) = (format!("{NAME}-{n}"), format!("{L}-{n}"));
        redis_command(&server, &[&[put[0], &key], &put[2..]].concat()).await;
        waiters.push((spawn_waiter(&locks, &name), key));
        until_queued(&locks, &name, 1).await;
    }
    let before = steps(&server).await;
    // The window in which calls are counted.
    tokio::time::sleep(ms(500)).await;
    let asked = steps(&server).await - before;
    println!("{asked} steps");
    // Every 50 ms for the six that another program holds, else every second. A loop would be at least 500.
    assert!(asked < 200, "{asked} steps in half a second");
    for (n, (waiter, key)) in waiters.into_iter().enumerate() {
        assert!(!waiter.is_finished(), "granted together with {:?}", puts[n]);
        redis_command(&server, &["DEL", &key]).await;
        release(until_granted(waiter).await).await;
    }
    drained(&server).await;
}

/// A hold that is not renewed ends with the TTL that it was acquired for, a group without members at
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_ours_without_an_expiry_is_given_one() {
    let (server, locks) = started("ttl=60s").await;
    let (own, marked) = (identity("x", 1500), format!("{}\n", identity("x", 1500)));
    let without_sense = [identity("x", 0), identity("x", u32::MAX)];
    let owner = format!("#{OWNER}");
    let puts: [&[&str]; 5] = [
        &["SET", L, &own],
        &["SET", L, &marked],
        &["SET", L, &without_sense[0]],
        &["ZADD", L, "-1", "=s", "1700000000000000", &owner],
        &["ZADD", L, "-3", "=p"],
    ];
    for put in puts {
        redis_command(&server, put).await;
        release(until_granted(spawn_waiter(&locks, NAME)).await).await;
        drained(&server).await;
    }
    redis_command(&server, &["SET", L, &without_sense[1]]).await;
    let waiter = spawn_waiter(&locks, NAME);
    until("it ends", async || redis_command(&server, &["PTTL", L]).await != "-1").await;
    redis_command(&server, &["DEL", L]).await;
    release(until_granted(waiter).await).await;
    drained(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_key_lost_its_expiry_keeps_the_lock() {
    let (server, locks) = started("ttl=2s").await;
    held_without_an_expiry(&locks, std::slice::from_ref(&server), ms(2000)).await;
    drained(&server).await;
}
