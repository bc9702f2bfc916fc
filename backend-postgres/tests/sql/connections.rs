//! Real connections and the real time: the users' transactions of 16 clients, which check their
//! tokens, on few locks.
//!
//! A client reads a register and writes back one more, in two statements: two that overlap lose a
//! count. It takes pauses longer than its lease, and does not look at it: only the check in its
//! transaction keeps it from writing. Readers find that nobody writes while they read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencelock_postgres::schema;
use fencelock_testkit::servers::PostgresOptions;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Config, IsolationLevel, Row};
use uuid::Uuid;

use super::Verdict;
use super::bench::ensure;
use super::claim::char_of;
use super::server::{config, connected};
use super::session::{Params, text_of};
use super::state::{LockState, QUERIES, State};

const CLIENTS: usize = 16;
const LOCKS: u8 = 3;
/// In us: a lease that is not meant to end.
const LONG: i64 = 2_000_000;

/// What keeps stale clients from writing. Readers find that nobody writes while they read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guard {
    CheckToken,
    Fence,
}

#[derive(Debug, Default)]
struct Counts {
    /// Of each lock.
    written: [AtomicU64; LOCKS as usize],
    grants: AtomicU64,
    stale: AtomicU64,
    retried: AtomicU64,
    ended: AtomicBool,
}

/// `SQL_SECONDS` sets how long each of them runs.
#[test]
fn guarded_transactions_lose_no_count() {
    let each = Duration::from_secs(crate::from_env("SQL_SECONDS").unwrap_or(1));
    crate::runtime().block_on(async {
        let options = PostgresOptions::new().setting("deadlock_timeout", "200ms");
        let server = options.shared().await.unwrap();
        let script = schema::script("fencelock");
        let levels = [
            IsolationLevel::ReadCommitted,
            IsolationLevel::RepeatableRead,
            IsolationLevel::Serializable,
        ];
        for guard in [Guard::CheckToken, Guard::Fence] {
            for level in levels {
                run(&config(&server), &script, guard, level, each).await.unwrap();
            }
        }
    });
}

/// An error when a count was lost, or there was a deadlock.
async fn run(
    config: &Config,
    script: &str,
    guard: Guard,
    level: IsolationLevel,
    duration: Duration,
) -> Verdict {
    let admin = connected(config).await;
    admin
        .batch_execute(&format!(
            "DROP SCHEMA IF EXISTS fencelock CASCADE; DROP TABLE IF EXISTS register;
             CREATE TABLE register (lock int PRIMARY KEY, value bigint NOT NULL);
             INSERT INTO register SELECT n, 0 FROM generate_series(0, {LOCKS} - 1) n; {script}"
        ))
        .await
        .unwrap();
    let counts = Arc::new(Counts::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (config, counts) = (config.clone(), counts.clone());
            tokio::spawn(async move {
                let mut client =
                    ClientOf { sql: connected(&config).await, guard, level, number, counts };
                client.work().await
            })
        })
        .collect();
    let start = Instant::now();
    let mut consistent = Ok(());
    // Without a write and a stale one the rest has shown nothing: a busy machine takes longer to them.
    let has_seen = |counts: &[AtomicU64]| counts.iter().any(|n| n.load(Ordering::SeqCst) > 0);
    let has_seen_both =
        || has_seen(&counts.written) && has_seen(std::slice::from_ref(&counts.stale));
    while consistent.is_ok()
        && (start.elapsed() < duration || !has_seen_both() && start.elapsed() < 30 * duration)
    {
        consistent = is_consistent(&admin).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    counts.ended.store(true, Ordering::SeqCst);
    // All of them, so that none uses the next run's tables.
    let ended: Vec<_> = futures_util::future::join_all(clients).await;
    ended.into_iter().try_for_each(|client| client.unwrap())?;
    consistent?;
    is_consistent(&admin).await?;
    let rows = admin.query("SELECT lock, value FROM register", &[]).await.unwrap();
    let values: BTreeMap<i32, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (lock, value) in values {
        let written = counts.written[usize::try_from(lock).unwrap()].load(Ordering::SeqCst);
        let value = u64::try_from(value).unwrap();
        ensure(written == value, || {
            format!("{guard:?}, {level:?}: {written} writes made {value}")
        })?;
    }
    let sum = |counts: &[AtomicU64]| counts.iter().map(|n| n.load(Ordering::SeqCst)).sum::<u64>();
    let (written, grants) = (sum(&counts.written), sum(std::slice::from_ref(&counts.grants)));
    let (stale, retried) = (&counts.stale, &counts.retried);
    println!(
        "{guard:?}, {level:?}: {grants} grants, {written} writes, {stale:?} stale, {retried:?} retried"
    );
    ensure(written > 0 && stale.load(Ordering::SeqCst) > 0, || "no write, or no stale one".into())
}

