//! Whether the tables of locks that are acquired all the time stay small.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use uuid::Uuid;

use super::process::Process;
use crate::server::{config, connected};

const MOST_BYTES: i64 = 10_000_000;
/// Of a claim that has waited since the last vacuum, its row and the places in the indexes.
const BYTES_OF_CLAIM: u64 = 200;
/// Postgres begins a vacuum once a minute, and this one takes its time on a busy machine.
const BETWEEN_VACUUMS: u64 = 120;

/// The sizes are shown for each.
const PARTS: u64 = 8;

/// One lock of a lone client, and one that three clients wait for, both as fast as they go, with the
/// server's usual autovacuum. `SQL_SECONDS=3600` is the judged hour.
///
/// The table of the locks does not grow, since its updates stay in the page. That of the claims grows by each
/// claim that waits, until the next vacuum.
#[test]
#[ignore = "measures, for a minute or SQL_SECONDS; run it alone, and with optimisations"]
fn tables_of_hot_locks_stay_small() {
    let seconds = crate::from_env("SQL_SECONDS").unwrap_or(60);
    crate::runtime().block_on(async {
        let server = PostgresOptions::new().durable().start().await.unwrap();
        let admin = connected(&config(&server)).await;
        admin.batch_execute(&schema::script("fencelock")).await.unwrap();
        let end = Instant::now() + Duration::from_secs(seconds);
        let pairs = Arc::new([const { AtomicU64::new(0) }; 2]);
        let mut clients = Vec::new();
        for (number, lock) in [0, 1, 1, 1].into_iter().enumerate() {
            let (process, pairs) = (Process::start(&config(&server), number).await, pairs.clone());
            clients.push(tokio::spawn(async move {
                let key = [b"alone".as_slice(), b"crowd"][lock];
                while Instant::now() < end {
                    let owner = Uuid::new_v4();
                    process.acquire(key, owner).await;
                    process.release(key, owner).await;
                    pairs[lock].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let sizes = "SELECT pg_total_relation_size('fencelock.locks'),
          pg_total_relation_size('fencelock.claims'), pg_total_relation_size('fencelock.processes')";
        let mut parts = Vec::new();
        let start = Instant::now();
        while Instant::now() < end {
            let row = admin.query_one(sizes, &[]).await.unwrap();
            let part = usize::try_from(start.elapsed().as_secs() * PARTS / seconds.max(1)).unwrap();
            parts.resize((part + 1).max(parts.len()), [0_i64; 3]);
            (0..3).for_each(|n| parts[part][n] = parts[part][n].max(row.get(n)));
            tokio::time::sleep(Duration::from_secs(1).min(end - Instant::now().min(end))).await;
        }
        for client in clients {
            client.await.unwrap();
        }
        let [alone, crowd] = [0, 1].map(|lock: usize| pairs[lock].load(Ordering::Relaxed));
        println!("{seconds} s, {alone} pairs of the lone client, {crowd} of the three");
        println!("largest sizes of locks, claims, processes in each part of the time: {parts:?} bytes");
        let statistics = "SELECT format('%s: %s updates, %s of them in the page, %s inserts, %s vacuums',
          relname, n_tup_upd, n_tup_hot_upd, n_tup_ins, autovacuum_count)
          FROM pg_stat_user_tables WHERE schemaname = 'fencelock' AND n_tup_ins > 0 ORDER BY relname";
        for row in admin.query(statistics, &[]).await.unwrap() {
            println!("{}", row.get::<_, String>(0));
        }
        let [locks, claims] = [0, 1].map(|n| parts.iter().map(|part| part[n]).max().unwrap());
        assert!(locks <= MOST_BYTES, "{locks} bytes");
        let waited = crowd / seconds.max(1) * BETWEEN_VACUUMS.min(seconds);
        let expected = i64::try_from(waited * BYTES_OF_CLAIM).unwrap().max(MOST_BYTES);
        assert!(claims <= expected, "{claims} bytes, {expected} were expected");
    });
}
