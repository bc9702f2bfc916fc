//! pgbouncer between the clients and the server: it gives each transaction to any of a few sessions.

use fencelock_conformance::How;
use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_core::{ErrorKind, Locks};
use fencelock_testkit::servers::{PgBouncerOptions, PoolMode, TestPgBouncer, TestPostgres};
use futures_util::future::join_all;
use tokio::time::{Duration, Instant};

use crate::support::*;

async fn pooled(server: &TestPostgres, options: PgBouncerOptions) -> TestPgBouncer {
    let options = options.database(server.database_name());
    options.start(server.addr()).await.expect("pgbouncer starts")
}

async fn through(pooler: &TestPgBouncer, params: &str) -> Locks {
    connect(&format!("{}?{params}", pooler.url())).await
}

/// In session mode notifications arrive; in transaction mode waiters look ten times a second instead, and no
/// statement has a name.
/// Fault 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mode_of_the_pooler_is_found_out() {
    let server = database().await;
    // Without them only looks are left: one each second, or ten.
    mute(&server).await;
    for (mode, waits_for_them) in [(PoolMode::Session, true), (PoolMode::Transaction, false)] {
        let pooler = pooled(&server, PgBouncerOptions::new().mode(mode)).await;
        let (one, other) = (through(&pooler, "ttl=30s").await, through(&pooler, "ttl=30s").await);
        let late = hand_overs(&one, &other).await;
        match waits_for_them {
            true => assert!(late[2] > ms(300), "it looks ten times a second: {late:?}"),
            false => assert!(late[0] < ms(500), "it looks once a second: {late:?}"),
        }
        drained(&server).await;
    }
}

/// pgbouncer has one SQLSTATE for all of its errors.
/// Fault 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_a_pooler_does_not_know_is_refused_at_once() {
    let server = database().await;
    let pooler = pooled(&server, PgBouncerOptions::new()).await;
    let url = pooler.url();
    let (before, _) = url.rsplit_once('/').expect("a database");
    let error = soon("it is refused", try_connect(&format!("{before}/none"))).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    let text = error_chain(&error);
    assert!(text.contains("a pooler refuses the login"), "{text}");
}

/// A pooler's own errors, which have one SQLSTATE, do not say that it mixes sessions.
/// Faults 53, 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_arrive_again_after_an_error_of_a_pooler_in_session_mode() {
    let server = own_server().await;
    let options = PgBouncerOptions::new().mode(PoolMode::Session);
    let pooler = pooled(&server, options).await;
    // Without them a client that waits for them looks once a second, and one that does not ten times.
    mute(&server).await;
    let (one, other) = (through(&pooler, "ttl=30s").await, through(&pooler, "ttl=30s").await);
    // A request of each is under way when the server dies.
    let mut blocked = user(&server).await;
    let blocking = blocked.transaction().await.unwrap();
    blocking.batch_execute("LOCK TABLE fencelock.locks").await.unwrap();
    let asking = [&one, &other].map(|locks| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.inspect("lock").await })
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("both wait", async || sql(&server, waiting).await == "2").await;
    server.kill().unwrap();
    for asking in asking {
        let error = soon("it ends", asking).await.unwrap().unwrap_err();
        assert!(error_chain(&error).contains("08P01"), "{}", error_chain(&error));
    }
    server.restart().await.unwrap();
    let late = hand_overs(&one, &other).await;
    assert!(late[2] > ms(300), "it looks ten times a second: {late:?}");
    drained(&server).await;
}

/// A pooler that does not reset its sessions: the names of the library's statements are taken in them.
/// Fault 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_keep_the_statements_of_other_programs_work() {
    let server = database().await;
    let options = PgBouncerOptions::new().mode(PoolMode::Session).pool_size(2);
    let pooler = pooled(&server, options.config("server_reset_query =")).await;
    let take_names = "DO $$ BEGIN FOR n IN 0..9999 LOOP EXECUTE format('PREPARE s%s AS SELECT 1', n); \
                      END LOOP; END $$; COMMIT";
    for program in in_transactions(&pooler, 2).await {
        program.batch_execute(take_names).await.unwrap();
    }
    let locks = connect_once(&pooler.url()).await.unwrap();
    let (held, waiter) = contested(&locks, &locks, "lock").await;
    hand_over(held, waiter).await;
    drained(&server).await;
}

