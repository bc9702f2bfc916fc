//! The backdoors to the tables of the Postgres store, on tables that these tests make.

use std::time::Duration;

use fencelock_testkit::servers::TestPostgres;

use crate::within;

const SCHEMA: &str = "fencelock";
/// The columns that the backdoors know.
const TABLES: &str = "
    CREATE SCHEMA fencelock;
    SET search_path = fencelock;
    CREATE TABLE locks (key bytea PRIMARY KEY, token bigint NOT NULL DEFAULT 0, owner uuid,
        until bigint NOT NULL DEFAULT 0, crowd boolean NOT NULL DEFAULT false, grp \"char\",
        sum int NOT NULL DEFAULT 0);
    CREATE TABLE claims (owner uuid PRIMARY KEY, key bytea NOT NULL, state \"char\" NOT NULL,
        proc text NOT NULL DEFAULT 'fl_1', until bigint);
    CREATE TABLE processes (proc text PRIMARY KEY, deadline bigint NOT NULL);
    CREATE TABLE cells (key bytea PRIMARY KEY, stamp uuid, content bytea, until bigint);";
/// So that `in_s(1)` is in a second.
const IN_SECONDS: &str = "CREATE FUNCTION public.in_s(n int) RETURNS bigint LANGUAGE sql AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + n * 1000000 $$";

async fn with_tables() -> TestPostgres {
    let postgres = TestPostgres::start().await.unwrap();
    postgres.sql(TABLES).await.unwrap();
    postgres.sql(IN_SECONDS).await.unwrap();
    postgres
}

async fn run(postgres: &TestPostgres, statements: &str) {
    let path = "SET search_path = fencelock, public; ";
    postgres.sql(&format!("{path}{statements}")).await.unwrap();
}

#[tokio::test]
async fn what_lives_under_the_prefix_is_left_and_nothing_else() {
    let postgres = with_tables().await;
    run(
        &postgres,
        "INSERT INTO processes VALUES ('fl_1', in_s(60)), ('fl_dead', in_s(-1));
         INSERT INTO locks (key, owner, until, crowd, grp) VALUES
            ('p:held', gen_random_uuid(), in_s(60), false, NULL),
            ('p:ended', gen_random_uuid(), in_s(-1), false, NULL),
            ('p:free', NULL, 0, false, NULL),
            ('p:shared', NULL, 0, true, 's'),
            ('p:forgotten', NULL, 0, true, NULL),
            ('q:held', gen_random_uuid(), in_s(60), false, NULL);
         INSERT INTO claims (owner, key, state, proc, until) VALUES
            (gen_random_uuid(), 'p:shared', 'h', 'fl_1', in_s(60)),
            (gen_random_uuid(), 'p:shared', 'h', 'fl_1', in_s(-1)),
            (gen_random_uuid(), 'p:shared', 'w', 'fl_1', NULL),
            (gen_random_uuid(), 'p:shared', 'w', 'fl_dead', in_s(-1)),
            (gen_random_uuid(), 'p:shared', 'w', 'fl_dead', in_s(60));
         INSERT INTO cells VALUES
            ('p:kept', NULL, '', NULL), ('p:soon', NULL, '', in_s(60)), ('p:over', NULL, '', in_s(-1)),
            ('q:kept', NULL, '', NULL)",
    )
    .await;
    let tables = postgres.tables(SCHEMA);
    let mut left = tables.claims("p:").await.unwrap();
    left.iter_mut().for_each(|line| *line = line.split(", of").next().unwrap().to_owned());
    left.iter_mut().for_each(|line| *line = line.split(" by").next().unwrap().to_owned());
    assert_eq!(
        left,
        [
            "a claim on p:shared, state h",
            "a claim on p:shared, state w",
            "a claim on p:shared, state w",
            "the lock p:held, held",
            "the lock p:forgotten, with a crowd that is not there",
        ]
    );
    assert_eq!(tables.claims("q:").await.unwrap().len(), 1);
    assert_eq!(tables.claims("").await.unwrap().len(), 6);
    assert_eq!(tables.cells("p:").await.unwrap(), ["the cell p:kept", "the cell p:soon"]);
    for (key, is_locked) in [("held", true), ("ended", false), ("free", false), ("shared", true)] {
        let seen = tables.is_locked(&format!("p:{key}")).await.unwrap();
        assert_eq!(seen, is_locked, "{key}");
    }
    assert!(!tables.is_locked("p:none").await.unwrap());

    tables.lose().await.unwrap();
    assert!(tables.claims("").await.unwrap().is_empty());
    assert!(tables.cells("").await.unwrap().is_empty());
}

#[tokio::test]
async fn writes_are_held_back_and_reads_are_not() {
    let postgres = with_tables().await;
    run(&postgres, "INSERT INTO locks (key) VALUES ('k')").await;
    let locks = "FROM pg_locks WHERE relation = 'fencelock.locks'::regclass AND";
    let there_is = async |lock: &str| {
        within(async {
            while postgres.sql(&format!("SELECT count(*) {locks} {lock}")).await.unwrap() == "0" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    const HELD: &str = "mode = 'ExclusiveLock' AND granted";
    let use_it = async {
        there_is(HELD).await;
        within(postgres.sql("SELECT count(*) FROM fencelock.locks")).await.unwrap();
        within(run(&postgres, "UPDATE locks SET until = 1")).await;
    };
    let end_it = async {
        there_is("NOT granted").await;
        postgres.sql(&format!("SELECT pg_terminate_backend(pid) {locks} {HELD}")).await.unwrap();
    };
    let (tables, hour) = (postgres.tables(SCHEMA), Duration::from_secs(3600));
    let (held_back, (), ()) = tokio::join!(tables.hold_writes_back(hour), use_it, end_it);
    assert!(held_back.is_err(), "its session was ended");
}
