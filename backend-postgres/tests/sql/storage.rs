//! What the tables keep of locks that are acquired all the time, between two vacuums and after one.

use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::runtime;
use super::server::{config, connected, fast};

/// Acquires, queues and releases for the lock `a`.
struct Steps {
    client: Client,
    attempt: Statement,
    release: Statement,
}

impl Steps {
    async fn of(client: Client) -> Steps {
        client.batch_execute(&schema::script("fencelock")).await.unwrap();
        let attempt =
            "SELECT fencelock.attempt_1('a', $1, 'x', 1, 1, 9000000, 'p', 'host 1', true, 1, true)";
        let release = "SELECT fencelock.release_1('a', $1)";
        let (attempt, release) =
            (client.prepare(attempt).await.unwrap(), client.prepare(release).await.unwrap());
        Steps { client, attempt, release }
    }

    async fn attempt(&self, owner: Uuid) -> bool {
        let row = self.client.query_one(&self.attempt, &[&owner]).await.unwrap();
        row.get::<_, i64>(0) > 0
    }

    async fn release(&self, owner: Uuid) {
        let row = self.client.query_one(&self.release, &[&owner]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 1);
    }
}

/// A vacuum comes once a minute at most, and a lock can have a thousand waiters in a second.
#[test]
fn a_wait_leaves_few_bytes_until_the_next_vacuum() {
    const WAITS: i64 = 3_000;
    runtime().block_on(async {
        let server = fast().start().await.unwrap();
        let steps = Steps::of(connected(&config(&server)).await).await;
        let mut holder = Uuid::new_v4();
        assert!(steps.attempt(holder).await);
        for _ in 0..WAITS {
            let next = Uuid::new_v4();
            assert!(!steps.attempt(next).await);
            steps.release(holder).await;
            assert!(steps.attempt(next).await);
            holder = next;
        }
        let sql = "SELECT pg_total_relation_size('fencelock.claims')";
        let size: i64 = steps.client.query_one(sql, &[]).await.unwrap().get(0);
        assert!(size <= WAITS * 130, "{} bytes for each", size / WAITS);
    });
}

/// While any query runs for some ms, no version of a row can be removed: the page is full soon, and the next one
/// begins.
#[test]
fn the_pages_that_a_hot_lock_leaves_are_used_again() {
    const LIMIT: Duration = Duration::from_secs(60);
    runtime().block_on(async {
        let options = PostgresOptions::new().setting("autovacuum_naptime", "1s");
        let server = options.setting("autovacuum_vacuum_cost_delay", "0").start().await.unwrap();
        let steps = Steps::of(connected(&config(&server)).await).await;
        let reader = connected(&config(&server)).await;
        let vacuums = "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'locks'";
        let start = Instant::now();
        let mut reads = 0;
        while steps.client.query_one(vacuums, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(start.elapsed() < LIMIT, "no vacuum after {reads} reads");
            reads += 1;
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1";
            reader.batch_execute(begin).await.unwrap();
            for _ in 0..60 {
                let owner = Uuid::new_v4();
                assert!(steps.attempt(owner).await);
                steps.release(owner).await;
            }
            reader.batch_execute("COMMIT").await.unwrap();
        }
        println!("a vacuum after {reads} reads");
    });
}
