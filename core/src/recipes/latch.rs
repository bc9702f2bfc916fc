//! A latch: it opens when so many participants have counted down, and stays open.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::acquire::unanswered;
use crate::cells::{Handle, Step, View, not_ours};
use crate::claim::wait::patience;
use crate::recipes::participants::{self, Id};
use crate::types::error::{Error, ErrorKind, Operation, Result, invalid};
use crate::types::options::{self, format_duration};

/// The most participants: their ids fit into one cell.
pub(crate) const MOST: u32 = 1_024;

/// Opens when `count` participants have counted down, such as the shards of a batch, and stays open
/// until it is [removed](Latch::remove) or was not changed for [seven days](Latch::keep_for).
///
/// It exists from the first count-down on; waiting for one that does not exist yet waits for it. A
/// participant counts once, by its name: a call that is repeated, also by a worker that was started again,
/// does no harm.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let import = locks.latch("import/2026-11-25", 2); // a name of its own for each round
/// assert_eq!(import.count_down_as("shard-1").await?, 1);
/// assert_eq!(import.count_down_as("shard-1").await?, 1); // started again
/// assert_eq!(import.count_down_as("shard-2").await?, 0);
/// import.wait().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    handle: Handle,
    count: u32,
    limit: Option<Duration>,
}

struct State {
    count: u32,
    arrived: Vec<Id>,
}

impl Latch {
    pub(crate) fn new(handle: Handle, count: u32) -> Latch {
        let valid = options::count(count, MOST, "the latch's count");
        Latch { handle: handle.checked(valid), count, limit: None }
    }

    /// Keeps it for `time` after its last change, 1 s to 10 years, in place of seven days.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Latch {
        Latch { handle: self.handle.keep_for(time), ..self }
    }

    /// Counts down by one, and returns what is left: 0 from the last one on, also for those that come when it is
    /// open already. Prefer [`count_down_as`](Latch::count_down_as)
    /// where a participant may be started again.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the latch was made with another count: the message has both.
    /// Otherwise the store's; [`ErrorKind::Unreachable`] says when it is unknown whether it counted.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not have counted.
    pub async fn count_down(&self) -> Result<u32> {
        self.count(participants::anonymous()).await
    }

    /// Counts down as `who`, once however often it is called, and returns what is left.
    ///
    /// # Errors
    /// As [`count_down`](Latch::count_down).
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not have counted; call it again.
    pub async fn count_down_as(&self, who: &str) -> Result<u32> {
        self.count(participants::named(who)).await
    }

    async fn count(&self, id: Id) -> Result<u32> {
        let count = self.count;
        let count_down = move |there: Option<View<'_>>| {
            let state = State::read(there, count)?;
            let mut state = state.unwrap_or(State { count, arrived: Vec::new() });
            if state.left() == 0 || state.arrived.contains(&id) {
                return Ok((Step::Keep, state.left()));
            }
            state.arrived.push(id);
            Ok((state.write(), state.left()))
        };
        self.handle.change(Operation::Write, count_down).await
    }

    /// Waits at most `limit` in [`wait`](Latch::wait). By default for ever.
    #[must_use]
    pub fn wait_at_most(self, limit: Duration) -> Latch {
        Latch { limit: Some(limit), ..self }
    }

    /// Waits until it is open. All waiters of a client cost the store one watch.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimedOut`] when it is not open within the [limit](Latch::wait_at_most);
    /// [`ErrorKind::Lost`] when it was removed meanwhile. Otherwise as [`count_down`](Latch::count_down).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait(&self) -> Result<()> {
        let (limit, mut took) = (self.limit.unwrap_or(Duration::MAX), Duration::ZERO);
        let opened = match timeout(limit, self.until_open(&mut took)).await {
            Ok(opened) => opened,
            // One reading, for all whose limit ends now, tells a closed latch from a silent store.
            Err(_) => match timeout(patience(took), self.is_open()).await {
                Ok(Ok(false)) => Err(self.timed_out(limit)),
                Ok(is_open) => is_open.map(|_| ()),
                Err(_) => Err(unanswered(limit)),
            },
        };
        opened.map_err(|error| self.handle.explain(error, Operation::Wait))
    }

    /// `took`: how long the first answer took.
    async fn until_open(&self, took: &mut Duration) -> Result<()> {
        let started = Instant::now();
        let mut watching = self.handle.watch(Operation::Wait).await?;
        let mut known = None;
        loop {
            let seen = watching.next().await?;
            if took.is_zero() {
                *took = started.elapsed();
            }
            // Also if it was made anew, before this was read.
            if known.is_some() && seen.born() != known {
                return Err(Error::new(ErrorKind::Lost, "the latch was removed"));
            }
            known = seen.born();
            if State::read(seen.view(), self.count)?.is_some_and(|state| state.left() == 0) {
                return Ok(());
            }
        }
    }

    async fn is_open(&self) -> Result<bool> {
        let seen = self.handle.watch(Operation::Wait).await?.next().await?;
        Ok(State::read(seen.view(), self.count)?.is_some_and(|state| state.left() == 0))
    }

    fn timed_out(&self, limit: Duration) -> Error {
        let (count, limit) = (self.count, format_duration(limit));
        let message = format!("not all of {count} have counted down within {limit}");
        Error::new(ErrorKind::WaitTimedOut, message)
    }

    /// How many have to count down until it opens.
    ///
    /// # Errors
    /// As [`count_down`](Latch::count_down).
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn remaining(&self) -> Result<u32> {
        let count = self.count;
        let left = |there: Option<View<'_>>| {
            Ok(State::read(there, count)?.map_or(count, |state| state.left()))
        };
        self.handle.read(Operation::Read, left).await
    }

    /// Removes it. Waiters get an error, and the next count-down begins a new round.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be removed.
    pub async fn remove(&self) -> Result<()> {
        self.handle.remove().await
    }
}

impl State {
    /// The state of a latch that is to open at `count`.
    fn read(there: Option<View<'_>>, count: u32) -> Result<Option<State>> {
        let Some(view) = there else { return Ok(None) };
        let (number, ids) = view.body.split_first_chunk().ok_or_else(not_ours)?;
        let arrived = participants::read(ids).ok_or_else(not_ours)?;
        let state = State { count: u32::from_be_bytes(*number), arrived };
        match state.count == count {
            true => Ok(Some(state)),
            false => Err(invalid(format!(
                "this latch was made with a count of {}, not {count}; use one count, or remove it first",
                state.count
            ))),
        }
    }

    fn left(&self) -> u32 {
        let arrived = u32::try_from(self.arrived.len()).unwrap_or(u32::MAX);
        self.count.saturating_sub(arrived)
    }

    fn write(&self) -> Step {
        let mut body = self.count.to_be_bytes().to_vec();
        participants::write(&self.arrived, &mut body);
        Step::Write { body, fence: 0 }
    }
}

const _: () = assert!(4 + MOST as usize * participants::LENGTH <= crate::cells::MAX_BODY);
