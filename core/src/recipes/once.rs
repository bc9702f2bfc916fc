//! `once`: a job that several machines schedule runs once for each tick of the schedule.
//!
//! A lock keeps two runs of a job apart, and a cell remembers which ticks are done. The tick is a label that
//! the caller's schedule made: a wrong clock asks for a wrong label, and never decides who may run.

mod ranges;
mod tick;

use std::time::Duration;

use tokio::time::Instant;

use crate::cells::{Handle, Step, View, not_ours, require_token};
use crate::guard::Guard;
use crate::lock::Lock;
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result, invalid};
use crate::types::options::LONGEST_KEPT;
use crate::types::token::FencingToken;

use ranges::Ranges;
pub use tick::Tick;

/// How long it is remembered which ticks are done, at least.
const KEPT: Duration = Duration::from_secs(90 * 86_400);

/// A job that runs once for each tick of its schedule, on whichever machine comes first.
///
/// A tick is done when its run says so: then no other machine runs it, however late its clock is. A run
/// whose machine died is not done, and may be taken over. No two runs of a job overlap, of whichever
/// tick. So a tick is run **at least once, if any machine asks for it, never twice at a time, and never again
/// once it is done**; with [`never_twice`](Once::never_twice), at most once. What is done is remembered for 90
/// days, or ten periods if that is longer, at most ten years, after the last run: a test or trial takes a name of
/// its own. It is remembered as 128 ranges of ticks: after more than 127 gaps, of ticks that no machine has run, the
/// narrowest gap counts as done.
///
/// `once(n)` holds the lock `n` while it runs: [`lock(n)`](crate::Locks::lock) and it exclude each other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Tick;
/// use std::time::Duration;
/// // On every machine, by its own timer.
/// let nightly = locks.once("nightly-report").tick(Tick::every(Duration::from_secs(86_400)));
/// let made = nightly.run(async |run| Ok::<_, fencelock::Error>(run.fencing_token())).await?;
/// assert!(made.is_some());
/// let again = nightly.run(async |_| Ok::<_, fencelock::Error>(())).await?;
/// assert!(again.is_none(), "this tick is done");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is claimed or run"]
pub struct Once {
    handle: Handle,
    lock: Lock,
    tick: Option<Tick>,
    wait: Duration,
    is_never_twice: bool,
}

/// What came of a claim.
#[derive(Debug)]
pub enum Claimed {
    /// The caller is to run it.
    Run(Run),
    /// It is done. With [`never_twice`](Once::never_twice) also: it was begun.
    Done {
        /// The label of the client that wrote last.
        by: String,
    },
    /// Another client runs the job, this tick or another.
    Running,
}

/// The right to run one tick. Dropped, it is as [failed](Run::failed).
#[derive(Debug)]
#[must_use = "dropping it releases the lock, and the tick is not done"]
pub struct Run {
    guard: Guard,
    handle: Handle,
    tick: Tick,
}

/// What the cell remembers.
#[derive(Default)]
struct State {
    done: Ranges,
    /// By those who run a tick at most once.
    started: Ranges,
    by: String,
}

impl Once {
    pub(crate) fn new(handle: Handle, lock: Lock) -> Once {
        let handle = handle.keep_for(KEPT);
        Once { handle, lock, tick: None, wait: Duration::ZERO, is_never_twice: false }
    }

    /// Which run of the job this is. Required.
    pub fn tick(self, tick: Tick) -> Once {
        let ten = tick.period().unwrap_or_default().saturating_mul(10);
        let handle = self.handle.keep_for(ten.clamp(KEPT, LONGEST_KEPT)).checked(tick.check());
        Once { handle, tick: Some(tick), ..self }
    }

    /// Ends the work `limit` after its start: 1 ms to 365 days.
    pub fn at_most_for(self, limit: Duration) -> Once {
        Once { lock: self.lock.hold_at_most(limit), ..self }
    }