/// The invariants of the rows, between any two steps.
async fn is_consistent(admin: &Client) -> Verdict {
    let begin = "SET search_path = fencelock; BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    admin.batch_execute(begin).await.unwrap();
    let mut rows = Vec::new();
    for query in QUERIES {
        rows.push(admin.query(query, &[]).await.unwrap());
    }
    admin.batch_execute("COMMIT; RESET search_path").await.unwrap();
    let state = State::of(0, &rows)?;
    let permits = |lock: &LockState| {
        let permits = lock.grants().into_iter().filter(|grant| grant.mode == 'p');
        permits.map(|grant| grant.n).sum::<i64>()
    };
    let most = state.locks.values().map(permits).max().unwrap_or(0);
    ensure(most <= 2, || format!("{most} permits of 2"))
}

struct ClientOf {
    sql: Client,
    guard: Guard,
    level: IsolationLevel,
    number: usize,
    counts: Arc<Counts>,
}

impl ClientOf {
    async fn work(&mut self) -> Verdict {
        let mut rng = StdRng::seed_from_u64(u64::try_from(self.number).unwrap());
        while !self.counts.ended.load(Ordering::SeqCst) {
            let ttl = *[8_000, 16_000, LONG, LONG].choose(&mut rng).unwrap();
            let first = Held::new(&mut rng, self.guard, ttl);
            let Some(first) = self.acquire(first).await? else { continue };
            let mut held = vec![first];
            let second = Held::new(&mut rng, self.guard, ttl);
            if second.lock != held[0].lock && rng.random_range(0..2) == 0 {
                held.extend(self.try_once(second).await?);
            }
            for _ in 0..rng.random_range(1..4) {
                // In any order, as all that follows.
                held.shuffle(&mut rng);
                if rng.random_range(0..3) == 0 {
                    self.renew(&held).await?;
                }
                let pause = Duration::from_millis(*[0, 0, 0, 25].choose(&mut rng).unwrap());
                if !self.use_it(&held[0], pause).await? {
                    break;
                }
            }
            // One that crashed releases nothing.
            if ttl == LONG || rng.random_range(0..4) > 0 {
                self.release(&held).await?;
            }
        }
        Ok(())
    }