/// The channel of a process gets the owner tokens of its hand-overs: no session that another program of the
/// pool may get listens to it.
/// Fault 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_a_pool_listens_to_the_channel_of_a_client() {
    let server = database().await;
    // Each transaction gets the session that has waited longest.
    let options = PgBouncerOptions::new().pool_size(3).config("server_round_robin = 1");
    let pooler = pooled(&server, options).await;
    for program in in_transactions(&pooler, 3).await {
        program.batch_execute("COMMIT").await.unwrap();
    }
    let locks = through(&pooler, "ttl=30s").await;
    let (held, waiter) = contested(&locks, &locks, "lock").await;
    let channel = sql(&server, "SELECT proc FROM fencelock.claims").await;
    assert!(channel.starts_with("fl_"), "{channel}");
    for program in in_transactions(&pooler, 3).await {
        let listening = program.query("SELECT pg_listening_channels()", &[]).await.unwrap();
        let listening: Vec<String> = listening.iter().map(|row| row.get(0)).collect();
        assert!(!listening.contains(&channel), "{listening:?}");
        program.batch_execute("COMMIT").await.unwrap();
    }
    hand_over(held, waiter).await;
    drained(&server).await;
}

/// Programs that occupy as many sessions of the pool.
async fn in_transactions(pooler: &TestPgBouncer, sessions: usize) -> Vec<tokio_postgres::Client> {
    let mut programs = Vec::new();
    for _ in 0..sessions {
        let client = user_at(&pooler.url()).await.expect("connected");
        client.batch_execute("BEGIN; SELECT 1").await.expect("begun");
        programs.push(client);
    }
    programs
}

/// All sessions of the pool are others': a typed error in time, and then it works.
/// Faults 40, 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_exhausted_is_reported_and_waited_for() {
    let server = database().await;
    let pooler = pooled(&server, PgBouncerOptions::new().pool_size(2)).await;
    let locks = through(&pooler, "ttl=30s").await;
    let kept = acquire(&locks, "kept").await;
    let others = in_transactions(&pooler, 2).await;
    assert_kind(&acquire_error(&locks, "lock", ms(1500)).await, ErrorKind::Unreachable);
    // pgbouncer lets clients in before it has a session for them.
    let error = connect_error(&format!("{}?connect_timeout=900ms", pooler.url())).await;
    assert_says(&error, ErrorKind::Unreachable, "succeeded, but its session was not ready");
    let waiter = spawn_waiter(&locks, "lock");
    drop(others);
    release(until_granted(waiter).await).await;
    until_renewed(&locks, &kept, ms(30_000)).await;
    release(kept).await;
    drained(&server).await;
}

/// Nor has pgbouncer room for more clients.
/// Faults 40, 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_without_room_for_clients_is_reported_and_waited_for() {
    let server = database().await;
    let pooler = pooled(&server, PgBouncerOptions::new()).await;
    let locks = through(&pooler, "ttl=30s").await;
    let kept = acquire(&locks, "lock").await;
    pooler.console("SET max_client_conn = 1").await.unwrap();
    let error = connect_error(&pooler.url()).await;
    assert_says(&error, ErrorKind::Unreachable, "no more connections allowed");
    pooler.console("SET max_client_conn = 100").await.unwrap();
    let newcomer = through(&pooler, "").await;
    assert!(is_busy(&newcomer, "lock").await);
    release(kept).await;
    drained(&server).await;
}

/// An operator pauses it, for a switch of the server for example.
/// Fault 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_pooler_is_paused_everything_is_bounded_and_then_continues() {
    let server = database().await;
    let pooler = pooled(&server, PgBouncerOptions::new()).await;
    let locks = through(&pooler, "ttl=30s").await;
    let run = async |command: &str| drop(pooler.console(command).await.unwrap());
    let resume = async {
        // Longer than two answers may take: the connection is replaced, while it is paused.
        tokio::time::sleep(ms(5000)).await;
        run("RESUME").await;
    };
    everything_is_bounded(&locks, run("PAUSE"), resume).await;
    drained(&server).await;
}

/// Faults 20, 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_or_a_server_that_restarts_ends_no_hold_and_no_place() {
    let server = own_server().await;
    let pooler = pooled(&server, PgBouncerOptions::new()).await;
    let (one, other) = (through(&pooler, "ttl=20s").await, through(&pooler, "ttl=20s").await);
    let kept = acquire(&one, "kept").await;
    let mut blocker = acquire(&one, "wanted").await;
    for round in 0..4 {
        let waiter = spawn_waiter(&other, "wanted");
        until_queued(&one, "wanted", 1).await;
        if round % 2 == 0 {
            pooler.restart().await.unwrap();
        } else {
            server.restart().await.unwrap();
        }
        let token = blocker.fencing_token();
        release(blocker).await;
        blocker = until_granted(waiter).await;
        assert!(blocker.fencing_token() > token);
        until_renewed(&one, &kept, ms(20_000)).await;
    }
    release(blocker).await;
    release(kept).await;
    drained(&server).await;
}

