//! The acquisitions of one client for one lock: its waiters, its claim in the store's queue, and its
//! tenure.
//!
//! While a group is locked, nothing calls the program's wakers, subscribers or recorder, nor the backend:
//! they may use the same lock, and may panic.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::task::AbortOnDropHandle;

use super::queue::{Need, Next, Queue, TurnNumber};
use crate::acquire::{Observed, WaitLimit, acquire};
use crate::claim::hold::Hold;
use crate::client::ClientInner;
use crate::client::owned_hold::OwnedHold;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Result, closed};
use crate::types::name::LockName;

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
        group.is_some_and(|group| !group.state.lock().queue.is_idle())
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
    pub(super) queue: Queue<oneshot::Sender<Result<Offer>>, Held>,
    /// The claim of the process in the store's queue. It is a task of its own: a caller that is frozen or dropped
    /// would take the whole local queue with it.
    pub(super) contention: Option<(AbortHandle, Arc<Observed>)>,
    /// When it was known last that this process held the lock, and how long the store took to answer the request for it.
    pub(super) held: Option<(Moment, Duration)>,
}

/// What a tenure holds.
pub(super) struct Held {
    pub(super) owned: OwnedHold,
    /// Revokes an offer that nobody takes, and sees the loss of the hold.
    watcher: Option<AbortOnDropHandle<()>>,
}

impl Group {
    /// Does what those who wait need. The last thing that is done while the group is locked: what the caller
    /// does with the end of a tenure, once it is unlocked, may panic.
    pub(super) fn serve(self: &Arc<Group>, state: &mut State, client: &Arc<ClientInner>) {
        match state.queue.need() {
            Need::Nothing => {}
            Need::Watch => self.watch(state, client),
            Need::Contention(id) => {
                let observed = Arc::<Observed>::default();
                let contending = contend(self.clone(), client.clone(), id, observed.clone());
                let task = client.reaper.runtime.spawn(contending).abort_handle();
                state.contention = Some((task, observed));
            }
        }
    }

    fn watch(self: &Arc<Group>, state: &mut State, client: &Arc<ClientInner>) {
        let Some(tenure) = state.queue.tenure() else { return };
        if tenure.held.watcher.is_none() {
            let ends = [tenure.ends, tenure.first_ends];
            let hold = tenure.held.owned.hold.clone();
            let watching = watch(self.clone(), client.clone(), tenure.id, ends, hold);
            let task = client.reaper.runtime.spawn(watching);
            tenure.held.watcher = Some(AbortOnDropHandle::new(task));
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
            let next = {
                let mut state = self.state.lock();
                let now = client.now();
                let most = self.request.local_handoffs;
                let held = state.queue.tenure().filter(|tenure| tenure.held.is_valid(now));
                if let Some(tenure) = held {
                    let grant = &tenure.held.owned.hold.grant;
                    state.held = Some((now, grant.since.duration_since(grant.asked)));
                }
                let next = state.queue.pass_on(number, now, most, |held| held.is_valid(now))?;
                match &next {
                    Next::Offer(..) => self.watch(&mut state, client),
                    Next::Ended(_) => self.serve(&mut state, client),
                }
                next
            };
            let waiter = match next {
                Next::Offer(waiter, next) => {
                    number = next;
                    waiter
                }
                Next::Ended(held) => {
                    self.remove_if_idle();
                    return Some(held.owned);
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
            let ended = state.queue.end(tenure, now, is_lost);
            if ended.is_some() {
                self.serve(&mut state, client);
            }
            ended
        };
        self.remove_if_idle();
        drop(ended);
    }

    pub(super) fn remove_if_idle(self: &Arc<Group>) {
        let Some(listed) = self.listed.upgrade() else { return };
        let mut groups = listed.groups.lock();
        let is_listed = groups.get(&self.key).is_some_and(|group| Arc::ptr_eq(group, self));
        if is_listed && self.state.lock().queue.is_idle() {
            groups.remove(&self.key);
        }
    }

    /// The contention has ended without a grant: what its waiters are told.
    fn refuse(self: &Arc<Group>, client: Option<&Arc<ClientInner>>, id: u64, error: &Error) {
        let refused = {
            let mut state = self.state.lock();
            let Some(refused) = state.queue.refuse(id, error.kind()) else { return };
            state.contention = None;
            if let Some(client) = client {
                self.serve(&mut state, client);
            }
            refused
        };
        for waiter in refused {
            let _ = waiter.send(Err(error.clone()));
        }
        self.remove_if_idle();
    }
}

impl Held {
    pub(super) fn is_valid(&self, now: Moment) -> bool {
        self.owned.hold.is_valid(now)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if self.is_open {
            drop(self.group.pass_on(&self.client, self.number));
        }
    }
}

/// Acquires the lock from the store for those who wait.
async fn contend(group: Arc<Group>, client: Arc<ClientInner>, id: u64, observed: Arc<Observed>) {
    let unanswered = Unanswered { group: &group, id };
    let for_ever = WaitLimit { limit: Duration::MAX, left: Duration::MAX };
    match acquire(&client, &group.request, for_ever, Some(&observed)).await {
        Ok(owned) => {
            let since = owned.hold.grant.since;
            let held = Held { owned, watcher: None };
            let granted = {
                let mut state = group.state.lock();
                let granted = state.queue.grant(id, held, since + TENURE, since + FIRST_TURN);
                if granted.is_ok() {
                    state.contention = None;
                }
                granted
            };
            // Nobody waits any more: what was acquired is released.
            if let Ok(number) = granted {
                drop(group.pass_on(&client, number));
            }
        }
        Err(error) => group.refuse(Some(&client), id, &error),
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
        let error = if std::thread::panicking() {
            let message = "the task that asked the store for this process has panicked";
            Error::new(ErrorKind::Refused, message)
        } else {
            closed()
        };
        self.group.refuse(None, self.id, &error);
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
