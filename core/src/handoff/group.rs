//! The acquisitions of one process for one lock: its waiters, its claim in the store's queue, and its
//! tenure.
//!
//! While a group is locked, nothing calls the program's wakers, subscribers or recorder, nor the backend:
//! they may use the same lock, and may panic.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::acquire::{Observed, WaitLimit, acquire};
use crate::claim::hold::Hold;
use crate::client::ClientInner;
use crate::client::owned_hold::OwnedHold;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Result, closed};
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// How long after the grant a turn may begin. A waiter of another process waits for this long and
/// for the turn that runs then.
const TENURE: Duration = Duration::from_millis(10);

/// How long after the grant its first turn may begin, on a runtime that is slow to poll: as long as
/// a store keeps a grant for a waiter that does not confirm it.
const FIRST_TURN: Duration = Duration::from_secs(2);

/// The groups of one client.
#[derive(Default)]
pub(crate) struct Handoffs {
    /// Only those with a waiter, a tenure or a contention.
    pub(super) groups: Mutex<HashMap<Key, Arc<Group>>>,
}

/// Acquisitions with the same key take turns with each other.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
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
    pub(super) fn of(request: &AcquireRequest) -> Key {
        Key {
            lock: request.name.clone(),
            kind: request.kind,
            ttl: request.ttl,
            unreachable_after: request.unreachable_after,
            most: request.local_handoffs,
        }
    }
}

/// A turn that a waiter may begin. Dropped without that, it goes to the next one.
pub(super) struct Offer {
    pub(super) group: Arc<Group>,
    pub(super) client: Arc<ClientInner>,
    pub(super) number: TurnNumber,
    pub(super) is_open: bool,
}

/// Which turn of which tenure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TurnNumber {
    pub(super) tenure: u64,
    pub(super) offer: u64,
}

pub(super) struct Group {
    pub(super) key: Key,
    pub(super) listed: Weak<Handoffs>,
    /// What the contention asks the store for: the options of the acquisition that came first.
    pub(super) request: AcquireRequest,
    /// See the top of the file for what may not happen while it is locked.
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// In order of arrival; who was offered a turn and could not take it in time comes back ahead of all.
    pub(super) waiting: BTreeMap<i64, oneshot::Sender<Result<Offer>>>,
    pub(super) first_place: i64,
    pub(super) last_place: i64,
    pub(super) tenure: Option<Tenure>,
    pub(super) contention: Option<Contention>,
    pub(super) last_id: u64,
}

/// The claim of the process in the store's queue. It is a task of its own: a caller that is frozen or
/// dropped would take the whole local queue with it.
pub(super) struct Contention {
    pub(super) id: u64,
    pub(super) task: AbortHandle,
    pub(super) observed: Arc<Observed>,
}

/// One grant of the store.
pub(super) struct Tenure {
    pub(super) id: u64,
    pub(super) owned: OwnedHold,
    pub(super) first: FencingToken,
    pub(super) used: u32,
    /// When no further turn begins, and when not even the first one.
    pub(super) ends: Moment,
    pub(super) first_ends: Moment,
    /// The number of the offer that was made last, 0 before the first, and whether it was accepted.
    pub(super) offer: u64,
    pub(super) is_running: bool,
    /// Revokes an offer that nobody takes, and sees the loss of the hold.
    pub(super) watcher: Option<AbortOnDropHandle<()>>,
}

impl Group {
    /// Has the store asked for a waiter, if nothing else will serve it.
    pub(super) fn serve(self: &Arc<Group>, state: &mut State, client: &Arc<ClientInner>) {
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
            && now < current.next_turn_by()
            && let Some((_, waiter)) = waiting.pop_first()
        {
            current.offer += 1;
            current.is_running = false;
            self.watch(current, client);
            return Some(Advanced::Offered(waiter, current.number()));
        }
        let ended = self.end_tenure(&mut state, client);
        ended.map(|tenure| Advanced::Ended(tenure.owned))
    }

    /// Ends the tenure, and has the store asked again for those who wait: what the caller does with the
    /// tenure, once the group is unlocked, may panic.
    pub(super) fn end_tenure(
        self: &Arc<Group>,
        state: &mut State,
        client: &Arc<ClientInner>,
    ) -> Option<Tenure> {
        let ended = state.tenure.take();
        self.serve(state, client);
        ended
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
    pub(super) fn pass_on(
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
                    self.remove_if_idle();
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
                    self.end_tenure(&mut state, client)
                }
                _ => None,
            }
        };
        self.remove_if_idle();
        drop(ended);
    }

    pub(super) fn remove_if_idle(self: &Arc<Group>) {
        let Some(listed) = self.listed.upgrade() else { return };
        let mut groups = listed.groups.lock();
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

impl Drop for Offer {
    fn drop(&mut self) {
        if self.is_open {
            drop(self.group.pass_on(&self.client, self.number));
        }
    }
}

impl State {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.tenure.is_none() && self.contention.is_none()
    }
}

impl Tenure {
    pub(super) fn number(&self) -> TurnNumber {
        TurnNumber { tenure: self.id, offer: self.offer }
    }

    fn is_missed(&self, now: Moment) -> bool {
        !self.is_running && now >= self.next_turn_by()
    }

    fn next_turn_by(&self) -> Moment {
        if self.used == 0 { self.first_ends } else { self.ends }
    }
}

/// Acquires the lock from the store for those who wait.
async fn contend(group: Arc<Group>, client: Arc<ClientInner>, id: u64, observed: Arc<Observed>) {
    let unanswered = Unanswered { group: &group, id };
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
    group.remove_if_idle();
}

/// Ends the wait of all if their contention ends without an answer, by a panic of the backend or the end
/// of the runtime that connected: no other task would ask for them.
struct Unanswered<'a> {
    group: &'a Arc<Group>,
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
        self.group.remove_if_idle();
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
