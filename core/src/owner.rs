//! Owners: re-entrant use of a lock, by an explicit value.
//!
//! The state of an owner is one small table: per client and lock, the hold that its guards share, or
//! the gate behind which its other acquisitions wait while one of them asks the store. No store
//! knows of it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use tokio_util::sync::CancellationToken;

use crate::acquire::WaitLimit;
use crate::claim::hold::Hold;
use crate::client::ClientInner;
use crate::guard::Guard;
use crate::guard::base::{Base, acquire_base};
use crate::guard::share::{Share, Shared};
use crate::store::claim::AcquireRequest;
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Operation, Result, closed, invalid};
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::options::format_duration;

/// One logical activity, such as a request or a job, whose code acquires a lock again that it holds
/// already. Clones are the same owner.
///
/// The guards of an owner for one lock of one client **share one hold**: all have the same fencing
/// token, in any order of their releases the lock is free after the last, and a loss ends them all.
/// Only the first acquisition asks the store, and its options decide; of a later one,
/// [`hold_at_most`](crate::Lock::hold_at_most) limits its own guard, and the rest has no effect. A
/// later one is granted although others wait for the lock: it would wait for itself behind them.
///
/// - An exclusive hold covers readers, and the guard's mode stays exclusive. A reader that wants to
///   write is refused at once, since it would wait for its own release. Permits have no owner.
/// - Two tasks of an owner do not exclude each other; two owners do, and so do an owner and an
///   acquisition without one.
/// - It ends at the process: pass the [fencing token](crate::FencingToken) to other processes, and
///   let the resource check it, rather than the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Owner;
/// let request = Owner::new();
/// let outer = locks.lock("orders/42").owned_by(&request).acquire().await?;
/// let inner = locks.lock("orders/42").owned_by(&request).acquire().await?; // no request is sent
/// assert_eq!(inner.fencing_token(), outer.fencing_token());
/// outer.release().await?;
/// assert!(inner.is_held());
/// inner.release().await?; // the last one releases the lock
/// # Ok(()) }
/// ```
///
/// Code that cannot pass the owner along finds it in a task-local value:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::{Locks, Owner};
/// tokio::task_local! { static OWNER: Owner; }
/// async fn deduct(locks: &Locks) -> fencelock::Result<()> {
///     locks.lock("stock").owned_by(&OWNER.get()).acquire().await?.release().await
/// }
/// OWNER.scope(Owner::new(), async {
///     let stock = locks.lock("stock").owned_by(&OWNER.get()).acquire().await?;
///     deduct(&locks).await?;
///     stock.release().await
/// }).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Owner {
    holds: Arc<Holds>,
}

/// While it is locked, no hold ends and none is dropped: the program's subscriber, which sees both, may
/// use the owner.
type Holds = Mutex<HashMap<Key, Entry>>;

/// A lock of a client. The entry's guards or asker keep the client, so that no other has its address.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    client: usize,
    lock: LockName,
}

/// Where the others wait for the one that asks.
#[derive(Clone)]
struct Gate {
    /// The end of the asking cancels it.
    opened: CancellationToken,
    /// It waits for no lock, only for the store's answer.
    is_try: bool,
}

enum Entry {
    /// An acquisition of the owner asks the store.
    Asking(Gate),
    /// Its guards share it, until the limit of the first.
    Held { hold: Arc<Hold>, limit: Moment, shared: Weak<Shared> },
}

/// What an acquisition does next.
enum Next {
    Join(Arc<Shared>),
    Wait(Gate),
    Ask(Asking),
}

impl Owner {
    /// An owner that holds nothing.
    #[must_use]
    pub fn new() -> Owner {
        Owner::default()
    }

    /// Whether both are one.
    pub(crate) fn is(&self, other: &Owner) -> bool {
        Arc::ptr_eq(&self.holds, &other.holds)
    }

    pub(crate) async fn acquire(
        &self,
        client: &Arc<ClientInner>,
        request: &AcquireRequest,
        wait: WaitLimit,
    ) -> Result<Guard> {
        let guard = self.join_or_ask(client, request, wait).await;
        guard.map_err(|error| client.explain(error, Operation::Acquire, &request.name))
    }

    async fn join_or_ask(
        &self,
        client: &Arc<ClientInner>,
        request: &AcquireRequest,
        wait: WaitLimit,
    ) -> Result<Guard> {
        // An owner that enters again and again must still yield its worker thread.
        tokio::task::coop::consume_budget().await;
        if let Mode::Permits(_) = request.mode {
            return Err(invalid("permits have no owner; expected lock() or rw_lock()"));
        }
        let key = Key { client: Arc::as_ptr(client).addr(), lock: request.name.clone() };
        let started = client.now();
        loop {
            match self.next(&key, wait.limit.is_zero(), client.now()) {
                Next::Join(shared) => return join(shared, request, client.now()),
                Next::Wait(gate) => wait_at(&gate, client, wait, started).await?,
                Next::Ask(asking) => {
                    let waited = client.now().duration_since(started);
                    let left = wait.left.saturating_sub(waited);
                    // Boxed, so that an acquisition without an owner is no larger for it.
                    let wait = WaitLimit { left, ..wait };
                    let granted = Box::pin(acquire_base(client, request, wait)).await?;
                    return Ok(Guard::of_share(Share::new(asking.granted(granted))));
                }
            }
        }
    }