    /// Waits for it; None when it is not granted in time.
    async fn acquire(&self, claim: Held) -> Result<Option<Held>, String> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            // In a batch, and alone if another step is at the lock.
            let mut token =
                self.batch(&[('a', &claim)], true).await?.map_or(-1, |replies| replies[0]);
            if token == -2 {
                let sql = "SELECT fencelock.attempt_1(
                  $1, $2, $3, 1, 2, $4, $5, '', true, $6, true)";
                let (key, mode) = (claim.key(), char_of(claim.mode));
                let (process, tokens) = (self.process(), claim.tokens());
                let params: Params<'_> =
                    &[&key, &claim.owner, &mode, &claim.ttl, &process, &tokens];
                token = self.ask(sql, params).await?.map_or(-1, |rows| rows[0].get(0));
            }
            if token > 0 {
                self.counts.grants.fetch_add(1, Ordering::SeqCst);
                return Ok(Some(Held { token, ..claim }));
            }
            let sql = "SELECT FROM fencelock.look_1($1, ARRAY[$2::bytea], ARRAY[]::uuid[])";
            self.ask(sql, &[&self.process(), &claim.key()]).await?;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        self.release(&[claim]).await?;
        Ok(None)
    }

    async fn try_once(&self, claim: Held) -> Result<Option<Held>, String> {
        let token = self.batch(&[('a', &claim)], false).await?.map_or(0, |replies| replies[0]);
        Ok((token > 0).then_some(Held { token, ..claim }))
    }

    /// In one batch; alone what another step was at.
    async fn release(&self, held: &[Held]) -> Verdict {
        let steps: Vec<_> = held.iter().map(|held| ('r', held)).collect();
        let replies = self.batch(&steps, false).await?.unwrap_or(vec![-2; held.len()]);
        for (held, _) in held.iter().zip(replies).filter(|(_, reply)| *reply == -2) {
            self.ask("SELECT fencelock.release_1($1, $2)", &[&held.key(), &held.owner]).await?;
        }
        Ok(())
    }

    async fn renew(&self, held: &[Held]) -> Verdict {
        let keys: Vec<_> = held.iter().map(Held::key).collect();
        let owners: Vec<_> = held.iter().map(|held| held.owner).collect();
        let ttls: Vec<_> = held.iter().map(|held| held.ttl).collect();
        self.ask("SELECT fencelock.renew_1($1, $2, $3, false)", &[&keys, &owners, &ttls])
            .await
            .map(drop)
    }

    async fn batch(
        &self,
        steps: &[(char, &Held)],
        queue: bool,
    ) -> Result<Option<Vec<i64>>, String> {
        let letters: Vec<_> = steps.iter().map(|(step, _)| char_of(*step)).collect();
        let keys: Vec<_> = steps.iter().map(|(_, held)| held.key()).collect();
        let owners: Vec<_> = steps.iter().map(|(_, held)| held.owner).collect();
        let modes: Vec<_> = steps.iter().map(|(_, held)| char_of(held.mode)).collect();
        let ttls: Vec<_> = steps.iter().map(|(_, held)| held.ttl).collect();
        let (ones, twos) = (vec![1_i64; steps.len()], vec![2_i64; steps.len()]);
        let tokens: Vec<_> = steps.iter().map(|(_, held)| held.tokens()).collect();
        let queues = vec![queue; steps.len()];
        let labels = vec![Vec::<u8>::new(); steps.len()];
        let process = self.process();
        let params: Params<'_> = &[
            &letters, &keys, &owners, &modes, &ones, &twos, &ttls, &labels, &queues, &tokens,
            &process,
        ];
        let sql = "SELECT reply FROM fencelock.batch_1(
          $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) WHERE at > 0 ORDER BY at";
        let rows = self.ask(sql, params).await?;
        Ok(rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()))
    }

    fn process(&self) -> String {
        format!("fl_{:016x}", self.number)
    }

    /// None when the transaction has to be repeated.
    async fn ask(&self, sql: &str, params: Params<'_>) -> Result<Option<Vec<Row>>, String> {
        match self.sql.query(sql, params).await {
            Ok(rows) => Ok(Some(rows)),
            Err(error) => self.may_repeat(&text_of(&error)).map(|()| None),
        }
    }

    fn may_repeat(&self, error: &str) -> Verdict {
        // The second on a machine that is very busy.
        let may = error.starts_with("40001") || error.starts_with("55P03");
        ensure(may, || error.to_owned())?;
        self.counts.retried.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// A user's transaction. False when the token is stale.
    async fn use_it(&mut self, held: &Held, pause: Duration) -> Result<bool, String> {
        // The client does not look at its lease.
        if held.token % 2 == 0 {
            tokio::time::sleep(pause).await;
        }
        match self.transaction(held, pause).await {
            Ok(()) if held.mode != 'x' => Ok(true),
            Ok(()) => {
                self.counts.written[usize::from(held.lock)].fetch_add(1, Ordering::SeqCst);
                Ok(true)
            }
            Err(error) if error.starts_with("FL001") => {
                self.counts.stale.fetch_add(1, Ordering::SeqCst);
                Ok(false)
            }
            Err(error) => self.may_repeat(&error).map(|()| true),
        }
    }

    async fn transaction(&mut self, held: &Held, pause: Duration) -> Verdict {
        let (lock, key) = (i32::from(held.lock), held.key());
        let transaction = self.sql.build_transaction().isolation_level(self.level).start().await;
        let transaction = transaction.map_err(|error| text_of(&error))?;
        let read = "SELECT value FROM register WHERE lock = $1";
        let done = async {
            if self.guard == Guard::CheckToken {
                // Either of those that are reserved.
                let token = held.token + i64::from(held.lock % 2);
                transaction
                    .query("SELECT fencelock.check_token($1, $2, 10000)", &[&key, &token])
                    .await?;
            } else {
                transaction.query("SELECT fencelock.fence($1, $2)", &[&key, &held.token]).await?;
            }
            let value: i64 = transaction.query_one(read, &[&lock]).await?.get(0);
            tokio::time::sleep(pause).await;
            let mut again = value;
            if held.mode != 'x' {
                again = transaction.query_one(read, &[&lock]).await?.get(0);
            } else {
                let write = "UPDATE register SET value = $2 WHERE lock = $1";
                transaction.execute(write, &[&lock, &(value + 1)]).await?;
            }
            transaction.commit().await.map(|()| again == value)
        };
        match done.await {
            Ok(is_same) => {
                ensure(is_same, || "written while a reader or a permit held the lock".into())
            }
            Err(error) => Err(text_of(&error)),
        }
    }
}

/// A claim, with its token once it holds.
#[derive(Debug, Clone)]
struct Held {
    lock: u8,
    owner: Uuid,
    mode: char,
    ttl: i64,
    token: i64,
}

impl Held {
    /// How many it reserves, in one of four several: their transactions wait for each other, which would
    /// hide a wrong check.
    fn tokens(&self) -> i32 {
        if self.owner.as_u128().is_multiple_of(4) { 2 } else { 1 }
    }

    fn new(rng: &mut StdRng, guard: Guard, ttl: i64) -> Held {
        // Tokens of readers and permits only name the grant, so a fence is not for them.
        let modes = if guard == Guard::CheckToken { "xxxsp" } else { "x" };
        let mode = modes.chars().choose(rng).unwrap();
        let (lock, owner) = (rng.random_range(0..LOCKS), Uuid::from_u128(rng.random()));
        Held { lock, owner, mode, ttl, token: 0 }
    }

    fn key(&self) -> Vec<u8> {
        vec![self.lock]
    }
}
