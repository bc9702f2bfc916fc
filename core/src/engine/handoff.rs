//! Local hand-offs: acquisitions of one process take turns on one grant of the store.
//!
//! This is lock cohorting (Dice, Marathe, Shavit, "Lock Cohorting", PPoPP 2012) for a lock in a
//! store. The process has one claim in the store's queue, however many of its tasks wait: they wait
//! in a queue of their own, in order of arrival. A grant is a *tenure*: at most so many turns as
//! the claim reserved tokens for, begun within 10 ms of the grant. Each turn has a guard and a
//! larger token of its own.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};

use crate::engine::acquire::{Observed, WaitLimit, acquire, timed_out};
use crate::engine::client::{ClientInner, closed};
use crate::engine::hold::{Ending, Hold};
use crate::engine::metrics::{GrantedBy, Outcome};
use crate::engine::own_hold;
use crate::engine::owned_hold::{OwnedHold, not_held};
use crate::engine::telemetry;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Operation, Result, invalid};
use crate::types::name::LockName;
use crate::types::options::format_duration;
use crate::types::token::FencingToken;

/// How long after the grant a turn may begin. A waiter of another process waits for this long and
/// for the turn that runs then.
const TENURE: Duration = Duration::from_millis(10);

/// How long after the grant its first turn may begin, on a runtime that is slow to poll: as long as
/// a store keeps a grant for a waiter that does not confirm it.
const FIRST_TURN: Duration = Duration::from_secs(2);

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

/// The groups of one client.
#[derive(Default)]
pub(crate) struct Handoffs {
    /// Only those with a waiter, a tenure or a contention.
    groups: Mutex<HashMap<Key, Arc<Group>>>,
}

/// Acquisitions with the same key take turns with each other.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    lock: LockName,
    kind: LockKind,
    ttl: Duration,
    unreachable_after: Duration,
    most: u32,
}

impl Handoffs {
    /// Whether acquisitions of this process hold or want the lock already.
    pub(crate) fn are_busy(&self, request: &AcquireRequest) -> bool {
        let groups = self.groups.lock();
        let group = groups.get(&Key::of(request));
        group.is_some_and(|group| !group.state.lock().is_idle())
    }
}

impl Key {
    fn of(request: &AcquireRequest) -> Key {
        Key {
            lock: request.name.clone(),
            kind: request.kind,
            ttl: request.ttl,
            unreachable_after: request.unreachable_after,
            most: request.local_handoffs,
        }
    }
}

struct Group {
    key: Key,
    /// What the contention asks the store for: the options of the acquisition that came first.
    request: AcquireRequest,
    /// While it is locked, nothing calls the program's wakers, subscribers or recorder, nor the
    /// backend: they may use the same lock, and may panic.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In order of arrival; who was offered a turn and could not take it in time comes back ahead of all.
    waiting: BTreeMap<i64, oneshot::Sender<Result<Offer>>>,
    first_place: i64,
    last_place: i64,
    tenure: Option<Tenure>,
    contention: Option<Contention>,
    last_id: u64,
}

/// The claim of the process in the store's queue. It is a task of its own: a caller that is frozen or
/// dropped would take the whole local queue with it.
struct Contention {
    id: u64,
    task: AbortHandle,
    observed: Arc<Observed>,
}

/// One grant of the store.
struct Tenure {
    id: u64,
    owned: OwnedHold,
    first: FencingToken,
    used: u32,
    /// When no further turn begins, and when not even the first one.
    ends: Moment,
    first_ends: Moment,
    /// The number of the offer that was made last, 0 before the first, and whether it was accepted.
    offer: u64,
    is_running: bool,
    /// Revokes an offer that nobody takes, and sees the loss of the hold.
    watcher: Option<AbortOnDropHandle<()>>,
}

/// A turn that a waiter may begin. Dropped without that, it goes to the next one.
struct Offer {
    group: Arc<Group>,
    client: Arc<ClientInner>,
    number: TurnNumber,
    is_open: bool,
}

/// Which turn of which tenure.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TurnNumber {
    tenure: u64,
    offer: u64,
}