    /// A lock of `client` that this owner holds and that comes after `lock` in the order of names,
    /// unless it holds `lock` as well.
    pub(crate) fn held_after(
        &self,
        client: &Arc<ClientInner>,
        lock: &LockName,
    ) -> Option<LockName> {
        let (address, now) = (Arc::as_ptr(client).addr(), client.now());
        let mut after = None;
        for (key, entry) in &*self.holds.lock() {
            let Entry::Held { hold, limit, .. } = entry else { continue };
            if key.client != address || now >= *limit || !hold.is_valid(now) {
                continue;
            }
            match key.lock.key().cmp(lock.key()) {
                Ordering::Equal => return None,
                Ordering::Greater => after = Some(key.lock.clone()),
                Ordering::Less => {}
            }
        }
        after
    }

    fn next(&self, key: &Key, is_try: bool, now: Moment) -> Next {
        let mut holds = self.holds.lock();
        match holds.get(key) {
            Some(Entry::Asking(gate)) => return Next::Wait(gate.clone()),
            // After a loss a new hold is acquired, although guards of the lost one may be left.
            Some(Entry::Held { hold, limit, shared }) if now < *limit && hold.is_valid(now) => {
                if let Some(shared) = shared.upgrade() {
                    return Next::Join(shared);
                }
            }
            Some(Entry::Held { .. }) | None => {}
        }
        let gate = Gate { opened: CancellationToken::new(), is_try };
        let before = holds.insert(key.clone(), Entry::Asking(gate.clone()));
        drop(holds);
        if let Some(Entry::Held { hold, .. }) = before {
            // If it is lost, it is reported now.
            hold.is_held(now);
        }
        Next::Ask(Asking { holds: self.holds.clone(), key: key.clone(), gate })
    }
}

/// One more guard of a hold.
fn join(shared: Arc<Shared>, request: &AcquireRequest, now: Moment) -> Result<Guard> {
    // A downgrade that has not begun counts this reference to the guard.
    let held = shared.base.hold().mode();
    if held == Mode::Shared && request.mode != Mode::Shared {
        return Err(invalid(
            "this owner reads it, so a writer of the same owner would wait for itself; release the \
             read guard first, or acquire write() at the beginning",
        ));
    }
    let limit = request.hold_at_most.map_or(Moment::NEVER, |limit| now + limit);
    Ok(Guard::of_share(Share::new(shared).end_at(limit)))
}

/// Waits for the owner's acquisition that asks the store. It is another task of this program, which has the store's
/// answer, or its silence, to tell: to this one the lock is busy with that, and it must not keep the other's claim alive.
async fn wait_at(
    gate: &Gate,
    client: &ClientInner,
    wait: WaitLimit,
    started: Moment,
) -> Result<()> {
    let gives_up = match (wait.limit.is_zero(), gate.is_try) {
        (true, false) => {
            return Err(Error::new(ErrorKind::Busy, "another task of this owner waits for it"));
        }
        // A try waits for no lock, but for the store's answer, whoever asks.
        (true, true) => Moment::NEVER,
        (false, _) => started + wait.left,
    };
    tokio::select! {
        biased;
        () = client.closing.cancelled() => Err(closed()),
        () = gate.opened.cancelled() => Ok(()),
        slept = client.sleep_until(gives_up) => {
            slept?;
            let limit = format_duration(wait.limit);
            let message =
                format!("not granted within {limit}, to another task of this owner either");
            Err(Error::new(ErrorKind::WaitTimedOut, message))
        }
    }
}

/// The right to ask the store. Its end lets another acquisition of the owner look again.
struct Asking {
    holds: Arc<Holds>,
    key: Key,
    gate: Gate,
}

impl Asking {
    fn granted(self, (base, limit): (Base, Moment)) -> Arc<Shared> {
        let hold = base.hold().clone();
        let registered = Registered { holds: self.holds.clone(), key: self.key.clone() };
        let registered: Option<Box<dyn Send + Sync>> = Some(Box::new(registered));
        let shared = Arc::new(Shared { base, limit, _registered: registered });
        let entry = Entry::Held { hold, limit, shared: Arc::downgrade(&shared) };
        self.holds.lock().insert(self.key.clone(), entry);
        shared
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        if let Some(Entry::Asking(_)) = holds.get(&self.key) {
            holds.remove(&self.key);
        }
        drop(holds);
        self.gate.opened.cancel();
    }
}

/// An entry of a hold, removed with its last guard.
struct Registered {
    holds: Arc<Holds>,
    key: Key,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        // The owner may have acquired it again meanwhile, and by a local hand-off the same hold.
        if let Some(Entry::Held { shared, .. }) = holds.get(&self.key)
            && shared.strong_count() == 0
        {
            let removed = holds.remove(&self.key);
            drop(holds);
            drop(removed);
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("locks", &self.holds.lock().len()).finish()
    }
}
