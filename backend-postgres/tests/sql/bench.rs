//! A schema of a test's own, in which the time stands until it is advanced, and calls of its
//! functions.

use std::fmt::Debug;

use tokio::runtime::Runtime;
use tokio_postgres::{Config, Row};
use uuid::Uuid;

use super::Verdict;
use super::claim::{Claim, LONG, char_of};
use super::session::{Note, Params, Session};
use super::state::{QUERIES, State};

/// The beginning of the time.
pub(crate) const START: i64 = 1_700_000_000_000_000;
pub(crate) const CLIENTS: u128 = 5;

/// A call of one function, without its repetition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Attempt { claim: Claim, queue: bool },
    Release(Claim),
    Renew(Vec<Claim>, i64),
    Downgrade(Claim, i64),
    Look { process: String, keys: Vec<Vec<u8>>, sample: Vec<Uuid> },
    Evict { key: Vec<u8>, id: String },
    Batch(Vec<Step>),
}

/// A step of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Attempt { claim: Claim, queue: bool },
    Release(Claim),
}

/// The reply to a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// What the function returned.
    pub(crate) number: i64,
    /// Of a renewal or a look: owners, and in how many ms to look again.
    pub(crate) owners: Vec<(Uuid, i32)>,
    /// Of a batch, in the order of its steps.
    pub(crate) steps: Vec<i64>,
}

pub(crate) struct Bench {
    pub(crate) runtime: std::sync::Arc<Runtime>,
    pub(crate) config: Config,
    /// Its search path is the schema. A wait for a lock is an error.
    pub(crate) main: Session,
    /// For transactions of users, which end within 20 s, or are ended.
    pub(crate) other: Session,
    /// Asks and sets the time while the others wait.
    pub(crate) third: Session,
    /// The server process of `main`.
    pub(crate) main_pid: i32,
    pub(crate) calls: u64,
    now: i64,
}

impl Bench {
    /// `script` as of [`schema::script`](fencelock_postgres::schema::script), for the schema
    /// `fencelock`.
    pub(crate) fn new(runtime: &std::sync::Arc<Runtime>, config: &Config, script: &str) -> Bench {
        // On a busy machine a wait that a test wants may take longer.
        let script = &script.replace("lock_timeout = 200", "lock_timeout = 1000");
        let main = Session::new(runtime.handle(), config);
        main.run("DROP SCHEMA IF EXISTS fencelock CASCADE; DROP SCHEMA IF EXISTS real CASCADE")
            .unwrap();
        let real = script.replace("\"fencelock\"", "\"real\"").replace("'fencelock'", "'real'");
        main.run(&real).unwrap();
        main.run(script).unwrap();
        main.run(&format!(
            "CREATE SEQUENCE fencelock.clock START {START};
             SELECT nextval('fencelock.clock');
             CREATE OR REPLACE FUNCTION fencelock.us() RETURNS bigint LANGUAGE sql VOLATILE
               AS $$ SELECT last_value FROM fencelock.clock $$;
             SET search_path = fencelock; SET lock_timeout = '1s'"
        ))
        .unwrap();
        for client in 0..CLIENTS {
            main.run(&format!("LISTEN fl_{client:016x}")).unwrap();
        }
        let [other, third] = [(); 2].map(|()| {
            let session = Session::new(runtime.handle(), config);
            session.run("SET search_path = fencelock; SET lock_timeout = '20s'").unwrap();
            session
        });
        let (runtime, config) = (runtime.clone(), config.clone());
        let main_pid = main.pid();
        Bench { runtime, config, main, other, third, main_pid, calls: 0, now: START }
    }

    /// Without rows, at the beginning of the time.
    pub(crate) fn reset(&mut self) {
        // A test that failed may have left one open.
        self.other.run("ROLLBACK").unwrap();
        let clear = ["locks", "claims", "processes", "cells", "fences", "turns"]
            .map(|table| format!("DELETE FROM {table};"));
        self.main.run(&format!("ROLLBACK; {}", clear.concat())).unwrap();
        self.main.take_notes();
        self.set_time(START);
    }

    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    pub(crate) fn set_time(&mut self, now: i64) {
        self.now = now;
        self.third.query("SELECT setval('clock', $1)", &[&now]).unwrap();
    }

    /// By us.
    pub(crate) fn advance(&mut self, us: i64) {
        self.set_time(self.now + us);
    }