/// One acquisition of a tenure. Its end begins the next turn, or ends the tenure.
pub(crate) struct Turn {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: FencingToken,
    pub(crate) span: Span,
    since: Moment,
    group: Arc<Group>,
    number: TurnNumber,
    is_over: bool,
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
    outcome.outcome = match &turn {
        Ok(_) => Outcome::Granted,
        Err(error) => Outcome::of(error),
    };
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
    let gives_up = started + wait.left;
    let mut long_at = match wait.limit {
        Duration::MAX => started + own_hold::LONG,
        _ => Moment::NEVER,
    };
    let mut waiter = Waiter::join(client, request);
    loop {
        let received = tokio::select! {
            biased;
            received = &mut waiter.receiver => received,
            () = client.closing.cancelled() => return Err(closed()),
            slept = client.sleep_until(gives_up.min(long_at)) => {
                slept?;
                if long_at > gives_up {
                    return Err(waiter.timed_out(wait.limit));
                }
                client.worker.log_own_hold(&request.name, request.mode, client.now());
                long_at = client.now() + own_hold::LONG;
                continue;
            }
        };
        // No sender is dropped without a message.
        let offer = received.unwrap_or_else(|_| Err(closed()))?;
        match offer.accept(&caller, started) {
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
    place: i64,
    receiver: oneshot::Receiver<Result<Offer>>,
    /// It has left the queue with a turn.
    is_served: bool,
}

impl Waiter {
    fn join(client: &Arc<ClientInner>, request: &AcquireRequest) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        // Both are locked until the waiter is in the queue: an empty group is removed.
        let mut groups = client.handoffs.groups.lock();
        let group = groups.entry(Key::of(request)).or_insert_with_key(|key| {
            let request = AcquireRequest { hold_at_most: None, ..request.clone() };
            Arc::new(Group { key: key.clone(), request, state: Mutex::default() })
        });
        let group = group.clone();
        let mut state = group.state.lock();
        drop(groups);
        state.last_place += 1;
        let place = state.last_place;
        state.waiting.insert(place, sender);
        group.serve(&mut state, client);
        drop(state);
        client.metrics.waits(&group.request, 1.0);
        Waiter { client: client.clone(), group, place, receiver, is_served: false }
    }

    /// Its offer was revoked: it is the next one.
    fn come_back(&mut self) {
        let (sender, receiver) = oneshot::channel();
        self.receiver = receiver;
        // The group may have been removed meanwhile; then this one is of its own, which is right, and
        // only less fair.
        let mut state = self.group.state.lock();
        state.first_place -= 1;
        self.place = state.first_place;
        state.waiting.insert(self.place, sender);
        self.group.serve(&mut state, &self.client);
    }

    fn timed_out(&self, limit: Duration) -> Error {
        let asked = {
            let state = self.group.state.lock();
            let contention = state.contention.as_ref().filter(|_| state.tenure.is_none());
            contention.and_then(|contention| contention.observed.get().cloned())
        };
        match asked {
            Some(wait) => timed_out(limit, &wait),
            None => {
                let limit = format_duration(limit);
                Error::new(ErrorKind::WaitTimedOut, format!("not granted within {limit}"))
            }
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
            let left = state.waiting.remove(&self.place);
            let is_last = state.waiting.is_empty();
            (left, state.contention.take_if(|_| is_last))
        };
        if let Some(contention) = contention {
            // With its place in the store's queue.
            contention.task.abort();
        }
        drop(left);
        self.group.remove_if_idle(&self.client);
    }
}

impl Group {
    /// Has the store asked for a waiter, if nothing else will serve it.
    fn serve(self: &Arc<Group>, state: &mut State, client: &Arc<ClientInner>) {
        if state.waiting.is_empty() {
            return;
        }
        if let Some(tenure) = &mut state.tenure {
            return self.watch(tenure, client);
        }
        if state.contention.is_some() {
            return;
        }
        state.last_id += 1;
        let (id, observed) = (state.last_id, Arc::<Observed>::default());
        let contending = contend(self.clone(), client.clone(), id, observed.clone());
        let task = client.reaper.runtime.spawn(contending).abort_handle();
        state.contention = Some(Contention { id, task, observed });
    }

    /// The waiter that is offered the next turn of the tenure after that of `number`; or the end of
    /// the tenure, and its hold.
    fn advance(
        self: &Arc<Group>,
        client: &Arc<ClientInner>,
        number: TurnNumber,
    ) -> Option<Advanced> {
        let mut state = self.state.lock();
        let State { tenure, waiting, .. } = &mut *state;
        // Another number was lost or revoked, and others have gone on.
        let current = tenure.as_mut().filter(|tenure| tenure.number() == number)?;
        let now = client.now();
        if current.owned.hold.is_valid(now)
            && current.used < self.request.local_handoffs
            && now < current.ends
            && let Some((_, waiter)) = waiting.pop_first()
        {
            current.offer += 1;
            current.is_running = false;
            self.watch(current, client);
            return Some(Advanced::Offered(waiter, current.number()));
        }
        let ended = tenure.take().map(|tenure| tenure.owned);
        self.serve(&mut state, client);
        ended.map(Advanced::Ended)
    }

