//! A server whose wall clock jumps: every lease in it depends on it, and no guarded write does.

use fencelock_core::ErrorKind;
use fencelock_testkit::clocks::{jump, one_percent_fast};
use fencelock_testkit::proxy::Direction;
use fencelock_testkit::scenes;
use fencelock_testkit::servers::{PostgresOptions, ServerClock, TestPostgres};

use crate::support::*;

/// A server, and the control of its clock.
struct Skewed {
    server: TestPostgres,
    clock: ServerClock,
}

impl Skewed {
    async fn start() -> Skewed {
        let clock = ServerClock::of(&postgres()).expect("a clock");
        let server = PostgresOptions::new().server(clock.program()).start().await;
        Skewed { server: server.expect("a server starts"), clock }
    }

    async fn is_ahead_by(&self, seconds: i64) {
        jump(&self.clock, seconds, async || {
            (time_us(&self.server).await / 1_000_000).cast_signed()
        })
        .await;
    }
}

/// The time that it shows, in microseconds.
async fn time_us(server: &TestPostgres) -> u64 {
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    sql(server, now).await.parse().expect("a time")
}

/// Row 33: the holder is notified, and the token still rises, also when the clock jumps back.
/// Fault 33: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_the_servers_clock_does() {
    let skewed = Skewed::start().await;
    let server = &skewed.server;
    let (one, other) = (direct(server, "ttl=4s").await, direct(server, "ttl=30s").await);
    let jump = async |seconds| skewed.is_ahead_by(seconds).await;
    scenes::jumping_clock(&one, &other, jump, async || drained(server).await).await;
}

/// Row 33: two clients believe that they hold the lock, and one of them writes.
/// Fault 33: postgres (permitted: a jump ahead ends leases too early)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_jump_ahead_two_believe_and_one_of_them_can_write() {
    let skewed = Skewed::start().await;
    let (one, other) = (direct(&skewed.server, "ttl=4s").await, direct(&skewed.server, "").await);
    table_of_writes(&skewed.server).await;
    let held = acquire(&one, "lock").await;
    let check = held.check().unwrap();
    let waiter = spawn_waiter(&other, "lock");
    until_queued(&one, "lock", 1).await;
    let mut client = user(&skewed.server).await;
    let transaction = client.transaction().await.unwrap();
    fencelock_postgres::run_check(&transaction, &check).await.unwrap();
    skewed.is_ahead_by(40).await;
    // A transaction that has checked keeps the lock, whatever the clock says.
    tokio::time::sleep(ms(1200)).await;
    assert!(!waiter.is_finished(), "granted before the commit");
    write(&transaction, 1).await;
    transaction.commit().await.unwrap();
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > held.fencing_token());
    guarded_write(&skewed.server, &next, 2).await.unwrap();
    let client = user(&skewed.server).await;
    let stale = fencelock_postgres::run_check(&client, &check).await.unwrap_err();
    assert_kind(&stale, ErrorKind::Lost);
    soon("the holder is notified", held.lost()).await;
    drop(held);
    assert!(is_busy(&one, "lock").await);
    assert_eq!(writes(&skewed.server).await, "1,2");
    release(next).await;
    drained(&skewed.server).await;
}

/// Row 35: its leases end one percent too early. The validity of a hold is shorter still, by the
/// margin of `validity::lease_end`.
/// Fault 35: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_runs_one_percent_fast_ends_no_lease_that_its_holder_trusts() {
    let Skewed { server, clock } = Skewed::start().await;
    let testbed = Testbed::of(server).await;
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=2500ms").await);
    let scene = scenes::held_on_fast_clocks(&near, &far, || {
        testbed.proxy.black_hole(Direction::ToServer);
        testbed.proxy.black_hole(Direction::ToClient);
    });
    let shown = async || {
        testbed.proxy.heal().await.unwrap();
        vec![time_us(&testbed.server).await]
    };
    one_percent_fast(&[clock], scene, shown).await;
    drained(&testbed.server).await;
}

/// The program that the tests start.
fn postgres() -> String {
    fencelock_testkit::servers::postgres_program()
        .expect("it is installed")
        .into_string()
        .expect("a path in UTF-8")
}
