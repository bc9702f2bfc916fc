//! What a transaction that holds an old snapshot does to a hot lock.

use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::{PostgresOptions, TestPostgres};
use uuid::Uuid;

use super::process::Process;
use crate::server::{config, connected};

const PART: Duration = Duration::from_secs(5);

/// No old version can be removed as long as it is open, in `SQL_SECONDS`, or a minute: slower and slower, and
/// always right. As fast as before once it has ended.
#[test]
#[ignore = "measures, for a minute and a half; run it alone, and with optimisations"]
fn a_hot_lock_recovers_from_an_old_snapshot() {
    let seconds = crate::from_env("SQL_SECONDS").unwrap_or(60);
    crate::runtime().block_on(async {
        let server = PostgresOptions::new().durable().start().await.unwrap();
        let admin = connected(&config(&server)).await;
        admin.batch_execute(&schema::script("fencelock")).await.unwrap();
        let process = Process::start(&config(&server), 0).await;
        let before = rate(&process, PART).await;
        println!("before: {before:.0} pairs/s, {}", versions(&server).await);
        let reader = connected(&config(&server)).await;
        let open = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class";
        reader.batch_execute(open).await.unwrap();
        let start = Instant::now();
        while start.elapsed().as_secs() < seconds {
            let during = rate(&process, PART).await;
            println!(
                "{:.0?} in it: {during:.0} pairs/s, {}",
                start.elapsed(),
                versions(&server).await
            );
            assert!(during > 0.0);
        }
        reader.batch_execute("COMMIT").await.unwrap();
        // The first steps remove what has piled up.
        rate(&process, PART).await;
        let after = rate(&process, PART).await;
        println!("after it: {after:.0} pairs/s, {}", versions(&server).await);
        assert!(after >= before / 2.0, "{after:.0} pairs/s after {before:.0}");
    });
}

/// Pairs a second.
async fn rate(process: &Process, during: Duration) -> f64 {
    let (start, mut pairs) = (Instant::now(), 0_u32);
    while start.elapsed() < during {
        let owner = Uuid::new_v4();
        process.acquire(b"lock", owner).await;
        process.release(b"lock", owner).await;
        pairs += 1;
    }
    f64::from(pairs) / start.elapsed().as_secs_f64()
}

async fn versions(server: &TestPostgres) -> String {
    server.sql("SELECT pg_total_relation_size('fencelock.locks') || ' bytes'").await.unwrap()
}
