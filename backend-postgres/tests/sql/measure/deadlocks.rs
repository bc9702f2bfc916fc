//! Whether batches of several clients ever wait for each other in a circle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fencelock_postgres::schema;
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Statement};
use uuid::Uuid;

use crate::claim::char_of;
use crate::server::{config, connected, fast};

const CLIENTS: u64 = 4;
const STEPS: usize = 6;
/// How many keys are in use at a time, and after how many batches the first is left for a new one: two batches
/// also meet where neither finds a row yet.
const KEYS: u64 = 12;
const BATCHES_OF_KEY: u64 = 20;

type Claims = Vec<(u64, Uuid)>;

/// `SQL_BATCHES` batches, of 4 connections on 12 keys, with renewals and single steps in between.
#[test]
#[ignore = "measures, for some minutes; run it alone, and with optimisations"]
fn batches_never_deadlock() {
    let all = crate::from_env("SQL_BATCHES").unwrap_or(100_000);
    crate::runtime().block_on(async {
        let server = fast().setting("deadlock_timeout", "100ms").start().await.unwrap();
        let admin = connected(&config(&server)).await;
        admin.batch_execute(&schema::script("fencelock")).await.unwrap();
        let (made, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| tokio::spawn(work(config(&server), seed, made.clone(), all)))
            .collect();
        let mut alone = 0;
        for client in clients {
            alone += client.await.unwrap();
        }
        let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        let deadlocks: i64 = admin.query_one(sql, &[]).await.unwrap().get(0);
        println!(
            "{all} batches in {:.0?}, {alone} steps alone, {deadlocks} deadlocks",
            start.elapsed()
        );
        assert!(alone > 0, "no two batches met");
        assert_eq!(deadlocks, 0);
    });
}

/// An error of any call, such as that of a deadlock, is a panic. Returns how many steps were sent alone.
async fn work(config: Config, seed: u64, made: Arc<AtomicU64>, all: u64) -> u64 {
    let sql = connected(&config).await;
    sql.batch_execute("SET search_path = fencelock").await.unwrap();
    let batch = "SELECT reply FROM batch_1($1, $2, $3, $4, $5, $5, $6, $7, $8, $9, 'p') WHERE at > 0 ORDER BY at";
    let batch = sql.prepare(batch).await.unwrap();
    let (mut rng, mut alone) = (StdRng::seed_from_u64(seed), 0);
    let mut held = Claims::new();
    loop {
        let count = made.fetch_add(1, Ordering::Relaxed);
        if count >= all {
            return alone;
        }
        let first = count / BATCHES_OF_KEY;
        let keys = (first..first + KEYS).sample(&mut rng, STEPS);
        let wanted: Claims =
            keys.into_iter().map(|key| (key, Uuid::from_u128(rng.random()))).collect();
        let releases = held.drain(..).map(|claim| ('r', claim));
        let mut steps: Vec<_> = releases.chain(wanted.iter().map(|claim| ('a', *claim))).collect();
        steps.shuffle(&mut rng);
        let replies = send(&sql, &batch, &steps, &mut rng).await;
        for ((step, (key, owner)), reply) in steps.iter().zip(replies) {
            if reply == -2 {
                alone += 1;
                let key = key.to_be_bytes();
                let text = match step {
                    'a' => "SELECT attempt_1($1, $2, 'x', 1, 1, 9000000, 'p', '', true, 1, true)",
                    _ => "SELECT release_1($1, $2)",
                };
                // A wait of 200 ms on a busy machine is repeated, as clients do; a deadlock is noticed before.
                while let Err(error) = sql.query(text, &[&key.as_slice(), owner]).await {
                    assert_eq!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{error:?}");
                    println!("a wait of 200 ms");
                }
            }
        }
        held = wanted;
        held.shuffle(&mut rng);
        let keys: Vec<_> = held.iter().map(|(key, _)| key.to_be_bytes().to_vec()).collect();
        let owners: Vec<_> = held.iter().map(|(_, owner)| *owner).collect();
        let ttls = vec![9_000_000_i64; held.len()];
        sql.query("SELECT renew_1($1, $2, $3, false)", &[&keys, &owners, &ttls]).await.unwrap();
    }
}

async fn send(
    sql: &Client,
    batch: &Statement,
    steps: &[(char, (u64, Uuid))],
    rng: &mut StdRng,
) -> Vec<i64> {
    let count = steps.len();
    let letters: Vec<_> = steps.iter().map(|(step, _)| char_of(*step)).collect();
    let keys: Vec<_> = steps.iter().map(|(_, (key, _))| key.to_be_bytes().to_vec()).collect();
    let owners: Vec<_> = steps.iter().map(|(_, (_, owner))| *owner).collect();
    let modes: Vec<_> =
        (0..count).map(|_| char_of(if rng.random_range(0..3) == 0 { 's' } else { 'x' })).collect();
    let (ones, ttls) = (vec![1_i64; count], vec![9_000_000_i64; count]);
    let (labels, queues) = (vec![Vec::<u8>::new(); count], vec![true; count]);
    let tokens = vec![1_i32; count];
    let rows = sql
        .query(batch, &[&letters, &keys, &owners, &modes, &ones, &ttls, &labels, &queues, &tokens])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