    /// How long a lease store keeps the lock of a client that is silent; see [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Once {
        Once { lock: self.lock.ttl(ttl), ..self }
    }

    /// Waits at most `limit` for another client that runs the job, to take over if that dies. By default
    /// not at all.
    pub fn wait_at_most(self, limit: Duration) -> Once {
        Once { wait: limit, ..self }
    }

    /// Counts the wait limit from `start`, as [`Lock::waiting_since`] does.
    pub fn waiting_since(self, start: Instant) -> Once {
        Once { lock: self.lock.waiting_since(start), ..self }
    }

    /// A tick whose run was begun is not run again, although it died half-way.
    pub fn never_twice(self) -> Once {
        Once { is_never_twice: true, ..self }
    }

    /// A human-readable label shown by `inspect`, and as the one who did it.
    pub fn label(self, text: &str) -> Once {
        Once { lock: self.lock.label(text), ..self }
    }

    /// Asks to run the tick. A tick that is done costs one request.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without a tick. [`ErrorKind::Stale`]: a larger fencing token was written, so
    /// that this run could not be marked as done: another client has taken over, or this one's
    /// [`token_epoch`](crate::Settings::token_epoch) is too small. Otherwise the store's;
    /// [`ErrorKind::Unsupported`] on a store without cells.
    ///
    /// # Cancel safety
    /// Dropped at any await, it leaves neither a lock nor a place in the queue. With
    /// [`never_twice`](Once::never_twice) the tick may count as begun.
    pub async fn claim(&self) -> Result<Claimed> {
        let Some(tick) = self.tick else {
            let error = invalid("expected once(name).tick(…): which run of the job is this?");
            return Err(self.handle.explain(error, Operation::Acquire));
        };
        let is_over = self.is_over(tick);
        if let Some(by) = self.handle.read(Operation::Read, is_over).await? {
            return Ok(Claimed::Done { by });
        }
        let Some(guard) = self.lock.clone().wait_at_most(self.wait).try_acquire().await? else {
            return Ok(Claimed::Running);
        };
        // Work whose end could not be recorded does not begin, nor is it recorded as begun.
        if let Err(error) = self.handle.reserve(Operation::Write).await {
            let over = self.handle.read(Operation::Read, is_over).await?;
            return over.map_or(Err(error), |by| Ok(Claimed::Done { by }));
        }
        // Again, under the lock: another client may have done it meanwhile.
        let over = if self.is_never_twice {
            if !guard.is_held() {
                let error = Error::new(ErrorKind::Lost, "the lock was lost before the run began");
                return Err(self.handle.explain(error, Operation::Acquire));
            }
            self.begin(tick, &guard).await?
        } else {
            let token = guard.fencing_token();
            let is_over = move |there: Option<View<'_>>| match is_over(there)? {
                None => require_token(there, token).map(|()| None),
                over => Ok(over),
            };
            self.handle.read(Operation::Read, is_over).await?
        };
        match over {
            Some(by) => {
                release(guard).await;
                Ok(Claimed::Done { by })
            }
            None => Ok(Claimed::Run(Run { guard, handle: self.handle.clone(), tick })),
        }
    }

    /// Reads who has done the tick, if it is not to be run.
    fn is_over(
        &self,
        tick: Tick,
    ) -> impl Fn(Option<View<'_>>) -> Result<Option<String>> + Copy + Send + 'static {
        let is_never_twice = self.is_never_twice;
        move |there| {
            let state = State::read(there)?;
            tick.warn_if_far_from(&state.done);
            let is_begun = is_never_twice && state.started.contains(tick.get());
            Ok((state.done.contains(tick.get()) || is_begun).then_some(state.by))
        }
    }

    /// Records that the tick is begun, unless it is over.
    async fn begin(&self, tick: Tick, guard: &Guard) -> Result<Option<String>> {
        let (is_over, token) = (self.is_over(tick), guard.fencing_token());
        let by = guard.label().to_owned();
        let begin = move |there: Option<View<'_>>| {
            if let Some(by) = is_over(there)? {
                return Ok((Step::Keep, Some(by)));
            }
            let mut state = State::fenced(there, token)?;
            state.started.add(tick.get());
            state.by.clone_from(&by);
            Ok((state.write(token), None))
        };
        self.handle.change(Operation::Write, begin).await
    }

    /// Runs `work` if the tick is not done and no other client runs the job, and marks the tick as done when
    /// `work` succeeds; after an error it may be run again. `None` when it was not run: it is done, or another
    /// client runs the job, or holds its lock; [`claim`](Once::claim) tells which. The work is dropped when the
    /// lock is lost, or at [its limit](Once::at_most_for), so that it never overlaps another run.
    ///
    /// # Errors
    /// The work's own. Those of [`claim`](Once::claim), [`Guard::run`] and [`Run::done`], converted.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work`, and the tick is not done.
    pub async fn run<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Run) -> std::result::Result<T, E>,
    ) -> std::result::Result<Option<T>, E> {
        let Claimed::Run(run) = self.claim().await? else { return Ok(None) };
        match run.guard.start(async || work(&run).await).await? {
            Ok(done) => {
                run.done().await?;
                Ok(Some(done))
            }
            Err(error) => {
                // The error of the work matters more.
                release(run.guard).await;
                Err(error)
            }
        }
    }
}