    /// The state after the call, and what its reply and notifications are.
    pub(crate) fn call(&mut self, call: &Call) -> Result<(Reply, Vec<Note>, State), String> {
        self.calls += 1;
        let (rows, read) = self.repeated(call)?;
        let reply = match call {
            Call::Renew(..) | Call::Look { .. } => {
                let owners = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                Reply { owners, ..Reply::default() }
            }
            Call::Batch(steps) => {
                let mut replies: Vec<(i32, i64)> =
                    rows.iter().map(|row| (row.get(1), row.get(0))).collect();
                replies.sort_unstable();
                let places = replies.iter().map(|(place, ..)| *place);
                let expected = 1..=i32::try_from(steps.len()).unwrap();
                ensure(places.eq(expected), || format!("the places are {replies:?}"))?;
                let steps = replies.into_iter().map(|(_, reply)| reply).collect();
                Reply { steps, ..Reply::default() }
            }
            _ => Reply { number: rows[0].get(0), ..Reply::default() },
        };
        Ok((reply, self.main.take_notes(), State::of(self.now, &read)?))
    }

    /// The rows of the reply, and the state; a step that asks for it is repeated.
    fn repeated(&self, call: &Call) -> Result<(Vec<Row>, Vec<Vec<Row>>), String> {
        let (mut rows, mut read) = self.once(call)?;
        match call {
            Call::Batch(steps) if rows.last().is_some_and(|row| row.get::<_, i32>(1) == 0) => {
                rows.pop();
                rows.sort_by_key(|row| row.get::<_, i32>(1));
                let of_grant = |(step, row): (&Step, &Row)| {
                    let token: i64 = row.get(0);
                    let is_attempt = matches!(step, Step::Attempt { .. });
                    (is_attempt && token > 0).then(|| (step.clone(), token))
                };
                let (granted, tokens): (Vec<_>, Vec<_>) =
                    steps.iter().zip(&rows).filter_map(of_grant).unzip();
                let (mut confirmed, state) = self.once(&Call::Batch(granted))?;
                confirmed.sort_by_key(|row| row.get::<_, i32>(1));
                let confirmed: Vec<i64> = confirmed.iter().map(|row| row.get(0)).collect();
                equal("the tokens of the repetition", &confirmed, &tokens)?;
                read = state;
            }
            Call::Attempt { .. } | Call::Downgrade(..) if rows[0].get::<_, i64>(0) == -2 => {
                (rows, read) = self.once(call)?;
            }
            _ => {}
        }
        Ok((rows, read))
    }

    fn once(&self, call: &Call) -> Result<(Vec<Row>, Vec<Vec<Row>>), String> {
        match call {
            Call::Attempt { claim, queue } => self.with_state(
                "SELECT attempt_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, true)",
                &[
                    &claim.key,
                    &claim.owner,
                    &char_of(claim.mode),
                    &claim.n,
                    &claim.limit,
                    &claim.ttl,
                    &claim.process,
                    &claim.owner.as_bytes().as_slice(),
                    queue,
                    &claim.tokens,
                ],
            ),
            Call::Release(claim) => {
                self.with_state("SELECT release_1($1, $2)::bigint", &[&claim.key, &claim.owner])
            }
            Call::Renew(claims, ttl) => {
                let keys: Vec<_> = claims.iter().map(|claim| &claim.key).collect();
                let owners: Vec<_> = claims.iter().map(|claim| claim.owner).collect();
                let ttls = vec![ttl; claims.len()];
                let sql = "SELECT owner, 0 FROM renew_1($1, $2, $3, true)";
                self.with_state(sql, &[&keys, &owners, &ttls])
            }
            Call::Downgrade(claim, ttl) => self.with_state(
                "SELECT downgrade_1($1, $2, $3)::bigint",
                &[&claim.key, &claim.owner, ttl],
            ),
            Call::Look { process, keys, sample } => self.with_state(
                "SELECT owner, again FROM look_1($1, $2, $3)",
                &[process, keys, sample],
            ),
            Call::Evict { key, id } => {
                self.with_state("SELECT evict_1($1, $2)::bigint", &[key, id])
            }
            Call::Batch(steps) => self.batch(steps),
        }
    }

