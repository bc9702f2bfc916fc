//! A cyclic barrier: its parties pass together, when all have arrived, round after round.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::acquire::unanswered;
use crate::cells::{Handle, Step, View, not_ours};
use crate::claim::wait::patience;
use crate::recipes::participants::{self, Id};
use crate::sync::Mutex;
use crate::telemetry::program;
use crate::types::error::{Error, ErrorKind, Operation, Result, closed, invalid};
use crate::types::options::{self, format_duration};

/// The most parties: the ids of two rounds fit into one cell.
pub(crate) const MOST: u32 = 512;

/// Lets its parties pass together, when all of them have arrived, round after round: for work in
/// phases.
///
/// A party that dies after its arrival counts as arrived; one that dies before keeps the others waiting
/// until their [limit](Barrier::wait_at_most). One that gives up is waited for again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let phase = locks.barrier("phase", 2);
/// let (one, two) = tokio::join!(phase.arrive_and_wait(), phase.arrive_and_wait());
/// assert_eq!((one?.generation(), two?.generation()), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    handle: Handle,
    parties: u32,
    limit: Option<Duration>,
}

/// A round of a barrier that all parties have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip {
    generation: u64,
}

impl Trip {
    /// The number of the round, from 1 on.
    #[must_use]
    pub fn generation(self) -> u64 {
        self.generation
    }
}

struct State {
    /// Drawn when it is made: a barrier that was removed and made anew is another.
    barrier: Id,
    /// How often all parties have passed.
    generation: u64,
    arrived: Vec<Id>,
    /// Those of the round before.
    before: Vec<Id>,
}

/// One round of one barrier.
#[derive(Clone, Copy, Debug)]
struct Round {
    barrier: Id,
    generation: u64,
}

/// What came of an arrival.
#[derive(Clone, Copy)]
enum Arrival {
    WaitsFor(Round),
    Passed(Trip),
}

/// What came of a withdrawal.
#[derive(Clone, Copy)]
enum Withdrawn {
    Passed(Trip),
    /// The arrival does not count, and never will.
    TakenBack,
    /// Its round is over, and the barrier no longer shows who passed it: only the answer to the arrival says.
    Unknown,
}

/// How far the arrival of one party has come, for its withdrawal.
#[derive(Debug)]
struct Progress {
    id: Id,
    /// Other calls may arrive with the same id.
    is_named: bool,
    attempts: Mutex<Attempts>,
}

#[derive(Debug, Default)]
struct Attempts {
    /// None before the first one.
    last: Option<Attempt>,
    /// It is withdrawn: none follows.
    are_over: bool,
    /// How long the store took to make the first one.
    took: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    round: Round,
    /// There was no barrier, so it makes one.
    is_first: bool,
    /// The store has confirmed that it counts.
    is_counted: bool,
}

impl Progress {
    fn start(id: Id, is_named: bool) -> Arc<Progress> {
        Arc::new(Progress { id, is_named, attempts: Mutex::default() })
    }

    /// Begins an attempt.
    ///
    /// # Errors
    /// It is withdrawn, at its limit or since its client is closed.
    fn begin(&self, attempt: Attempt) -> Result<()> {
        let mut attempts = self.attempts.lock();
        attempts.last = Some(attempt);
        match attempts.are_over {
            true => Err(Error::new(ErrorKind::WaitTimedOut, "this arrival was withdrawn")),
            false => Ok(()),
        }
    }

    fn is_counted(&self, so: bool) {
        if let Some(attempt) = &mut self.attempts.lock().last {
            attempt.is_counted = so;
        }
    }