/// The server is gone while the pooler stays: its own error, and then it works.
/// Faults 20, 53: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_without_its_server_is_reported_and_waited_for() {
    let server = own_server().await;
    let pooler = pooled(&server, PgBouncerOptions::new()).await;
    let locks = through(&pooler, "ttl=30s").await;
    let kept = acquire(&locks, "kept").await;
    server.kill().unwrap();
    let error = acquire_error(&locks, "lock", ms(1500)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    let error = connect_error(&pooler.url()).await;
    assert_kind(&error, ErrorKind::Unreachable);
    let waiter = spawn_waiter(&locks, "lock");
    server.restart().await.unwrap();
    release(until_granted(waiter).await).await;
    until_renewed(&locks, &kept, ms(30_000)).await;
    release(kept).await;
    drained(&server).await;
}

/// A pooler that is put between, or changes its mode, while clients are connected: what is prepared in one
/// session is called in another one.
/// Fault 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_changes_from_sessions_to_transactions_is_noticed() {
    let server = database().await;
    let options = PgBouncerOptions::new().mode(PoolMode::Session).pool_size(8);
    let pooler = pooled(&server, options).await;
    let (one, other) = (through(&pooler, "ttl=20s").await, through(&pooler, "ttl=20s").await);
    let kept = acquire(&one, "kept").await;
    pooler.console("SET pool_mode = 'transaction'").await.unwrap();
    for round in 0..20 {
        let name = format!("lock-{}", round % 3);
        let (mine, theirs) = tokio::join!(acquire(&one, &name), acquire(&other, "theirs"));
        release(mine).await;
        release(theirs).await;
    }
    until_renewed(&one, &kept, ms(20_000)).await;
    release(kept).await;
    drained(&server).await;
}

/// Two programs of which one names its statements as the library would, and two clients, in a pool of one
/// session: never is another's statement called.
/// Fault 54: pgbouncer
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_programs_in_a_pool_of_one_session_never_call_each_others_statements() {
    two_programs(Duration::from_secs(3)).await;
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "in ./test --long: the everyday run has three seconds of it"]
    async fn two_programs_in_a_pool_of_one_session_for_two_minutes() {
        two_programs(Duration::from_secs(120)).await;
    }
}

async fn two_programs(during: Duration) {
    let server = database().await;
    let pooler = pooled(&server, PgBouncerOptions::new().pool_size(1)).await;
    // Two clients with schemas of their own: another's statement would lock in the wrong one.
    let clients = [
        through(&pooler, "ttl=20s&schema=one").await,
        through(&pooler, "ttl=20s&schema=two").await,
    ];
    let end = Instant::now() + during;
    let work = clients.iter().map(async |locks| {
        let rounds = (0..3).map(async |n| {
            let mut worker = Worker::new();
            let mut rounds = 0_u64;
            while Instant::now() < end {
                let acquired =
                    worker.acquire(locks, &format!("lock-{}", n % 2), How::Exclusive).await;
                let (guard, claim) = acquired.expect("granted");
                let released = worker.release(guard, &claim).await;
                released.expect("released");
                rounds += 1;
            }
            (rounds, worker.into_events())
        });
        join_all(rounds).await
    });
    // A program that is not careful: its named statements stay in the session that all share.
    let careless = async {
        let (mut called, mut refused) = (0_u64, 0_u64);
        while Instant::now() < end {
            let client = user_at(&pooler.url()).await.expect("connected");
            match client.prepare("SELECT 'careless'::text").await {
                Ok(statement) => match client.query(&statement, &[]).await {
                    Ok(rows) => {
                        assert_eq!(rows[0].get::<_, String>(0), "careless");
                        called += 1;
                    }
                    Err(_) => refused += 1,
                },
                Err(_) => refused += 1,
            }
            tokio::time::sleep(ms(20)).await;
        }
        (called, refused)
    };
    let (of_clients, (called, refused)) = tokio::join!(join_all(work), careless);
    let mut rounds = Vec::new();
    for of_client in of_clients {
        let (counts, events): (Vec<u64>, Vec<_>) = of_client.into_iter().unzip();
        assert_clean(events.into_iter().flatten().collect(), Rules::default());
        rounds.push(counts.iter().sum::<u64>());
    }
    println!(
        "{rounds:?} rounds of the clients; of the other program {called} calls, {refused} refused"
    );
    assert!(rounds.iter().all(|rounds| *rounds > 5), "{rounds:?}");
    assert!(called + refused > 5);
    for schema in ["one", "two"] {
        let left = server.tables(schema).claims("").await.expect("the tables are read");
        assert!(left.is_empty(), "{left:?}");
    }
    assert_no_panics();
}
