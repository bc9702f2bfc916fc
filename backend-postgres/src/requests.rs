//! The requests of claims that may share a call, their arguments and their answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Claim, IfBusy, Mode, Result};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::{ConnectOptions, Session};
use crate::error::{ROW_IS_TAKEN, protocol_error};
use crate::statements::Function;

/// A request about one lock.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Attempt(Attempt),
    Release(Owned),
    Renew(Owned, i64),
    Look(Look),
}

/// A lock's key and the owner of a claim for it.
#[derive(Clone)]
pub(crate) struct Owned {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Uuid,
}

/// Without the owner, which proves ownership.
impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The arguments of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) of: Owned,
    pub(crate) mode: i8,
    pub(crate) permits: i64,
    pub(crate) limit: i64,
    pub(crate) ttl: i64,
    pub(crate) label: Vec<u8>,
    pub(crate) queues: bool,
    pub(crate) tokens: i32,
}

/// A check of one lock's waiters.
#[derive(Clone)]
pub(crate) struct Look {
    pub(crate) key: Vec<u8>,
    /// The owners of some of the waiters.
    pub(crate) sample: Vec<Uuid>,
}

/// Without the owners.
impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Attempt {
    pub(crate) fn of(claim: &Claim, of: Owned) -> Attempt {
        let (permits, limit) = match claim.mode() {
            Mode::Permits(permits) => (permits.n(), permits.limit()),
            _ => (1, 1),
        };
        Attempt {
            of,
            mode: letter(claim.mode()),
            permits: permits.into(),
            limit: limit.into(),
            ttl: micros(claim.ttl()),
            label: claim.label().as_str().as_bytes().to_vec(),
            queues: claim.if_busy() == IfBusy::Queue,
            tokens: claim.local_handoffs().try_into().unwrap_or(i32::MAX),
        }
    }
}

/// The mode as the server writes it, a `"char"`.
fn letter(mode: Mode) -> i8 {
    match mode {
        Mode::Exclusive => b'x' as i8,
        Mode::Shared => b's' as i8,
        Mode::Permits(_) => b'p' as i8,
    }
}

/// Rounded up: a lease must not end before its validity.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX / 2).min(i64::MAX / 2)
}

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To an attempt: a token; 0, that the lock is busy; or less, the time until the look of a waiter, in ms.
    Attempt(i64),
    /// To a release, and a renewal: whether it was there.
    There(bool),
    /// To a look.
    Look(Seen),
}

/// The step is to be repeated: another one has the row; or what it did has not waited for the disk, since it has
/// notified others.
pub(crate) const REPEAT: i64 = -2;

impl Request {
    /// Sends it alone; a patient one waits for other steps of the same lock. `None`: it is to be repeated.
    pub(crate) async fn send(
        &self,
        session: &Session,
        options: &ConnectOptions,
        patient: bool,
    ) -> Result<Option<Answer>> {
        let answers = match self {
            Request::Attempt(it) => {
                let arguments: [&(dyn ToSql + Sync); 11] = [
                    &it.of.key,
                    &it.of.owner,
                    &it.mode,
                    &it.permits,
                    &it.limit,
                    &it.ttl,
                    &options.channel,
                    &it.label,
                    &it.queues,
                    &it.tokens,
                    &patient,
                ];
                let rows = session.call(options, Function::Attempt, &arguments).await?;
                let reply = column(&rows, 0, "attempt_1")?;
                return Ok((reply != REPEAT).then_some(Answer::Attempt(reply)));
            }
            Request::Release(of) if patient => {
                let rows = session.call(options, Function::Release, &[&of.key, &of.owner]).await?;
                let count: i32 = column(&rows, 0, "release_1")?;
                return Ok(Some(Answer::There(count > 0)));
            }
            Request::Release(_) => steps(session, options, &[self]).await?,
            Request::Renew(of, ttl) => renew(session, options, &[(of, *ttl)], patient).await?,
            Request::Look(it) => {
                return look(session, options, &[it]).await.map(Answer::Look).map(Some);
            }
        };
        Ok(answers.into_iter().next().flatten())
    }
}

/// Renews leases; the answers in their order, `None` for one that is to be repeated. A patient call waits for
/// other steps of the same locks.
pub(crate) async fn renew(
    session: &Session,
    options: &ConnectOptions,
    leases: &[(&Owned, i64)],
    patient: bool,
) -> Result<Vec<Option<Answer>>> {
    let keys: Vec<&[u8]> = leases.iter().map(|(of, _)| of.key.as_slice()).collect();
    let owners: Vec<Uuid> = leases.iter().map(|(of, _)| of.owner).collect();
    let ttls: Vec<i64> = leases.iter().map(|(_, ttl)| *ttl).collect();
    let rows = session.call(options, Function::Renew, &[&keys, &owners, &ttls, &patient]).await?;
    let mut tried = HashMap::new();
    for row in &rows {
        tried.insert(read::<Uuid>(row, 0, "renew_1")?, read::<bool>(row, 1, "renew_1")?);
    }
    let answer = |owner| match tried.get(owner) {
        Some(true) => Some(Answer::There(true)),
        Some(false) => None,
        None => Some(Answer::There(false)),
    };
    Ok(owners.iter().map(answer).collect())
}