    /// What its withdrawal makes of the barrier for so many `parties`.
    fn withdraw(&self, there: Option<State>, parties: u32) -> (Step, Withdrawn) {
        // Without an attempt no request was sent.
        let last = self.attempts.lock().last;
        let Some(attempt) = last else { return (Step::Keep, Withdrawn::TakenBack) };
        let Attempt { round, is_first, is_counted } = attempt;
        // An arrival that is still on its way expects what was there before it, and would count although its
        // party has given up. So it is replaced also where the arrival is not seen.
        match there {
            None if is_first && !is_counted => {
                (State::fresh().write(parties), Withdrawn::TakenBack)
            }
            None => (Step::Keep, Withdrawn::TakenBack),
            Some(state) if state.barrier != round.barrier => (Step::Keep, Withdrawn::TakenBack),
            Some(state) if state.generation > round.generation && !is_counted => {
                (Step::Keep, Withdrawn::Unknown)
            }
            // A party with a name may be among those of a round before its own.
            Some(state)
                if state.generation >= round.generation
                    && (is_counted || state.before.contains(&self.id)) =>
            {
                (Step::Keep, Withdrawn::Passed(Trip { generation: round.generation }))
            }
            Some(mut state) => {
                state.arrived.retain(|it| *it != self.id);
                (state.write(parties), Withdrawn::TakenBack)
            }
        }
    }
}

impl Barrier {
    pub(crate) fn new(handle: Handle, parties: u32) -> Barrier {
        let valid = options::count(parties, MOST, "the number of parties");
        Barrier { handle: handle.checked(valid), parties, limit: None }
    }

    /// Waits at most `limit` for the others. By default for ever.
    #[must_use]
    pub fn wait_at_most(self, limit: Duration) -> Barrier {
        Barrier { limit: Some(limit), ..self }
    }

