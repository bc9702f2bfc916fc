//! What the tables keep of locks that are acquired all the time, between two vacuums and after one.

use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::runtime;
use super::server::{config, connected, fast};

/// Acquires, queues and releases for one lock.
struct Steps {
    client: Client,
    attempt: Statement,
    release: Statement,
}

impl Steps {
    /// With a name and a label of these lengths.
    async fn of(client: Client, name: usize, label: usize) -> Steps {
        client.batch_execute(&schema::script("fencelock")).await.unwrap();
        let (name, label) = ("k".repeat(name), "l".repeat(label));
        let attempt = format!(
            "SELECT fencelock.attempt_1('{name}', $1, 'x', 1, 1, 9000000, 'fl_0123456789abcdef', '{label}', true, 1,
             true)"
        );
        let release = format!("SELECT fencelock.release_1('{name}', $1)");
        let (attempt, release) =
            (client.prepare(&attempt).await.unwrap(), client.prepare(&release).await.unwrap());
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

mod long {
    use super::*;

    /// A vacuum comes once a minute at most, and a lock can have a thousand waiters in a second.
    #[test]
    #[ignore = "in ./test --long: what the tables keep changes with their definition only"]
    fn a_wait_leaves_few_bytes_until_the_next_vacuum() {
        const WAITS: i64 = 3_000;
        runtime().block_on(async {
            let server = fast().shared().await.unwrap();
            for (name, label) in [(1, 6), (20, 40), (60, 60), (512, 120)] {
                let steps = Steps::of(connected(&config(&server)).await, name, label).await;
                steps
                    .client
                    .batch_execute("TRUNCATE fencelock.claims, fencelock.locks")
                    .await
                    .unwrap();
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
                let each = size / WAITS;
                assert!(
                    each <= 130,
                    "{each} bytes for each, with a name of {name} and a label of {label}"
                );
            }
        });
    }

    /// While any query runs for some ms, no version of a row can be removed: the page is full soon, and the next one
    /// begins.
    #[test]
    #[ignore = "in ./test --long: what the tables keep changes with their definition only"]
    fn the_pages_that_a_hot_lock_leaves_are_used_again() {
        const LIMIT: Duration = Duration::from_secs(60);
        runtime().block_on(async {
            let options = PostgresOptions::new().setting("autovacuum_naptime", "1s");
            let server =
                options.setting("autovacuum_vacuum_cost_delay", "0").start().await.unwrap();
            let steps = Steps::of(connected(&config(&server)).await, 1, 6).await;
            let reader = connected(&config(&server)).await;
            let vacuums =
                "SELECT autovacuum_count FROM pg_stat_user_tables WHERE relname = 'locks'";
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
}
