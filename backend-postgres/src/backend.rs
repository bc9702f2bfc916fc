//! The backend: renewals, checks of waiters, `inspect` and `evict`.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::batching::{BatchTransport, Priority};
use fencelock_core::{
    Acquisition, Cells, Check, Claim, Clock, DistributedLock, ErrorKind, FencingToken, Label,
    LockName, Mode, Participant, ParticipantId, Permits, Profile, ReleaseOutcome, RenewOutcome,
    Result, Scratch, Snapshot, WaiterCheck,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::acquisition::PostgresAcquisition;
use crate::error::protocol_error;
use crate::requests::{Answer, Look, MISSING, Owned, Request, Seen, column, read};
use crate::schema;
use crate::statements::Function;
use crate::store::Store;

/// How many waiters of one lock a look asks about, until one is missing: the loss of a queue affects all of them.
const SAMPLE: usize = 8;

impl DistributedLock for Store {
    type Acquisition = PostgresAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> PostgresAcquisition {
        PostgresAcquisition::new(self.clone(), claim)
    }

    async fn renew(&self, held: &PostgresAcquisition) -> Result<RenewOutcome> {
        held.renew().await
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&PostgresAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let priority = Claim::check_priority(waiting.iter().map(|it| it.claim()));
        let mut seen = self.look(lock, sample(waiting), priority).await?;
        let is_missing =
            |waiter: &&PostgresAcquisition| seen.get(&waiter.owner()) == Some(&MISSING);
        if waiting.len() > SAMPLE && waiting.iter().any(is_missing) {
            // The queue was lost, such as while this process was stopped: others took it for dead.
            let all = waiting.iter().map(|waiter| waiter.owner()).collect();
            seen = self.look(lock, all, priority).await.unwrap_or(seen);
        }
        let result_for = |waiter: &&PostgresAcquisition| match seen.get(&waiter.owner()) {
            Some(&(0 | MISSING)) => WaiterCheck::Attempt,
            Some(&ms) => {
                WaiterCheck::Again(self.check_after(u64::try_from(ms).unwrap_or(0), waiter.begun))
            }
            None => WaiterCheck::Again(self.check_again(waiter.begun)),
        };
        let results = waiting.iter().map(result_for).collect();
        for (owner, _) in seen.iter().filter(|(_, ms)| **ms == 0) {
            // The next look repeats it. What this one says of the others is not lost with it.
            if self.release_if_stray(lock, *owner).await.is_err() {
                break;
            }
        }
        Ok(results)
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        snapshot(&self.call_apart(Function::Inspect, name).await?)
    }

    async fn inspect_holders(&self, name: &LockName) -> Result<Snapshot> {
        match self.call_apart(Function::Holders, name).await {
            Err(error) if error.kind() == ErrorKind::Refused => self.inspect(name).await,
            rows => snapshot(&rows?),
        }
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let key = name.key().as_bytes();
        let rows = self.call(Function::Evict, &[&key, &who.as_str()]).await?;
        let count: i32 = column(&rows, 0, "evict_1")?;
        Ok(if count > 0 { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    fn check(&self, name: &LockName, token: FencingToken, within: Duration) -> Option<Check> {
        let sql = schema::check_statement(&self.server.options.schema);
        let token = i64::try_from(token.get()).ok()?;
        Some(Check::new(sql, name.key().as_bytes(), token, within))
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        loop {
            let rows = self.call(Function::Clear, &[&scratch.prefix().as_bytes()]).await?;
            let count: i64 = column(&rows, 0, "clear_1")?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn stop_attempts(&self) {
        self.server.batcher().stop_attempts();
    }

    async fn close(&self) -> Result<()> {
        self.server.session.close();
        Ok(())
    }
}

impl Store {
    /// What a look at the lock says of waiters of this process, those of `sample` among them.
    async fn look(&self, lock: &LockName, sample: Vec<Uuid>, priority: Priority) -> Result<Seen> {
        let key = lock.key().as_bytes().to_vec();
        match self.server.ask(Request::Look(Look { key, sample }), priority).await? {
            Answer::Look(seen) => Ok(seen),
            _ => Err(protocol_error("look_1")),
        }
    }

    /// Releases a grant to a claim of this client that has ended: an attempt that arrived after the
    /// claim's release made it.
    async fn release_if_stray(&self, lock: &LockName, owner: Uuid) -> Result<()> {
        if self.notifications.claims.contains(&owner) {
            return Ok(());
        }
        let key = lock.key().as_bytes().to_vec();
        self.server.ask(Request::Release(Owned { key, owner }), Priority::Held).await.map(drop)
    }
}

/// The oldest of `waiting`, which every loss of the queue affects, and some others.
fn sample(waiting: &[&PostgresAcquisition]) -> Vec<Uuid> {
    let mut all: Vec<_> = waiting.iter().map(|it| (it.claim().id(), it.owner())).collect();
    all.sort_unstable_by_key(|(id, _)| *id);
    let step = all.len().div_ceil(SAMPLE).max(1);
    all.into_iter().step_by(step).map(|(_, owner)| owner).collect()
}

fn snapshot(rows: &[Row]) -> Result<Snapshot> {
    let mut seen = Snapshot::default();
    for row in rows {
        let (participant, holds) = participant(row)?;
        if holds {
            seen.holders.push(participant);
        } else {
            seen.waiters.push(participant);
        }
    }
    Ok(seen)
}

/// A row of `inspect_1` or `holders_1`, and whether it holds.
fn participant(row: &Row) -> Result<(Participant, bool)> {
    const NAME: &str = "inspect_1";
    let (id, holds): (String, bool) = (read(row, 0, NAME)?, read(row, 1, NAME)?);
    let (mode, permits, limit): (i8, i64, i64) =
        (read(row, 2, NAME)?, read(row, 3, NAME)?, read(row, 4, NAME)?);
    let (label, token, since): (Option<Vec<u8>>, Option<i64>, Option<i64>) =
        (read(row, 5, NAME)?, read(row, 6, NAME)?, read(row, 7, NAME)?);
    let mode = match mode as u8 {
        b'x' => Mode::Exclusive,
        b's' => Mode::Shared,
        _ => {
            let number = |number: i64| u32::try_from(number).unwrap_or(0);
            let permits = Permits::new(number(permits), number(limit));
            Mode::Permits(permits.map_err(|_| protocol_error(NAME))?)
        }
    };
    let mut participant = Participant::new(ParticipantId::new(id), mode);
    if let Some(label) = label {
        participant = participant.labelled(Label::new(&String::from_utf8_lossy(&label)));
    }
    if let Some(since) = since.and_then(|us| u64::try_from(us).ok()) {
        participant = participant.since(Duration::from_micros(since));
    }
    if let (true, Some(token)) = (holds, token.and_then(|token| u64::try_from(token).ok())) {
        participant = participant.token(FencingToken::new(token));
    }
    Ok((participant, holds))
}
