//! Several locks at once: all of them or none, without a deadlock.
//!
//! They are acquired one after the other in one order for all clients of a store, which is what
//! excludes a deadlock (Havender, "Avoiding deadlock in multitasking systems", 1968).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::acquire::WaitLimit;
use crate::client::ClientInner;
use crate::guard::Guard;
use crate::guards::{Guards, first_lost};
use crate::lock::{Lock, left};
use crate::store::claim::AcquireRequest;
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result, invalid};
use crate::types::mode::Mode;

/// The most locks of one call: the earlier ones are held idle while the later ones are waited for.
const MOST: usize = 256;

/// Acquires all of `locks` or none, without a deadlock, whatever the order in which they are given.
///
/// They are acquired one after the other in the order of their stores' URLs and of their names, so
/// that clients which want the same locks never wait for each other in a circle. While a later one
/// is waited for, the earlier ones are renewed; if one of them is lost, all are given back and it
/// begins again. (A fixed lease runs from its own grant on: let it be longer than all of this may take.) The locks
/// may be of different kinds and stores. One that is given twice is acquired once, as a writer if either is one, with
/// the same lease and owner; permits cannot be given twice. At most 256 locks.
///
/// This excludes a deadlock only among locks that are acquired in one call: code that already holds a lock
/// while it acquires others, also under one [`Owner`](crate::Owner), may deadlock with another, so set a wait limit.
/// When it may wait, it logs a warning for a lock whose owner already holds, by the same client, one that comes
/// after it in the order. An acquisition of a single lock logs none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use std::time::Duration;
/// let both = fencelock::all([locks.lock("account/1"), locks.lock("account/2")])
///     .wait_at_most(Duration::from_secs(3))
///     .acquire()
///     .await?;
/// let (from, to) = (both[0].fencing_token(), both[1].fencing_token()); // each for its own account
/// both.run(async { println!("transfer with the tokens {from} and {to}") }).await?;
/// both.release().await?;
/// # Ok(()) }
/// ```
pub fn all(locks: impl IntoIterator<Item = Lock>) -> All {
    All { locks: locks.into_iter().collect(), wait: None }
}

/// Several locks and the wait limit of their acquisition; see [`all`].
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are acquired"]
pub struct All {
    locks: Vec<Lock>,
    wait: Option<Duration>,
}

impl All {
    /// Waits at most `limit` for all of them together; zero means not at all. Required when the locks
    /// are of several stores: two programs may name the stores differently, and so disagree about the
    /// order; the limit then ends their deadlock.
    pub fn wait_at_most(mut self, limit: Duration) -> All {
        self.wait = Some(limit);
        self
    }

    /// Acquires all of the locks, and waits for them if necessary. No locks are acquired at once.
    ///
    /// [`hold_at_most`](Lock::hold_at_most) of one counts from the moment when all are held.
    ///
    /// # Errors
    /// As [`Lock::acquire`], naming the lock, and how many of the locks were held: they are released
    /// in the background. [`ErrorKind::InvalidArgument`] also for more than 256 locks, for a wait
    /// limit of one of them, for permits of one semaphore twice, and for several stores without a
    /// wait limit.
    ///
    /// # Cancel safety
    /// Dropped at any await, it leaves neither a place in a queue nor a lock: the clean-up runs in the
    /// background.
    pub async fn acquire(&self) -> Result<Guards> {
        self.acquire_within(self.wait.unwrap_or(Duration::MAX)).await
    }

    /// All of the locks, or `None` when one of them is not free: at once, or after
    /// [`wait_at_most`](All::wait_at_most).
    ///
    /// # Errors
    /// As [`acquire`](All::acquire), except for a lock that is not free; [`ErrorKind::Lost`], which a retry may help,
    /// when one was lost before all were held.
    ///
    /// # Cancel safety
    /// As [`acquire`](All::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guards>> {
        match self.acquire_within(self.wait.unwrap_or(Duration::ZERO)).await {
            Ok(guards) => Ok(Some(guards)),
            Err(error) => match error.kind() {
                ErrorKind::Busy | ErrorKind::WaitTimedOut => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Acquires all of the locks, runs `work` while they are held, and releases them: what
    /// [`acquire`](All::acquire), [`Guards::run`] and [`Guards::release`] do one after the other.
    ///
    /// # Errors
    /// - Those of [`acquire`](All::acquire).
    /// - [`ErrorKind::Lost`]: one of the locks was lost before `work` completed, which was dropped.
    /// - [`ErrorKind::NotHeld`]: `work` completed, but the store says that another client may have
    ///   held one of the locks meanwhile; the result is dropped.
    ///
    /// Other errors of the releases, such as a store that is silent, are logged and hide no result:
    /// the work ended while all locks were held, and the releases continue in the background.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work`, and leaves neither a place in a queue nor a lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let accounts = fencelock::all([locks.lock("account/1"), locks.lock("account/2")]);
    /// let moved = accounts
    ///     .with(async |guards| {
    ///         println!("write with {} and {}", guards[0].fencing_token(), guards[1].fencing_token());
    ///         100
    ///     })
    ///     .await?;
    /// assert_eq!(moved, 100);
    /// # Ok(()) }
    /// ```
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Guards) -> T) -> Result<T> {
        self.acquire().await?.release_after(work).await
    }