    /// Keeps it for `time` after its last change, 1 s to 10 years, in place of seven days.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Barrier {
        Barrier { handle: self.handle.keep_for(time), ..self }
    }

    /// Arrives, and waits for the others.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimedOut`] when the others have not arrived within the limit: this arrival does
    /// not count any more. [`ErrorKind::Lost`] when the barrier was removed meanwhile.
    /// [`ErrorKind::InvalidArgument`] when it was made for another number of parties: the message has both.
    /// Otherwise the store's: [`ErrorKind::Unreachable`] says when it is unknown whether this arrival counted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the arrival is withdrawn in the background, unless all have passed; until then it may
    /// count.
    pub async fn arrive_and_wait(&self) -> Result<Trip> {
        self.arrive(Progress::start(participants::anonymous(), false)).await
    }

    /// As [`arrive_and_wait`](Barrier::arrive_and_wait), as the party `who`: one that arrives again before
    /// the round is over, such as after it was started again, counts once.
    ///
    /// # Errors
    /// As [`arrive_and_wait`](Barrier::arrive_and_wait).
    ///
    /// # Cancel safety
    /// As [`arrive_and_wait`](Barrier::arrive_and_wait).
    pub async fn arrive_as(&self, who: &str) -> Result<Trip> {
        self.arrive(Progress::start(participants::named(who), true)).await
    }

    /// How many have arrived and wait for the others.
    ///
    /// # Errors
    /// Those of [`arrive_and_wait`](Barrier::arrive_and_wait) that are not about waiting.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn arrived(&self) -> Result<u32> {
        let parties = self.parties;
        let arrived = |there: Option<View<'_>>| {
            let state = State::read(there, parties)?;
            // At most MOST.
            Ok(state.map_or(0, |state| state.arrived.len() as u32))
        };
        self.handle.read(Operation::Read, arrived).await
    }

    /// Removes it. Those who wait get an error.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be removed.
    pub async fn remove(&self) -> Result<()> {
        self.handle.remove().await
    }

    async fn arrive(&self, progress: Arc<Progress>) -> Result<Trip> {
        let (limit, started) = (self.limit.unwrap_or(Duration::MAX), Instant::now());
        // Before the first request: the arrival may be made although this future is dropped.
        let owed = timeout(limit, self.owe_withdrawal(progress.clone())).await;
        let owed =
            owed.unwrap_or_else(|_| Err(self.handle.explain(unanswered(limit), Operation::Wait)))?;
        let mut staying = Box::pin(self.arrive_and_stay(&progress));
        let left = limit.saturating_sub(started.elapsed());
        let passed = match timeout(left, staying.as_mut()).await {
            // Withdrawn before its limit, since the client is closed.
            Ok(Err(error)) if error.kind() == ErrorKind::WaitTimedOut => {
                Err(self.handle.explain(closed(), Operation::Wait))
            }
            Ok(passed) => passed,
            Err(_) => {
                let until = Instant::now() + patience(progress.attempts.lock().took);
                let withdrawn = timeout_at(until, self.withdraw(progress.clone())).await;
                match withdrawn.unwrap_or_else(|_| Err(self.unanswered(limit)))? {
                    Withdrawn::Passed(trip) => Ok(trip),
                    Withdrawn::TakenBack => Err(self.timed_out(limit)),
                    // Its answer is here, since changes of one cell are made in turn.
                    Withdrawn::Unknown => match timeout_at(until, staying).await {
                        Ok(Err(error)) if error.kind() == ErrorKind::WaitTimedOut => {
                            Err(self.timed_out(limit))
                        }
                        Ok(passed) => passed,
                        Err(_) => Err(self.unanswered(limit)),
                    },
                }
            }
        };
        let is_settled = match &passed {
            Ok(_) => true,
            // Nothing was written, or it does not count.
            Err(error) => matches!(
                error.kind(),
                ErrorKind::InvalidArgument
                    | ErrorKind::Lost
                    | ErrorKind::Foreign
                    | ErrorKind::WaitTimedOut
            ),
        };
        if is_settled {
            let _ = owed.send(());
        }
        passed
    }

    /// Has the arrival withdrawn, unless the sender is used, when it is dropped, or the client is closed.
    async fn owe_withdrawal(&self, progress: Arc<Progress>) -> Result<oneshot::Sender<()>> {
        let client = self.handle.client(Operation::Wait).await?.clone();
        let (owed, settled) = oneshot::channel();
        let (barrier, tasks, runtime) =
            (self.clone(), client.reaper.tasks.clone(), client.reaper.runtime.clone());
        tasks.spawn_on(
            async move {
                let is_settled = tokio::select! {
                    biased;
                    settled = settled => settled.is_ok(),
                    () = client.closing.cancelled() => false,
                };
                if !is_settled && let Err(error) = barrier.withdraw(progress).await {
                    program::call(|| {
                        tracing::warn!(target: "fencelock", %error, "an arrival was not withdrawn");
                    });
                }
            },
            &runtime,
        );
        Ok(owed)
    }

    async fn arrive_and_stay(&self, progress: &Arc<Progress>) -> Result<Trip> {
        let started = Instant::now();
        loop {
            let round = match self.arrive_once(progress).await? {
                Arrival::Passed(trip) => return Ok(trip),
                Arrival::WaitsFor(round) => round,
            };
            progress.is_counted(true);
            progress.attempts.lock().took = started.elapsed();
            let passed = self.until(round, progress.id).await;
            match passed.map_err(|error| self.handle.explain(error, Operation::Wait))? {
                Some(trip) => return Ok(trip),
                // An earlier call of this party, which was dropped, has taken back the arrival that is its own and
                // this one's.
                None if progress.is_named => progress.is_counted(false),
                None => return Err(self.handle.explain(removed(), Operation::Wait)),
            }
        }
    }

    async fn arrive_once(&self, progress: &Arc<Progress>) -> Result<Arrival> {
        let (parties, id, progress) = (self.parties, progress.id, progress.clone());
        let arrive = move |there: Option<View<'_>>| {
            let is_first = there.is_none();
            let mut state = State::read(there, parties)?.unwrap_or_else(State::fresh);
            let generation = state.generation + 1;
            let round = Round { barrier: state.barrier, generation };
            progress.begin(Attempt { round, is_first, is_counted: false })?;
            if state.arrived.contains(&id) {
                return Ok((Step::Keep, Arrival::WaitsFor(round)));
            }
            state.arrived.push(id);
            if state.arrived.len() < parties as usize {
                return Ok((state.write(parties), Arrival::WaitsFor(round)));
            }
            let before = std::mem::take(&mut state.arrived);
            let state = State { generation, before, ..state };
            Ok((state.write(parties), Arrival::Passed(Trip { generation })))
        };
        self.handle.change(Operation::Wait, arrive).await
    }

    /// Waits until all have passed `round`, or the arrival is gone. Only the state decides, not a
    /// notification.
    async fn until(&self, round: Round, id: Id) -> Result<Option<Trip>> {
        let Round { barrier, generation } = round;
        let mut watching = self.handle.watch(Operation::Wait).await?;
        loop {
            let seen = watching.next().await?;
            match State::read(seen.view(), self.parties)? {
                // Others may have passed one that was made anew.
                Some(state) if state.barrier != barrier => return Err(removed()),
                Some(state) if state.generation >= generation => {
                    return Ok(Some(Trip { generation }));
                }
                Some(state) if state.arrived.contains(&id) => {}
                Some(_) => return Ok(None),
                None => return Err(removed()),
            }
        }
    }

    /// Takes an arrival back, unless all have passed its round meanwhile.
    async fn withdraw(&self, progress: Arc<Progress>) -> Result<Withdrawn> {
        let parties = self.parties;
        progress.attempts.lock().are_over = true;
        let withdraw = move |there: Option<View<'_>>| {
            Ok(progress.withdraw(State::read(there, parties)?, parties))
        };
        self.handle.change_also_when_closing(Operation::Wait, withdraw).await
    }

    fn unanswered(&self, limit: Duration) -> Error {
        let error = unanswered(limit).adding(
            "; it is not known whether this arrival counted: unless all have passed, it is withdrawn in the background",
        );
        self.handle.explain(error, Operation::Wait)
    }

    fn timed_out(&self, limit: Duration) -> Error {
        let limit = format_duration(limit);
        let parties = self.parties;
        let message = format!(
            "not all of {parties} parties arrived within {limit}; this arrival does not count any more"
        );
        self.handle.explain(Error::new(ErrorKind::WaitTimedOut, message), Operation::Wait)
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::Lost, "the barrier was removed")
}