    /// Watches over a tenure for which somebody waits.
    fn watch(self: &Arc<Group>, tenure: &mut Tenure, client: &Arc<ClientInner>) {
        if tenure.watcher.is_none() {
            let watching = watch(
                self.clone(),
                client.clone(),
                tenure.id,
                [tenure.ends, tenure.first_ends],
                tenure.owned.hold.clone(),
            );
            let task = client.reaper.runtime.spawn(watching);
            tenure.watcher = Some(AbortOnDropHandle::new(task));
        }
    }

    /// The turn or the offer of this number has ended: offers the next one, or ends the tenure and
    /// returns its hold.
    fn pass_on(
        self: &Arc<Group>,
        client: &Arc<ClientInner>,
        mut number: TurnNumber,
    ) -> Option<OwnedHold> {
        loop {
            let waiter = match self.advance(client, number)? {
                Advanced::Offered(waiter, next) => {
                    number = next;
                    waiter
                }
                Advanced::Ended(ended) => {
                    self.remove_if_idle(client);
                    return Some(ended);
                }
            };
            let offer =
                Offer { group: self.clone(), client: client.clone(), number, is_open: true };
            match waiter.send(Ok(offer)) {
                // The waiter left just now.
                Err(Ok(mut offer)) => offer.is_open = false,
                Ok(()) | Err(Err(_)) => return None,
            }
        }
    }

    /// Ends a tenure whose next turn was not begun in time, or whose hold is lost.
    fn end(self: &Arc<Group>, client: &Arc<ClientInner>, tenure: u64, is_lost: bool) {
        let now = client.now();
        let ended = {
            let mut state = self.state.lock();
            match &state.tenure {
                Some(it) if it.id == tenure && (is_lost || it.is_missed(now)) => {
                    let ended = state.tenure.take();
                    self.serve(&mut state, client);
                    ended
                }
                _ => None,
            }
        };
        drop(ended);
        self.remove_if_idle(client);
    }

    fn remove_if_idle(self: &Arc<Group>, client: &ClientInner) {
        let mut groups = client.handoffs.groups.lock();
        let is_listed = groups.get(&self.key).is_some_and(|group| Arc::ptr_eq(group, self));
        if is_listed && self.state.lock().is_idle() {
            groups.remove(&self.key);
        }
    }
}

/// What became of a tenure at the end of a turn.
enum Advanced {
    /// The waiter is to be sent the offer of this number.
    Offered(oneshot::Sender<Result<Offer>>, TurnNumber),
    Ended(OwnedHold),
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.tenure.is_none() && self.contention.is_none()
    }
}

impl Tenure {
    fn number(&self) -> TurnNumber {
        TurnNumber { tenure: self.id, offer: self.offer }
    }

    fn is_missed(&self, now: Moment) -> bool {
        !self.is_running && now >= if self.used == 0 { self.first_ends } else { self.ends }
    }
}

/// Acquires the lock from the store for those who wait.
async fn contend(group: Arc<Group>, client: Arc<ClientInner>, id: u64, observed: Arc<Observed>) {
    let unanswered = Unanswered { group: &group, client: &client, id };
    let for_ever = WaitLimit { limit: Duration::MAX, left: Duration::MAX };
    let acquired = acquire(&client, &group.request, for_ever, Some(&observed)).await;
    let (granted, failed) = {
        let mut state = group.state.lock();
        // Nobody waits any more: what was acquired is released.
        if state.contention.take_if(|contention| contention.id == id).is_none() {
            return;
        }
        match acquired {
            Ok(owned) => {
                state.last_id += 1;
                let grant = owned.hold.grant;
                let tenure = Tenure {
                    id: state.last_id,
                    first: grant.token,
                    used: 0,
                    ends: grant.since + TENURE,
                    first_ends: grant.since + FIRST_TURN,
                    offer: 0,
                    is_running: false,
                    watcher: None,
                    owned,
                };
                let number = tenure.number();
                state.tenure = Some(tenure);
                (Some(number), None)
            }
            // A grant that came too late is the misfortune of one; the others ask again.
            Err(error) if error.kind() == ErrorKind::Lost => {
                let first = state.waiting.pop_first().into_iter().collect();
                group.serve(&mut state, &client);
                (None, Some((error, first)))
            }
            Err(error) => (None, Some((error, std::mem::take(&mut state.waiting)))),
        }
    };
    if let Some(number) = granted {
        drop(group.pass_on(&client, number));
    }
    if let Some((error, waiting)) = failed {
        for waiter in waiting.into_values() {
            let _ = waiter.send(Err(error.clone()));
        }
    }
    drop(unanswered);
    group.remove_if_idle(&client);
}