    /// As [`with`](All::with), but `None`, without any work, when one of the locks is not free: at
    /// once, or after [`wait_at_most`](All::wait_at_most).
    ///
    /// # Errors
    /// As [`with`](All::with), except for a lock that is not free.
    ///
    /// # Cancel safety
    /// As [`with`](All::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let reports = fencelock::all([locks.lock("report/sales"), locks.lock("report/stock")]);
    /// match reports.try_with(async |_| println!("no other process makes either")).await? {
    ///     Some(()) => println!("done"),
    ///     None => println!("another process makes one of them"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_with<T>(&self, work: impl AsyncFnOnce(&Guards) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guards) => guards.release_after(work).await.map(Some),
            None => Ok(None),
        }
    }

    async fn acquire_within(&self, limit: Duration) -> Result<Guards> {
        self.require_few()?;
        let started = Instant::now();
        let (members, order) = self.members(limit, started).await?;
        if !limit.is_zero() {
            warn_out_of_order(&members);
        }
        loop {
            let wait_limit = || WaitLimit { limit, left: left(limit, Some(started)) };
            match acquire_in_order(&members, wait_limit).await? {
                Ok(guards) => return Ok(Guards { guards, order }),
                // Going on from the lost one would acquire out of order.
                Err(reason) => tracing::debug!(
                    target: "fencelock", reason = reason.as_str(),
                    "one of several locks was lost before all were held; beginning again"
                ),
            }
        }
    }

    fn require_few(&self) -> Result<()> {
        match (self.locks.len(), self.locks.first()) {
            (given, Some(first)) if given > MOST => {
                let error = invalid(format!(
                    "all([…]) was given {given} locks; expected at most {MOST}: acquire fewer, such as one \
                     lock for each group of what they protect"
                ));
                Err(first.connection.explain(error, Operation::Acquire))
            }
            _ => Ok(()),
        }
    }

    /// What to acquire, in the order of the acquisition, and where each of the given locks is in it.
    async fn members(
        &self,
        limit: Duration,
        started: Instant,
    ) -> Result<(Vec<Member<'_>>, Vec<usize>)> {
        let mut members: Vec<Member<'_>> = Vec::with_capacity(self.locks.len());
        // By the index of the given lock.
        let mut member_of = Vec::with_capacity(self.locks.len());
        for lock in &self.locks {
            let (client, request) = lock.resolved(limit, started).await?;
            let explained = |error| Err(client.explain(error, Operation::Acquire, &request.name));
            if lock.wait.is_some() || lock.since.is_some() {
                return explained(invalid(
                    "wait_at_most was set on this lock; the limit is for all locks together: remove it \
                     here, and write all([…]).wait_at_most(limit)",
                ));
            }
            let known = members.iter_mut().enumerate().find(|(_, it)| it.is_for(client, request));
            match known {
                Some((index, member)) => {
                    if let Err(error) = member.merge(lock, request) {
                        return explained(error);
                    }
                    member_of.push(index);
                }
                None => {
                    member_of.push(members.len());
                    members.push(Member::new(lock, client, request));
                }
            }
        }
        let spans_stores = members.iter().any(|it| !Arc::ptr_eq(it.client, members[0].client));
        if spans_stores && limit == Duration::MAX {
            let error = invalid(
                "locks of several stores need a limit, all([…]).wait_at_most(limit): a program that spells \
                 their URLs differently acquires them in another order, and each may wait for the other",
            );
            return Err(error.during(Operation::Acquire));
        }
        let mut sorted: Vec<usize> = (0..members.len()).collect();
        sorted.sort_by(|one, two| members[*one].place().cmp(&members[*two].place()));
        let mut place = vec![0; members.len()];
        for (at, member) in sorted.iter().enumerate() {
            place[*member] = at;
        }
        members.sort_by(|one, two| one.place().cmp(&two.place()));
        Ok((members, member_of.into_iter().map(|member| place[member]).collect()))
    }
}

/// One lock of several, with the options of its acquisition.
struct Member<'a> {
    lock: &'a Lock,
    client: &'a Arc<ClientInner>,
    request: AcquireRequest,
    hold_at_most: Option<Duration>,
}

