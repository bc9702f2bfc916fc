//! The toy store's side of the trait: a backend like one across a network, with the mutants
//! that are made on the client's side.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, CellDurability, Cells, Claim, Clock, DistributedLock,
    FencingToken, IfBusy, Liveness, LockName, Mode, Modes, Moment, Order, Participant,
    ParticipantId, Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Residue, Result,
    Scratch, Snapshot, TokenOrder, Ttl, WaiterCheck, lease_end,
};

use crate::mutant::Mutant;
use crate::server::{Entry, Server, Stage, no_answer};

static PROFILE: Profile = Profile {
    store: "toy",
    reach: Reach::Network,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    downgrade: true,
    tokens: TokenOrder::BeyondData,
    max_local_handoffs: 1_024,
    cells: Some(CellDurability::Process),
    exclusion_fails_when: Cow::Borrowed(&[]),
};

const LOOK_IN: Duration = Duration::from_secs(1);

impl DistributedLock for Server {
    type Acquisition = ToyAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> ToyAcquisition {
        ToyAcquisition { server: self.clone(), claim }
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    async fn renew(&self, held: &ToyAcquisition) -> Result<RenewOutcome> {
        let (claim, sent) = (&held.claim, self.clock.now());
        let in_flight = InFlight::new(self);
        self.send().await?;
        let key = self.key(claim.name(), claim.mode());
        let renewed = self.change(&key, |queue, now| {
            let until = stored_until(self, now, claim.ttl());
            let at = queue.position(claim);
            let held = at.map(|at| queue.entries[at].stage);
            let renewed = match (at, held) {
                // A fixed lease is only confirmed.
                (_, Some(Stage::Held { .. })) if claim.is_fixed_lease() => true,
                (Some(at), Some(Stage::Held { token, .. })) => {
                    queue.entries[at].stage = Stage::Held { token, until };
                    true
                }
                (None, _) if self.is(Mutant::RenewalResurrects) => {
                    queue.entries.push(entry(self, claim, 0, Stage::Held { token: 1, until }));
                    true
                }
                _ => false,
            };
            (renewed, true)
        });
        // Renewals that were sent together are in flight together.
        tokio::task::yield_now().await;
        self.reply().await?;
        if !in_flight.is_first && self.is(Mutant::RenewsOnlyTheFirst) {
            return Err(no_answer());
        }
        Ok(match renewed {
            true => RenewOutcome::Renewed { valid_until: lease_end(sent, claim.ttl()) },
            false => RenewOutcome::Lost,
        })
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&ToyAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        self.send().await?;
        // Each attempt is cheap here, and finds out everything.
        Ok(vec![WaiterCheck::Attempt; waiting.len()])
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let server = self;
        server.send().await?;
        let mut seen = Snapshot::default();
        for key in server.keys(name) {
            server.change(&key, |queue, _| {
                for entry in &queue.entries {
                    let participant = Participant::new(participant_id(server, entry), entry.mode)
                        .labelled(entry.label.clone());
                    match entry.stage.grant() {
                        Some((token, _)) => {
                            seen.holders.push(participant.token(FencingToken::new(token)));
                        }
                        None => seen.waiters.push(participant),
                    }
                }
                ((), false)
            });
        }
        server.reply().await.map(|()| seen)
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let server = self;
        server.send().await?;
        let mut evicted = None;
        for key in server.keys(name) {
            let gone = server.change(&key, |queue, _| {
                let at = queue.entries.iter().position(|entry| {
                    server.is(Mutant::EvictsAnyClaim) || participant_id(server, entry) == *who
                });
                let gone = match server.is(Mutant::EvictsNone) {
                    true => at.map(|at| queue.entries[at].claim.clone()),
                    false => at.map(|at| queue.entries.remove(at).claim),
                };
                (gone, true)
            });
            evicted = evicted.or(gone);
        }
        server.reply().await?;
        if let Some(claim) = evicted.as_ref().and_then(Weak::upgrade) {
            claim.wake();
        }
        Ok(if evicted.is_some() { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        Server::clear(self, scratch.prefix());
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A renewal in flight.
struct InFlight<'a> {
    server: &'a Server,
    /// Whether no other renewal was in flight when it began.
    is_first: bool,
}

impl InFlight<'_> {
    fn new(server: &Server) -> InFlight<'_> {
        let is_first = server.renewals.fetch_add(1, Ordering::SeqCst) == 0;
        InFlight { server, is_first }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.server.renewals.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Until when the server keeps a lease.
fn stored_until(server: &Server, now: Moment, ttl: Duration) -> Moment {
    match server.mutant {
        Some(Mutant::NoTtl) => Moment::NEVER,
        Some(Mutant::ForgetsEarly) => now + ttl / 4,
        _ => now + ttl,
    }
}

fn participant_id(server: &Server, entry: &Entry) -> ParticipantId {
    ParticipantId::new(match server.is(Mutant::ShowsOwner) {
        true => entry.owner.reveal().to_string(),
        false => entry.ticket.to_string(),
    })
}

fn entry(server: &Server, claim: &Arc<Claim>, ticket: u64, stage: Stage) -> Entry {
    Entry {
        ticket,
        claim: Arc::downgrade(claim),
        owner: *claim.owner(),
        mode: claim.mode(),
        label: claim.label().clone(),
        stage,
        is_watched: !server.is(Mutant::WatchBeginsLate),
    }
}

pub(crate) struct ToyAcquisition {
    server: Arc<Server>,
    claim: Arc<Claim>,
}

impl ToyAcquisition {
    /// Queues if it is not there yet, and takes what it was granted.
    fn enter(&self, key: &str) -> Option<u64> {
        let (server, claim) = (&self.server, &self.claim);
        let ticket = server.ticket();
        server.change(key, |queue, _| {
            let known = !server.is(Mutant::ForgetsWhoAsked);
            let at = queue.position(claim).filter(|_| known);
            match at {
                None => queue.entries.push(entry(server, claim, ticket, Stage::Waits)),
                Some(at) if queue.entries[at].stage == Stage::Lapsed => {
                    queue.entries[at].stage = Stage::Waits;
                }
                Some(_) => {}
            }
            ((), at.is_none() || !server.is(Mutant::WakesOnlyOne))
        });
        server.change(key, |queue, now| {
            let Some(at) = queue.position(claim) else { return (None, true) };
            let stage = queue.entries[at].stage;
            let granted = stage.grant().map(|(token, _)| token);
            if let Some(token) = granted {
                let until = match stage {
                    Stage::Held { until, .. }
                        if server.is(Mutant::RepeatedAttemptExtendsNothing) =>
                    {
                        until
                    }
                    _ => stored_until(server, now, claim.ttl()),
                };
                queue.entries[at].stage = Stage::Held { token, until };
            } else if claim.if_busy() == IfBusy::Refuse && !server.is(Mutant::TryStaysQueued) {
                queue.entries.remove(at);
            }
            (granted, !server.is(Mutant::WakesOnlyOne))
        })
    }
}

impl Acquisition for ToyAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let (server, claim) = (&self.server, &self.claim);
        let mut sent = server.clock.now();
        server.send().await?;
        let key = server.key(claim.name(), claim.mode());
        let granted = self.enter(&key);
        server.reply().await?;
        if server.is(Mutant::WatchBeginsLate) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            server.change(&key, |queue, _| {
                (queue.position(claim).map(|at| queue.entries[at].is_watched = true), false)
            });
        }
        if server.is(Mutant::DeadlineFromReply) {
            sent = server.clock.now();
        }
        Ok(match (granted, claim.if_busy()) {
            (Some(token), _) => AttemptOutcome::Granted {
                token: FencingToken::new(token),
                valid_until: lease_end(sent, claim.ttl()),
            },
            (None, IfBusy::Queue) => AttemptOutcome::Waiting { check_after: LOOK_IN },
            (None, IfBusy::Refuse) => AttemptOutcome::Busy { rest: Residue::Nothing },
        })
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let (server, claim) = (&self.server, &self.claim);
        server.send().await?;
        let key = server.key(claim.name(), claim.mode());
        let removed = server.change(&key, |queue, _| {
            let at = queue.position(claim);
            let waits = |at: usize| !matches!(queue.entries[at].stage, Stage::Held { .. });
            let gives_up = at.is_some_and(waits);
            if !(gives_up && server.is(Mutant::CancelLeavesEntry)) {
                at.map(|at| queue.entries.remove(at));
            }
            if server.is(Mutant::ReleaseFreesAnybody) {
                queue.entries.retain(|entry| entry.stage.grant().is_none());
            }
            (at.is_some(), !(gives_up && server.is(Mutant::WakeLostOnCancel)))
        });
        server.reply().await?;
        let found = removed || server.is(Mutant::ReleaseAlwaysRemoved);
        Ok(if found { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        let (server, claim, sent) = (&self.server, &self.claim, self.server.clock.now());
        server.send().await?;
        let key = server.key(claim.name(), claim.mode());
        let found = server.change(&key, |queue, now| {
            let Some(at) = queue.position(claim) else { return (false, false) };
            let Stage::Held { token, .. } = queue.entries[at].stage else { return (false, false) };
            let entry = &mut queue.entries[at];
            if !server.is(Mutant::DowngradeStaysExclusive) {
                entry.mode = Mode::Shared;
            }
            let token = if server.is(Mutant::DowngradeMintsToken) { token + 1 } else { token };
            entry.stage = Stage::Held { token, until: stored_until(server, now, claim.ttl()) };
            if server.is(Mutant::DowngradeLetsGo) {
                queue.entries.remove(at);
            }
            (true, true)
        });
        server.reply().await?;
        Ok(match found {
            true => RenewOutcome::Renewed { valid_until: lease_end(sent, claim.ttl()) },
            false => RenewOutcome::Lost,
        })
    }
}