impl State {
    fn fresh() -> State {
        let barrier = participants::anonymous();
        State { barrier, generation: 0, arrived: Vec::new(), before: Vec::new() }
    }

    /// The state of a barrier for so many `parties`.
    fn read(there: Option<View<'_>>, parties: u32) -> Result<Option<State>> {
        let Some(view) = there else { return Ok(None) };
        let state = parse(view.body).ok_or_else(not_ours)?;
        match state.0 == parties {
            true => Ok(Some(state.1)),
            false => Err(invalid(format!(
                "this barrier was made for {} parties, not {parties}; use one number, or remove it first",
                state.0
            ))),
        }
    }

    fn write(&self, parties: u32) -> Step {
        let mut body = parties.to_be_bytes().to_vec();
        body.extend(self.barrier);
        body.extend(self.generation.to_be_bytes());
        // At most MOST.
        body.extend((self.arrived.len() as u32).to_be_bytes());
        participants::write(&self.arrived, &mut body);
        participants::write(&self.before, &mut body);
        Step::Write { body, fence: 0 }
    }
}

fn parse(body: &[u8]) -> Option<(u32, State)> {
    let (parties, rest) = body.split_first_chunk()?;
    let (barrier, rest) = rest.split_first_chunk()?;
    let (generation, rest) = rest.split_first_chunk()?;
    let (arrived, ids) = rest.split_first_chunk()?;
    let mut arrived_ids = participants::read(ids)?;
    let arrived = usize::try_from(u32::from_be_bytes(*arrived)).ok()?;
    let before = (arrived <= arrived_ids.len()).then(|| arrived_ids.split_off(arrived))?;
    let generation = u64::from_be_bytes(*generation);
    let state = State { barrier: *barrier, generation, arrived: arrived_ids, before };
    Some((u32::from_be_bytes(*parties), state))
}

const _: () =
    assert!(16 + (1 + 2 * MOST as usize) * participants::LENGTH <= crate::cells::MAX_BODY);
