//! Local hand-offs: acquisitions of one client with the same options take turns on one grant of the store.
//!
//! This is lock cohorting (Dice, Marathe, Shavit, "Lock Cohorting", PPoPP 2012) for a lock in a
//! store. They have one claim in the store's queue, however many tasks wait: those wait in a queue of
//! their own, in order of arrival. A grant is a *tenure*: at most so many turns as the claim reserved
//! tokens for, begun within 10 ms of the grant, or the first within 2 s. Each turn has a guard and a
//! larger token of its own. `guard/base.rs` decides which acquisitions come here.

mod group;
mod queue;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{Instrument, Span};

use crate::acquire::{LOOK_AGAIN, WaitLimit, at_limit, not_granted, unanswered};
use crate::claim::own_hold;
use crate::claim::wait::PATIENCE;
use crate::client::ClientInner;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::sync::Mutex;
use crate::telemetry;
use crate::telemetry::metrics::Outcome;
use crate::time::moment::Moment;
use crate::types::error::{Error, Operation, Result, closed, invalid};

pub(crate) use group::Handoffs;
use group::{Group, Key, Offer};
pub(crate) use turn::Turn;

/// Whether acquisitions of `request` can share a grant.
///
/// # Errors
/// Why they cannot.
pub(crate) fn require(request: &AcquireRequest) -> Result<()> {
    let why = match request {
        AcquireRequest { kind: LockKind::ReadWrite, .. } => "readers and writers cannot have them",
        AcquireRequest { kind: LockKind::Semaphore, .. } => "permits cannot have them",
        AcquireRequest { renewed: false, .. } => "a fixed lease would end for all turns at once",
        _ => return Ok(()),
    };
    Err(invalid(format!(
        "local_handoffs was set, but {why}; remove it, or use lock(name) with ttl(…)"
    )))
}

/// Acquires in turn with the other acquisitions of this process.
pub(crate) async fn acquire_in_turn(
    client: &Arc<ClientInner>,
    request: &AcquireRequest,
    wait: WaitLimit,
) -> Result<Turn> {
    let (caller, store) = (Span::current(), client.store.profile().store);
    let span = telemetry::acquire_span(&request.name, store, request.mode);
    let mut outcome = Counted { client, request, outcome: Outcome::Cancelled };
    let turn = wait_for_turn(client, request, wait, caller).instrument(span).await;
    outcome.outcome = Outcome::of(&turn);
    turn.map_err(|error| client.explain(error, Operation::Acquire, &request.name))
}

/// Counts an acquisition that waits, and one that does not end in a turn.
struct Counted<'a> {
    client: &'a ClientInner,
    request: &'a AcquireRequest,
    outcome: Outcome,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.outcome != Outcome::Granted {
            self.client.metrics.finished(self.request, self.outcome);
        }
    }
}

async fn wait_for_turn(
    client: &Arc<ClientInner>,
    request: &AcquireRequest,
    wait: WaitLimit,
    caller: Span,
) -> Result<Turn> {
    // A lock that is handed on at once must still yield the worker thread.
    tokio::task::coop::consume_budget().await;
    if client.closing.is_cancelled() {
        return Err(closed());
    }
    let started = client.now();
    let mut gives_up = started + wait.left;
    let mut long_at = match wait.limit {
        Duration::MAX => started + own_hold::LONG,
        _ => Moment::NEVER,
    };
    let mut waiter = Waiter::join(client, request, started);
    loop {
        let received = tokio::select! {
            biased;
            received = &mut waiter.receiver => received,
            () = client.closing.cancelled() => return Err(closed()),
            slept = client.sleep_until(gives_up.min(long_at)) => {
                slept?;
                if long_at > gives_up {
                    gives_up = match waiter.at_limit(wait.limit) {
                        Ok(error) => return Err(error),
                        Err(again) => again.min(client.now() + LOOK_AGAIN),
                    };
                    continue;
                }
                client.worker.log_own_hold(&request.name, request.mode, client.now());
                long_at = client.now() + own_hold::LONG;
                continue;
            }
        };
        // No sender is dropped without a message.
        let offer = received.unwrap_or_else(|_| Err(closed()))?;
        match Turn::accept(offer, &caller, started) {
            Some(turn) => {
                waiter.is_served = true;
                return Ok(turn);
            }
            None => waiter.come_back(),
        }
    }
}

/// A place in a group's queue.
struct Waiter {
    client: Arc<ClientInner>,
    group: Arc<Group>,
    since: Moment,
    place: i64,
    receiver: oneshot::Receiver<Result<Offer>>,
    /// It has left the queue with a turn.
    is_served: bool,
}

impl Waiter {
    fn join(client: &Arc<ClientInner>, request: &AcquireRequest, since: Moment) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        let listed = client.registry::<Handoffs>();
        // Both are locked until the waiter is in the queue: an empty group is removed.
        let mut groups = listed.groups.lock();
        let group = groups.entry(Key::of(request)).or_insert_with_key(|key| {
            let request = AcquireRequest { hold_at_most: None, ..request.clone() };
            let (key, listed) = (key.clone(), Arc::downgrade(&listed));
            Arc::new(Group { key, listed, request, state: Mutex::default() })
        });
        let group = group.clone();
        let mut state = group.state.lock();
        drop(groups);
        let place = state.queue.join(sender);
        group.serve(&mut state, client);
        drop(state);
        client.metrics.waits(&group.request, 1.0);
        Waiter { client: client.clone(), group, since, place, receiver, is_served: false }
    }

    /// Its offer was revoked: it is the next one.
    fn come_back(&mut self) {
        let (sender, receiver) = oneshot::channel();
        self.receiver = receiver;
        // The group may have been removed meanwhile; then this one is of its own, which is right, and
        // only less fair.
        let mut state = self.group.state.lock();
        self.place = state.queue.come_back(sender);
        self.group.serve(&mut state, &self.client);
    }

    /// The error at the end of a wait limit, or when to ask again what the end means.
    fn at_limit(&self, limit: Duration) -> std::result::Result<Error, Moment> {
        let (contention, held) = {
            let state = self.group.state.lock();
            (state.contention.as_ref().map(|(_, observed)| observed.clone()), state.held)
        };
        // By a turn since this waiter came; the answer to the next request may be on its way.
        let turn = held.filter(|(at, _)| *at >= self.since);
        let Some(observed) = contention else { return Ok(not_granted(limit)) };
        match (observed.get(), turn, self.since + PATIENCE[0]) {
            (Some(wait), ..) => at_limit(&self.client, wait, turn, limit),
            (None, Some(_), _) => Ok(not_granted(limit)),
            // The request has yet to be made.
            (None, None, until) if self.client.now() < until => Err(until),
            (None, None, _) => Ok(unanswered(limit)),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.client.metrics.waits(&self.group.request, -1.0);
        if self.is_served {
            return;
        }
        let (left, contention) = {
            let mut state = self.group.state.lock();
            let (left, is_last) = state.queue.leave(self.place);
            (left, state.contention.take_if(|_| is_last))
        };
        if let Some((task, _)) = contention {
            // With its place in the store's queue.
            task.abort();
        }
        drop(left);
        self.group.remove_if_idle();
    }
}
