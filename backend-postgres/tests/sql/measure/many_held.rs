//! What it costs to keep 10,000 locks.

use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use uuid::Uuid;

use crate::server::{config, connected};

const HELD: u32 = 10_000;
const OF_ONE_CALL: usize = 500;
const ROUNDS: usize = 6;
const LIMIT: Duration = Duration::from_secs(1);

#[test]
#[ignore = "measures; run it alone, and with optimisations"]
fn ten_thousand_locks_are_renewed_within_a_second() {
    crate::runtime().block_on(async {
        let server = PostgresOptions::new().durable().start().await.unwrap();
        let sql = connected(&config(&server)).await;
        sql.batch_execute(&schema::script("fencelock")).await.unwrap();
        let all: Vec<_> =
            (0..HELD).map(|n| (n.to_be_bytes().to_vec(), Uuid::from_u128(n.into()))).collect();
        let attempt =
            "SELECT fencelock.attempt_1(k, o, 'x', 1, 1, 300000000, 'p', '', true, 1, true)
          FROM unnest($1::bytea[], $2::uuid[]) AS u (k, o)";
        let renew = sql.prepare("SELECT fencelock.renew_1($1, $2, $3, false)").await.unwrap();
        let split = |part: &[(Vec<u8>, Uuid)]| -> (Vec<Vec<u8>>, Vec<Uuid>) {
            part.iter().cloned().unzip()
        };
        for part in all.chunks(OF_ONE_CALL) {
            let (keys, owners) = split(part);
            sql.query(attempt, &[&keys, &owners]).await.unwrap();
        }
        let mut slowest = Duration::ZERO;
        for round in 0..ROUNDS {
            let start = Instant::now();
            let mut longest = Duration::ZERO;
            for part in all.chunks(OF_ONE_CALL) {
                let ((keys, owners), ttls) = (split(part), vec![300_000_000_i64; part.len()]);
                let asked = Instant::now();
                let held = sql.query(&renew, &[&keys, &owners, &ttls]).await.unwrap();
                longest = longest.max(asked.elapsed());
                assert_eq!(held.len(), part.len());
            }
            let size = "SELECT pg_total_relation_size('fencelock.locks')";
            let size: i64 = sql.query_one(size, &[]).await.unwrap().get(0);
            println!(
                "round {round}: {:?}, longest call {longest:?}, {size} bytes",
                start.elapsed()
            );
            slowest = slowest.max(start.elapsed());
        }
        assert!(slowest <= LIMIT, "{slowest:?}");
    });
}
