//! What the steps of a lock cost that 10,000 claims wait for, or share.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::process::quantile;
use crate::server::{config, connected, fast};

const MANY: usize = 10_000;
/// Of waiters, and of readers, whose every step reads all of them. Several times what was judged, for machines
/// that are slower and busy.
const SLOWEST: [(&str, Duration); 2] =
    [("x", Duration::from_millis(3)), ("s", Duration::from_millis(30))];

/// The server has planned the functions when the tables were small, and has no statistics of the queue: as
/// after a minute in which all clients came.
#[test]
#[ignore = "measures, for a minute; run it alone, and with optimisations"]
fn steps_stay_fast_with_many_waiters() {
    for (mode, slowest) in SLOWEST {
        crate::runtime().block_on(steps(mode, slowest));
    }
}

async fn steps(mode: &str, limit: Duration) {
    let server = fast().start().await.unwrap();
    let sql = connected(&config(&server)).await;
    sql.batch_execute(&fencelock_postgres::schema::script("fencelock")).await.unwrap();
    sql.batch_execute("SET search_path = fencelock").await.unwrap();
    let key = b"lock".as_slice();
    let attempt =
        format!("SELECT attempt_1($1, $2, '{mode}', 1, 1, 300000000, 'p', '', true, 1, true)");
    let release = "SELECT release_1($1, $2)";
    let first = Uuid::from_u128(0);
    let of = |n: usize| Uuid::from_u128(1 + n as u128);
    // What the tables look like in the server's statistics, and in the plans of this session.
    timed(&sql, &attempt, &[&key, &first]).await;
    for n in 0..20 {
        timed(&sql, &attempt, &[&key, &of(n)]).await;
    }
    sql.batch_execute("VACUUM ANALYZE locks, claims, processes").await.unwrap();
    let mut arrivals = Vec::new();
    for n in 20..MANY {
        arrivals.push(timed(&sql, &attempt, &[&key, &of(n)]).await);
    }
    let late = arrivals.split_off(arrivals.len() - 100);
    let mut others = [const { Vec::new() }; 3];
    let look = "SELECT FROM look_1('p', ARRAY[$1::bytea], ARRAY[$2::uuid])";
    let mut holder = first;
    for n in 0..100 {
        others[0].push(timed(&sql, look, &[&key, &of(n)]).await);
        others[1].push(timed(&sql, release, &[&key, &holder]).await);
        holder = of(n);
        others[2].push(timed(&sql, &attempt, &[&key, &holder]).await);
    }
    for (step, mut times) in ["arrival", "look", "release", "confirmation"]
        .iter()
        .zip(std::iter::once(late).chain(others))
    {
        times.sort_unstable();
        let median = quantile(&times, 0.5);
        println!(
            "mode {mode}, {MANY} claims: {step} {median:?}, slowest {:?}",
            quantile(&times, 1.0)
        );
        assert!(median <= limit, "{step} takes {median:?}");
    }
}

async fn timed(sql: &Client, text: &str, params: &[&(dyn ToSql + Sync)]) -> Duration {
    let start = Instant::now();
    // Prepared anew, as behind a pooler: the plans of the functions' statements stay.
    sql.query(text, params).await.unwrap();
    start.elapsed()
}
