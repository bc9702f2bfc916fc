//! A complete store of your own, and the suite that checks it:
//! `cargo run -p fencelock-conformance --example own_store`.
//!
//! Holders and waiters are rows of a table, as in a database: one row for each claim, in order of
//! arrival. Each method changes the table in one step and then wakes the waiters whose turn has come.
//! A store across a network differs in two ways: the step is a request that can fail, and the clock
//! is a `BootClock`, read before the request is sent.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, FencingToken, IfBusy, Liveness,
    LockName, Locks, Mode, Modes, Moment, Order, Participant, ParticipantId, Profile, Reach,
    ReleaseOutcome, RenewOutcome, RenewalPlan, Residue, Result, Snapshot, TokenOrder, TokioClock,
    Ttl, WaiterCheck, lease_end,
};

static PROFILE: Profile = Profile {
    store: "own",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    tokens: TokenOrder::Process,
    exclusion_fails_when: Cow::Borrowed(&[]),
};

/// How long a waiter may leave its turn unused before it is skipped.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct OwnStore {
    /// Of all clients together, as they are one process: each `TokioClock` has a zero of its own.
    clock: TokioClock,
    /// The rows, by the key of their lock.
    table: Mutex<HashMap<String, Vec<Row>>>,
    /// The last number used, as a ticket or as a token.
    last: AtomicU64,
}

struct Row {
    ticket: u64,
    /// In a database: the columns owner, mode and label, and the client to notify of a change.
    claim: Arc<Claim>,
    since: Moment,
    /// When its turn came.
    turn_since: Option<Moment>,
    /// Its token and the end of its lease, while it holds the lock.
    held: Option<(u64, Moment)>,
}

impl Row {
    fn is_of(&self, claim: &Claim) -> bool {
        self.claim.owner() == claim.owner()
    }
}

impl OwnStore {
    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Changes the rows of a lock in one step, and then wakes the waiters whose turn has come.
    fn change<T>(&self, lock: &LockName, change: impl FnOnce(&mut Vec<Row>, Moment) -> T) -> T {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let rows = table.entry(lock.key().to_owned()).or_default();
        rows.retain(|row| row.held.map_or(!row.claim.is_over(), |(_, until)| until > now));
        let result = change(rows, now);
        let mut woken = Vec::new();
        for at in turns(rows, now) {
            if rows[at].turn_since.is_none() {
                rows[at].turn_since = Some(now);
                woken.push(rows[at].claim.clone());
            }
        }
        if rows.is_empty() {
            table.remove(lock.key());
        }
        drop(table);
        for claim in woken {
            claim.wake();
        }
        result
    }
}

/// The waiters whose turn it is: in order, up to the first that does not fit.
fn turns(rows: &[Row], now: Moment) -> Vec<usize> {
    let mut taken: Vec<Mode> =
        rows.iter().filter(|row| row.held.is_some()).map(|row| row.claim.mode()).collect();
    let missed =
        |row: &Row| row.turn_since.is_some_and(|turn_since| turn_since + TURN_TIMEOUT <= now);
    let waits = |at: &usize| rows[*at].held.is_none() && !missed(&rows[*at]);
    let fits = |at: &usize| {
        let fits = rows[*at].claim.mode().is_compatible_with(taken.iter().copied());
        taken.push(rows[*at].claim.mode());
        fits
    };
    (0..rows.len()).filter(waits).take_while(fits).collect()
}

/// When to check again: when the first lease can end, or a waiter can have missed its turn.
fn check_after(rows: &[Row], now: Moment) -> Duration {
    let ends = rows.iter().filter_map(|row| row.held).map(|(_, until)| until.duration_since(now));
    ends.fold(TURN_TIMEOUT, Duration::min)
}

impl DistributedLock for OwnStore {
    type Acquisition = OwnAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> OwnAcquisition {
        OwnAcquisition { store: self.clone(), claim }
    }