/// Ends the wait of all if their contention ends without an answer, by a panic of the backend or the end
/// of the runtime that connected: no other task would ask for them.
struct Unanswered<'a> {
    group: &'a Arc<Group>,
    client: &'a ClientInner,
    id: u64,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.group.state.lock();
            let ended = state.contention.take_if(|contention| contention.id == self.id);
            ended.map(|_| std::mem::take(&mut state.waiting))
        };
        let Some(waiting) = waiting else { return };
        let error = match std::thread::panicking() {
            true => {
                let message = "the task that asked the store for this process has panicked";
                Error::new(ErrorKind::Refused, message)
            }
            false => closed(),
        };
        for waiter in waiting.into_values() {
            let _ = waiter.send(Err(error.clone()));
        }
        self.group.remove_if_idle(self.client);
    }
}

/// Revokes an offer that is not accepted in time, so that a frozen waiter does not keep the lock; at a loss of
/// the hold, has the store asked again for those who wait.
async fn watch(
    group: Arc<Group>,
    client: Arc<ClientInner>,
    tenure: u64,
    ends: [Moment; 2],
    hold: Arc<Hold>,
) {
    let lost = async {
        loop {
            let changed = hold.changed();
            if hold.valid_until().is_none() {
                return;
            }
            changed.await;
        }
    };
    let mut lost = std::pin::pin!(lost);
    for at in ends {
        tokio::select! {
            () = &mut lost => return group.end(&client, tenure, true),
            () = client.store.clock().sleep_until(at) => group.end(&client, tenure, false),
        }
    }
    lost.await;
    group.end(&client, tenure, true);
}

impl Offer {
    /// Begins the turn, unless it was revoked or the hold was lost meanwhile.
    fn accept(mut self, caller: &Span, started: Moment) -> Option<Turn> {
        let (group, client) = (self.group.clone(), self.client.clone());
        let mut state = group.state.lock();
        self.is_open = false;
        let now = client.now();
        let tenure = state.tenure.as_mut().filter(|tenure| tenure.number() == self.number)?;
        if !tenure.owned.hold.is_valid(now) {
            let ended = state.tenure.take();
            drop(state);
            drop(ended);
            return None;
        }
        tenure.is_running = true;
        let by = if tenure.used == 0 { GrantedBy::Store } else { GrantedBy::HandOff };
        let token = tenure.first.plus(tenure.used);
        tenure.used += 1;
        let hold = tenure.owned.hold.clone();
        drop(state);
        // From here on its drop ends the turn, also after a panic of the program's recorder of metrics.
        let mut turn = Turn {
            span: Span::none(),
            token,
            since: now,
            number: self.number,
            is_over: false,
            client,
            hold,
            group,
        };
        turn.client.metrics.granted(&turn.group.request, now.duration_since(started), by);
        let store = turn.client.store.profile().store;
        turn.span = telemetry::hold_span(caller, turn.hold.claim(), store, token);
        Some(turn)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if self.is_open {
            drop(self.group.pass_on(&self.client, self.number));
        }
    }
}

impl Turn {
    /// Ends the turn. The last one of its tenure gives back the hold, to be released.
    ///
    /// # Errors
    /// It was lost.
    pub(crate) fn finish(mut self) -> Result<Option<OwnedHold>> {
        let is_held = self.hold.is_held(self.client.now());
        match self.end() {
            Some(owned) => Ok(Some(owned)),
            None if is_held => Ok(None),
            None => Err(not_held(&self.hold)),
        }
    }

    fn end(&mut self) -> Option<OwnedHold> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let now = self.client.now();
        // Too late, it is lost, and reported as that.
        let reported = catch_unwind(AssertUnwindSafe(|| self.hold.is_held(now)));
        let lost = match self.hold.ending() {
            Some(Ending::Lost(reason)) => Some(reason),
            _ => None,
        };
        let held = now.duration_since(self.since);
        let counted = catch_unwind(AssertUnwindSafe(|| {
            self.client.metrics.ended(&self.group.request, held, lost);
        }));
        let ended = self.group.pass_on(&self.client, self.number);
        match reported.and(counted) {
            Ok(()) => ended,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.end());
    }
}