impl<'a> Member<'a> {
    fn new(lock: &'a Lock, client: &'a Arc<ClientInner>, request: &AcquireRequest) -> Member<'a> {
        let hold_at_most = request.hold_at_most;
        let request = AcquireRequest { hold_at_most: None, ..request.clone() };
        Member { lock, client, request, hold_at_most }
    }

    fn is_for(&self, client: &Arc<ClientInner>, request: &AcquireRequest) -> bool {
        Arc::ptr_eq(self.client, client) && self.request.name == request.name
    }

    /// The lock was given again.
    fn merge(&mut self, lock: &'a Lock, request: &AcquireRequest) -> Result<()> {
        match (self.request.mode, request.mode) {
            (Mode::Permits(_), _) | (_, Mode::Permits(_)) => {
                return Err(invalid(
                    "permits were given twice, or beside a lock of the same name, which is the same lock; \
                     give it once, with permits(n) for several",
                ));
            }
            (Mode::Shared, Mode::Exclusive) => {
                (self.request.mode, self.request.kind) = (request.mode, request.kind);
            }
            (Mode::Exclusive, _) | (Mode::Shared, Mode::Shared) => {}
        }
        if (self.request.ttl, self.request.renewed) != (request.ttl, request.renewed) {
            return Err(invalid(
                "it was given twice with different leases; give it one ttl() or fixed_lease() at both places",
            ));
        }
        match (&self.lock.owner, &lock.owner) {
            (Some(one), Some(two)) if !one.is(two) => {
                return Err(invalid(
                    "it was given twice for different owners, which would wait for each other; use one Owner",
                ));
            }
            (None, Some(_)) => (self.lock, self.request.is_owned) = (lock, true),
            _ => {}
        }
        self.hold_at_most = match (self.hold_at_most, request.hold_at_most) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Ok(())
    }

    /// The same in all clients of a store. Two stores of one process may have one URL, such as mem://.
    fn place(&self) -> (&str, &str, usize) {
        let client = Arc::as_ptr(self.client).addr();
        (&self.client.redacted_url, self.request.name.key(), client)
    }
}

/// Logs that an owner waits out of order, for a lock that comes before one that it holds already: a
/// client that acquires both in order may wait for it, and it for that client.
fn warn_out_of_order(members: &[Member<'_>]) {
    let out_of_order = members.iter().find_map(|member| {
        let held = member.lock.owner.as_ref()?.held_after(member.client, &member.request.name)?;
        Some((&member.request.name, held))
    });
    if let Some((lock, held)) = out_of_order {
        tracing::warn!(
            target: "fencelock", %lock, %held,
            "an owner acquires a lock that comes before one that it holds; acquire both in one all([…])"
        );
    }
}

/// All guards, or why one of them was lost before all were held.
async fn acquire_in_order(
    members: &[Member<'_>],
    wait_limit: impl Fn() -> WaitLimit,
) -> Result<std::result::Result<Vec<Guard>, LostReason>> {
    let mut held = Held(Vec::with_capacity(members.len()));
    for member in members {
        let acquiring = member.lock.acquire_resolved(member.client, &member.request, wait_limit());
        let acquired = tokio::select! {
            biased;
            acquired = acquiring => acquired,
            (guard, reason) = first_lost(&held.0) => return begin_again(guard, reason, wait_limit()),
        };
        match acquired {
            Ok(guard) => held.0.push(guard),
            Err(error) => {
                let error = member.lock.tell_own_hold(error);
                let (held, all) = (held.0.len(), members.len());
                return Err(error.adding(&format!("; {held} of {all} locks were held until then")));
            }
        }
    }
    if let Some(guard) = held.0.iter().find(|guard| !guard.is_held()) {
        return begin_again(guard, guard.lost().await, wait_limit());
    }
    let guards = std::mem::take(&mut held.0).into_iter().zip(members).map(|(guard, member)| {
        match member.hold_at_most {
            Some(limit) => guard.end_at(member.client.now() + limit),
            None => guard,
        }
    });
    Ok(Ok(guards.collect()))
}

/// A lock that its owner's first acquisition limits, or of a client that was closed, is not held
/// longer another time. Nor does it begin again after the limit of all: a try of free locks with leases that are too
/// short would be granted them, and lose them, for ever.
fn begin_again<T>(
    lost: &Guard,
    reason: LostReason,
    wait: WaitLimit,
) -> Result<std::result::Result<T, LostReason>> {
    let helps = matches!(reason, LostReason::Expired | LostReason::TakenAway);
    let kind = match reason {
        _ if helps && !wait.left.is_zero() => return Ok(Err(reason)),
        LostReason::Closed => ErrorKind::Closed,
        _ => ErrorKind::Lost,
    };
    let error = Error::new(kind, format!("before all locks were held: {reason}")).retryable(helps);
    Err(lost.explain(error, Operation::Acquire))
}

/// Guards that are dropped in reverse, so that nobody is granted the first before the last.
struct Held(Vec<Guard>);

impl Drop for Held {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}