    async fn renew(&self, held: &OwnAcquisition) -> Result<RenewOutcome> {
        let claim = &held.claim;
        Ok(self.change(claim.name(), |rows, now| {
            let row = rows.iter_mut().find(|row| row.is_of(claim));
            match row.and_then(|row| row.held.as_mut()) {
                None => RenewOutcome::Lost,
                // Only confirms the hold: an end before the known one changes nothing.
                Some(_) if claim.is_fixed_lease() => RenewOutcome::Renewed { valid_until: now },
                Some((_, until)) => {
                    *until = now + claim.ttl();
                    RenewOutcome::Renewed { valid_until: lease_end(now, claim.ttl()) }
                }
            }
        }))
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&OwnAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        Ok(self.change(lock, |rows, now| {
            let waits = |waiter: &&OwnAcquisition| {
                let row = rows.iter().find(|row| row.is_of(&waiter.claim));
                // A waiter whose row is gone, or whose turn has come, must attempt.
                match row.is_some_and(|row| row.held.is_none() && row.turn_since.is_none()) {
                    true => WaiterCheck::Again(check_after(rows, now)),
                    false => WaiterCheck::Attempt,
                }
            };
            waiting.iter().map(waits).collect()
        }))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.change(name, |rows, now| {
            let mut seen = Snapshot::default();
            for row in rows.iter() {
                let id = ParticipantId::new(row.ticket.to_string());
                let participant = Participant::new(id, row.claim.mode())
                    .labelled(row.claim.label().clone())
                    .since(now.duration_since(row.since));
                match row.held {
                    None => seen.waiters.push(participant),
                    Some((token, _)) => {
                        seen.holders.push(participant.token(FencingToken::new(token)));
                    }
                }
            }
            seen
        }))
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let gone = self.change(name, |rows, _| {
            let at = rows.iter().position(|row| row.ticket.to_string() == who.as_str());
            at.map(|at| rows.remove(at))
        });
        let Some(row) = gone else { return Ok(ReleaseOutcome::Absent) };
        // The evicted claim notices at once.
        row.claim.wake();
        Ok(ReleaseOutcome::Removed)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

struct OwnAcquisition {
    store: Arc<OwnStore>,
    claim: Arc<Claim>,
}

impl Acquisition for OwnAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let claim = &self.claim;
        Ok(self.store.change(claim.name(), |rows, now| {
            // Repeated after a lost reply, it finds its row.
            let found = rows.iter().position(|row| row.is_of(claim));
            let at = found.unwrap_or_else(|| {
                let (ticket, claim) = (self.store.number(), claim.clone());
                rows.push(Row { ticket, claim, since: now, turn_since: None, held: None });
                rows.len() - 1
            });
            rows[at].turn_since = None;
            // A grant that is found again gets a whole lease too, since it is reported as one.
            let token = match rows[at].held {
                Some((token, _)) => Some(token),
                None => turns(rows, now).contains(&at).then(|| self.store.number()),
            };
            if let Some(token) = token {
                rows[at].held = Some((token, now + claim.ttl()));
                rows[at].since = now;
            }
            match (token, claim.if_busy()) {
                (Some(token), _) => AttemptOutcome::Granted {
                    token: FencingToken::new(token),
                    valid_until: lease_end(now, claim.ttl()),
                },
                (None, IfBusy::Queue) => {
                    AttemptOutcome::Waiting { check_after: check_after(rows, now) }
                }
                (None, IfBusy::Refuse) => {
                    rows.remove(at);
                    AttemptOutcome::Busy { rest: Residue::Nothing }
                }
            }
        }))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        Ok(self.store.change(self.claim.name(), |rows, _| {
            let before = rows.len();
            rows.retain(|row| !row.is_of(&self.claim));
            if rows.len() < before { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent }
        }))
    }
}

struct OwnHarness;

/// What one behaviour uses: a store of its own, and the prefix of its names.
struct OwnPart(Arc<OwnStore>, String);

#[async_trait]
impl Harness for OwnHarness {
    fn name(&self) -> &str {
        "own"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(OwnPart(Arc::default(), prefix.to_owned())))
    }
}

#[async_trait]
impl Store for OwnPart {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        Locks::new(self.0.clone(), "own://", params.settings()?)
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Inspect, Backdoor::Expire]
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let table = self.0.table.lock();
        Ok(table.keys().cloned().collect())
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        let name = LockName::with_prefix(&self.1, name)?;
        Ok(self.0.change(&name, |rows, _| rows.iter().any(|row| row.held.is_some())))
    }

    async fn expire(&self, name: &str) -> Result<()> {
        let name = LockName::with_prefix(&self.1, name)?;
        self.0.change(&name, |rows, _| rows.retain(|row| row.held.is_none()));
        Ok(())
    }
}

fn main() {
    fencelock_conformance::main(OwnHarness);
}