    fn batch(&self, steps: &[Step]) -> Result<(Vec<Row>, Vec<Vec<Row>>), String> {
        let of = |step: &Step| match step {
            Step::Attempt { claim, queue } => ('a', claim.clone(), *queue),
            Step::Release(claim) => ('r', claim.clone(), false),
        };
        let all: Vec<_> = steps.iter().map(of).collect();
        let letters: Vec<_> = all.iter().map(|(step, ..)| char_of(*step)).collect();
        let keys: Vec<_> = all.iter().map(|(_, claim, _)| claim.key.clone()).collect();
        let owners: Vec<_> = all.iter().map(|(_, claim, _)| claim.owner).collect();
        let modes: Vec<_> = all.iter().map(|(_, claim, _)| char_of(claim.mode)).collect();
        let ns: Vec<_> = all.iter().map(|(_, claim, _)| claim.n).collect();
        let limits: Vec<_> = all.iter().map(|(_, claim, _)| claim.limit).collect();
        let ttls: Vec<_> = all.iter().map(|(_, claim, _)| claim.ttl).collect();
        let labels: Vec<_> =
            all.iter().map(|(_, claim, _)| claim.owner.as_bytes().to_vec()).collect();
        let queues: Vec<_> = all.iter().map(|(_, _, queue)| *queue).collect();
        let tokens: Vec<_> = all.iter().map(|(_, claim, _)| claim.tokens).collect();
        // One process's, as that of a driver.
        let process = &all[0].1.process;
        let sql = "SELECT reply, at FROM batch_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        self.with_state(
            sql,
            &[
                &letters, &keys, &owners, &modes, &ns, &limits, &ttls, &labels, &queues, &tokens,
                process,
            ],
        )
    }

    fn with_state(
        &self,
        sql: &str,
        params: Params<'_>,
    ) -> Result<(Vec<Row>, Vec<Vec<Row>>), String> {
        let [locks, claims, processes] = QUERIES;
        let queries = [(sql, params), (locks, &[]), (claims, &[]), (processes, &[])];
        let mut all = self.main.pipeline(&queries)?;
        let read = all.split_off(1);
        Ok((all.remove(0), read))
    }

    pub(crate) fn state(&self) -> Result<State, String> {
        let queries = QUERIES.map(|sql| (sql, [].as_slice()));
        State::of(self.now, &self.main.pipeline(&queries)?)
    }

    /// The number that a function returns.
    pub(crate) fn number(&mut self, call: &Call) -> Result<i64, String> {
        Ok(self.call(call)?.0.number)
    }

    /// Attempts, which must acquire; returns the token.
    pub(crate) fn acquire(&mut self, claim: &Claim) -> Result<i64, String> {
        let token = self.attempt(claim)?;
        ensure(token > 0, || format!("{claim:?} was not granted: {token}"))?;
        Ok(token)
    }

    pub(crate) fn attempt(&mut self, claim: &Claim) -> Result<i64, String> {
        self.number(&Call::Attempt { claim: claim.clone(), queue: true })
    }

    /// Attempts, which must queue.
    pub(crate) fn queue(&mut self, claim: &Claim) -> Verdict {
        ensure_queued("the reply to a waiter", self.attempt(claim)?)
    }

    pub(crate) fn try_once(&mut self, claim: &Claim) -> Result<i64, String> {
        self.number(&Call::Attempt { claim: claim.clone(), queue: false })
    }

    pub(crate) fn release(&mut self, claim: &Claim) -> Result<i64, String> {
        self.number(&Call::Release(claim.clone()))
    }

    pub(crate) fn renews(&mut self, claim: &Claim) -> Result<bool, String> {
        Ok(!self.call(&Call::Renew(vec![claim.clone()], LONG))?.0.owners.is_empty())
    }

    /// The look of the process of `claim`.
    pub(crate) fn look(
        &mut self,
        claim: &Claim,
        sample: &[Uuid],
    ) -> Result<Vec<(Uuid, i32)>, String> {
        let (process, keys) = (claim.process.clone(), vec![claim.key.clone()]);
        Ok(self.call(&Call::Look { process, keys, sample: sample.to_vec() })?.0.owners)
    }

    /// Waits until `session` waits for a lock of another one.
    pub(crate) fn until_it_waits(&self, session: i32) -> Verdict {
        let start = std::time::Instant::now();
        let sql = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1";
        while start.elapsed() < std::time::Duration::from_secs(10) {
            let rows = self.third.query(sql, &[&session])?;
            if rows.first().and_then(|row| row.get(0)) == Some(true) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Err("it does not wait".into())
    }
}

/// A reply to an attempt must tell a waiter when to look.
pub(crate) fn ensure_queued(what: &str, reply: i64) -> Verdict {
    ensure((-1000..=-20).contains(&reply), || format!("{what}: {reply}"))
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

pub(crate) fn equal<T: PartialEq + Debug>(what: &str, is: &T, expected: &T) -> Verdict {
    ensure(is == expected, || format!("{what} is {is:?}, not {expected:?}"))
}