impl Run {
    /// The fencing token of this run, for what it writes.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// The tick that it runs.
    #[must_use]
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// Whether the lock is provably held at this moment; see [`Guard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Completes when the lock is lost: the work must end. See [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// Runs `work` while the lock is held, and drops it when the lock is lost; see [`Guard::run`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    /// As cancel safe as `work`.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.guard.run(work).await
    }

    /// The guard, for what takes one, such as [`Cell::write`](crate::Cell::write).
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Marks the tick as done, and releases the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`]: the lock was lost before. [`ErrorKind::Stale`]: another client has taken over.
    /// In both cases nothing was marked. Otherwise the store's; [`ErrorKind::Unreachable`] says when it is
    /// unknown whether it was marked.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tick may or may not be done; the lock is released.
    pub async fn done(self) -> Result<()> {
        if !self.guard.is_held() {
            let error = Error::new(ErrorKind::Lost, "the lock was lost before the tick was done");
            return Err(self.handle.explain(error, Operation::Write));
        }
        let (tick, token) = (self.tick.get(), self.guard.fencing_token());
        let by = self.guard.label().to_owned();
        let done = move |there: Option<View<'_>>| {
            let mut state = State::fenced(there, token)?;
            state.done.add(tick);
            state.by.clone_from(&by);
            Ok((state.write(token), ()))
        };
        self.handle.change(Operation::Write, done).await?;
        release(self.guard).await;
        Ok(())
    }

    /// Releases the lock without marking the tick: it may be claimed again.
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the release continues in the background.
    pub async fn failed(self) -> Result<()> {
        self.guard.release().await
    }
}

/// Releases a lock after its work: what becomes of that matters to no caller.
async fn release(guard: Guard) {
    if let Err(error) = guard.release().await {
        tracing::warn!(target: "fencelock", %error, "the work has ended, its lock is not released");
    }
}

impl State {
    fn read(there: Option<View<'_>>) -> Result<State> {
        match there {
            Some(view) => parse(view.body).ok_or_else(not_ours),
            None => Ok(State::default()),
        }
    }

    /// The state, for a write with `token`.
    fn fenced(there: Option<View<'_>>, token: FencingToken) -> Result<State> {
        require_token(there, token)?;
        State::read(there)
    }

    fn write(&self, token: FencingToken) -> Step {
        let mut body = Vec::new();
        self.done.write(&mut body);
        self.started.write(&mut body);
        body.extend(self.by.as_bytes());
        Step::Write { body, fence: token.get() }
    }
}

fn parse(body: &[u8]) -> Option<State> {
    let (done, rest) = Ranges::read(body)?;
    let (started, by) = Ranges::read(rest)?;
    Some(State { done, started, by: std::str::from_utf8(by).ok()?.to_owned() })
}