/// Waiters of this process, and what a look says of each: in how many ms it is to attempt, or [`MISSING`].
pub(crate) type Seen = Arc<HashMap<Uuid, i32>>;

/// Of a waiter: it is in no queue.
pub(crate) const MISSING: i32 = -1;

/// Whether it waited for a row in vain.
pub(crate) fn is_in_vain<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.message().starts_with(ROW_IS_TAKEN))
}

/// Checks the waiters of several locks; the answer has those of all.
pub(crate) async fn look(
    session: &Session,
    options: &ConnectOptions,
    looks: &[&Look],
) -> Result<Seen> {
    let keys: Vec<&[u8]> = looks.iter().map(|look| look.key.as_slice()).collect();
    let sample: Vec<Uuid> = looks.iter().flat_map(|look| look.sample.iter().copied()).collect();
    let rows = session.call(options, Function::Look, &[&options.channel, &keys, &sample]).await?;
    let seen = rows.iter().map(|row| Ok((read(row, 0, "look_1")?, read(row, 1, "look_1")?)));
    seen.collect::<Result<HashMap<_, _>>>().map(Arc::new)
}

/// Makes the steps of several claims, attempts and releases; the answers in their order, `None` for
/// a step that is to be repeated.
pub(crate) async fn steps(
    session: &Session,
    options: &ConnectOptions,
    steps: &[&Request],
) -> Result<Vec<Option<Answer>>> {
    let mut columns = Columns::default();
    steps.iter().for_each(|step| columns.push(step));
    let arguments: [&(dyn ToSql + Sync); 11] = [
        &columns.steps,
        &columns.keys,
        &columns.owners,
        &columns.modes,
        &columns.permits,
        &columns.limits,
        &columns.ttls,
        &columns.labels,
        &columns.queues,
        &columns.tokens,
        &options.channel,
    ];
    let rows = session.call(options, Function::Batch, &arguments).await?;
    let (of_steps, more) = rows.split_at_checked(steps.len()).unwrap_or((&[], &rows));
    let settled = match more {
        [] => true,
        [row] if read::<i32>(row, 0, "batch_1")? == 0 => false,
        _ => return Err(protocol_error("batch_1")),
    };
    let mut answers = vec![None; steps.len()];
    for row in of_steps {
        let (at, reply): (i32, i64) = (read(row, 0, "batch_1")?, read(row, 1, "batch_1")?);
        let at = usize::try_from(at).ok().and_then(|at| at.checked_sub(1));
        let place = at.and_then(|at| Some((steps.get(at)?, answers.get_mut(at)?)));
        let (step, answer) = place.ok_or_else(|| protocol_error("batch_1"))?;
        *answer = match step {
            _ if reply == REPEAT => None,
            // A release among them has notified a waiter, so that none has waited for the disk.
            Request::Attempt(_) if reply > 0 && !settled => None,
            Request::Attempt(_) => Some(Answer::Attempt(reply)),
            _ => Some(Answer::There(reply > 0)),
        };
    }
    Ok(answers)
}

/// The arguments of `batch_1`.
#[derive(Default)]
struct Columns<'a> {
    steps: Vec<i8>,
    keys: Vec<&'a [u8]>,
    owners: Vec<Uuid>,
    modes: Vec<i8>,
    permits: Vec<i64>,
    limits: Vec<i64>,
    ttls: Vec<i64>,
    labels: Vec<&'a [u8]>,
    queues: Vec<bool>,
    tokens: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, step: &'a Request) {
        let (of, attempt) = match step {
            Request::Attempt(attempt) => (&attempt.of, Some(attempt)),
            Request::Release(of) | Request::Renew(of, _) => (of, None),
            Request::Look(_) => return,
        };
        self.steps.push(if attempt.is_some() { b'a' as i8 } else { b'r' as i8 });
        self.keys.push(&of.key);
        self.owners.push(of.owner);
        self.modes.push(attempt.map_or(b'x' as i8, |it| it.mode));
        self.permits.push(attempt.map_or(1, |it| it.permits));
        self.limits.push(attempt.map_or(1, |it| it.limit));
        self.ttls.push(attempt.map_or(0, |it| it.ttl));
        self.labels.push(attempt.map_or(&[], |it| &it.label));
        self.queues.push(attempt.is_some_and(|it| it.queues));
        self.tokens.push(attempt.map_or(1, |it| it.tokens));
    }
}

/// A column of the only row.
pub(crate) fn column<T: for<'a> tokio_postgres::types::FromSql<'a>>(
    rows: &[Row],
    at: usize,
    function: &str,
) -> Result<T> {
    rows.first().map_or_else(|| Err(protocol_error(function)), |row| read(row, at, function))
}

pub(crate) fn read<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    at: usize,
    function: &str,
) -> Result<T> {
    row.try_get(at).map_err(|_| protocol_error(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up() {
        for (time, us) in [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(5), 5_000),
            (Duration::MAX, i64::MAX / 2),
        ] {
            assert_eq!(micros(time), us, "{time:?}");
        }
    }
}
