//! What a pair of acquisition and release costs, against what a transaction that locks a row costs.

use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use crate::claim::char_of;
use crate::server::{config, connected};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);
const BATCH: usize = 64;

/// With a disk that is waited for. The ways take turns, so that each meets the same machine.
#[test]
#[ignore = "measures; run it alone, and with optimisations"]
fn pairs_per_second() {
    crate::runtime().block_on(async {
        let server = PostgresOptions::new().durable().start().await.unwrap();
        let sql = connected(&config(&server)).await;
        sql.batch_execute(&schema::script("fencelock")).await.unwrap();
        let plain = "CREATE TABLE plain (key bytea PRIMARY KEY); INSERT INTO plain VALUES ('lock')";
        sql.batch_execute(plain).await.unwrap();
        let ours = Ours::new(&sql).await;
        let row_lock =
            sql.prepare("SELECT FROM plain WHERE key = 'lock' FOR UPDATE").await.unwrap();

        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(rate(1, async || for_update(&sql, &row_lock).await).await);
            rates[1].push(rate(1, async || ours.pair().await).await);
            rates[2].push(rate(BATCH, async || ours.batch().await).await);
        }
        let [plain, one, batch] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("BEGIN, SELECT FOR UPDATE, COMMIT: {plain:.0} pairs/s");
        println!("attempt_1 and release_1: {one:.0} pairs/s, {:.2} x", one / plain);
        println!("batch_1 of {BATCH}: {batch:.0} pairs/s, {:.1} x", batch / plain);
    });
}

/// Pairs a second.
async fn rate(pairs: usize, work: impl AsyncFn()) -> f64 {
    let (start, mut rounds) = (Instant::now(), 0.0);
    while start.elapsed() < ROUND {
        work().await;
        rounds += 1.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let all = rounds * pairs as f64;
    all / start.elapsed().as_secs_f64()
}

async fn for_update(sql: &Client, row_lock: &Statement) {
    sql.batch_execute("BEGIN").await.unwrap();
    sql.query(row_lock, &[]).await.unwrap();
    sql.batch_execute("COMMIT").await.unwrap();
}

struct Ours<'a> {
    sql: &'a Client,
    attempt: Statement,
    release: Statement,
    batch: Statement,
}

impl Ours<'_> {
    async fn new(sql: &Client) -> Ours<'_> {
        let attempt = "SELECT fencelock.attempt_1(
          $1, $2, 'x', 1, 1, 30000000, 'p', '', true, 1, true)";
        let release = "SELECT fencelock.release_1($1, $2)";
        let batch = "SELECT * FROM fencelock.batch_1($1, $2, $3, $4, $5, $5, $6, $7, $8, $9, 'p')";
        Ours {
            sql,
            attempt: sql.prepare(attempt).await.unwrap(),
            release: sql.prepare(release).await.unwrap(),
            batch: sql.prepare(batch).await.unwrap(),
        }
    }

    async fn pair(&self) {
        let (key, owner) = (b"lock".as_slice(), Uuid::new_v4());
        let row = self.sql.query_one(&self.attempt, &[&key, &owner]).await.unwrap();
        assert!(row.get::<_, i64>(0) > 0);
        let row = self.sql.query_one(&self.release, &[&key, &owner]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 1);
    }

    /// As many pairs, of different locks.
    async fn batch(&self) {
        let keys: Vec<_> = (0..BATCH).map(|n| format!("lock {n}").into_bytes()).collect();
        let owners: Vec<_> = (0..BATCH).map(|_| Uuid::new_v4()).collect();
        let (modes, ones) = (vec![char_of('x'); BATCH], vec![1_i64; BATCH]);
        let (ttls, labels) = (vec![30_000_000_i64; BATCH], vec![Vec::<u8>::new(); BATCH]);
        let (queues, tokens) = (vec![true; BATCH], vec![1_i32; BATCH]);
        for step in ['a', 'r'] {
            let steps = vec![char_of(step); BATCH];
            let rows = self
                .sql
                .query(
                    &self.batch,
                    &[&steps, &keys, &owners, &modes, &ones, &ttls, &labels, &queues, &tokens],
                )
                .await
                .unwrap();
            assert!(rows.iter().all(|row| row.get::<_, i64>(1) > 0));
        }
    }
}
