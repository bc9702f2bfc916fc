//! The server of the toy store: queues in arrival order, granted by hand-off, and a line to its
//! clients that can be cut or slowed down.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Claim, Clock, Error, ErrorKind, Label, LockName, Mode, Moment, OwnerToken, Permits, Result,
    TokioClock,
};

use crate::cells::ToyCells;
use crate::mutant::Mutant;

/// How long a hand-off may stay unconfirmed.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// How long a request waits for its reply.
const REQUEST_BOUND: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) mutant: Option<Mutant>,
    pub(crate) clock: TokioClock,
    state: Arc<Mutex<State>>,
    cut: AtomicBool,
    lose_next: AtomicBool,
    delay_nanos: AtomicU64,
    pub(crate) cells: Arc<ToyCells>,
    /// The number of renewals in flight.
    pub(crate) renewals: AtomicUsize,
}

#[derive(Default)]
struct State {
    queues: HashMap<String, Queue>,
    last_ticket: u64,
    last_token: u64,
    grants: u64,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) entries: Vec<Entry>,
    tokens: u64,
}

pub(crate) struct Entry {
    pub(crate) ticket: u64,
    pub(crate) claim: Weak<Claim>,
    pub(crate) owner: OwnerToken,
    pub(crate) mode: Mode,
    pub(crate) label: Label,
    pub(crate) stage: Stage,
    pub(crate) is_watched: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Waits,
    Lapsed,
    Granted { token: u64, until: Moment },
    Held { token: u64, until: Moment },
}

impl Stage {
    pub(crate) fn grant(self) -> Option<(u64, Moment)> {
        match self {
            Stage::Waits | Stage::Lapsed => None,
            Stage::Granted { token, until } | Stage::Held { token, until } => Some((token, until)),
        }
    }
}

impl Server {
    pub(crate) fn new(mutant: Option<Mutant>) -> Arc<Server> {
        Arc::new(Server { mutant, ..Server::default() })
    }

    /// The server as one more client reaches it.
    pub(crate) fn connected(self: &Arc<Server>) -> Arc<Server> {
        match self.is(Mutant::ClockOfEachClient) {
            true => Arc::new(Server {
                mutant: self.mutant,
                state: self.state.clone(),
                cells: self.cells.clone(),
                ..Server::default()
            }),
            false => self.clone(),
        }
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub(crate) fn key(&self, name: &LockName, mode: Mode) -> String {
        let key = name.key();
        match self.mutant {
            Some(Mutant::ModesApart) => format!("{key}#{}", mode.as_str()),
            Some(Mutant::NamesFoldCase) => key.to_lowercase(),
            Some(Mutant::NamesCut) => key.chars().take(255).collect(),
            Some(Mutant::NamesMapSlashes) => key.replace("%2F", "/"),
            _ => key.to_owned(),
        }
    }

    /// All keys under which `name` may be found.
    pub(crate) fn keys(&self, name: &LockName) -> Vec<String> {
        let Ok(permit) = Permits::new(1, 1) else { return Vec::new() };
        let mut keys: Vec<_> = [Mode::Exclusive, Mode::Shared, Mode::Permits(permit)]
            .map(|mode| self.key(name, mode))
            .into();
        keys.dedup();
        keys
    }

    /// Changes the queue of `key`, which also says whether to serve; then the claims that fit are
    /// granted and notified.
    pub(crate) fn change<T>(
        &self,
        key: &str,
        change: impl FnOnce(&mut Queue, Moment) -> (T, bool),
    ) -> T {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let mut queue = state.queues.remove(key).unwrap_or_default();
        queue.expire(now);
        let (result, serve) = change(&mut queue, now);
        let woken = if serve { self.serve(&mut state, &mut queue, now) } else { Vec::new() };
        if !queue.entries.is_empty() {
            state.queues.insert(key.to_owned(), queue);
        }
        drop(state);
        if !self.is(Mutant::NoWakeUps) {
            for claim in woken.iter().filter_map(Weak::upgrade) {
                claim.wake();
            }
        }
        result
    }

    pub(crate) fn ticket(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_ticket += 1;
        state.last_ticket
    }

    fn serve(&self, state: &mut State, queue: &mut Queue, now: Moment) -> Vec<Weak<Claim>> {
        let mut woken = Vec::new();
        loop {
            let waits = |entry: &Entry| entry.stage == Stage::Waits;
            let fits = |entry: &Entry| self.fits(state, queue, entry.mode);
            let next = match self.mutant {
                Some(Mutant::LastComeFirstServed) => queue.entries.iter().rposition(waits),
                Some(Mutant::Overtaking) => {
                    queue.entries.iter().position(|entry| waits(entry) && fits(entry))
                }
                _ => queue.entries.iter().position(waits),
            };
            let Some(next) = next.filter(|next| fits(&queue.entries[*next])) else { break };
            state.grants += 1;
            let entry = &queue.entries[next];
            let (mode, tokens) =
                (entry.mode, entry.claim.upgrade().map_or(1, |it| it.local_handoffs()));
            let token = self.token(state, queue, mode);
            if !self.is(Mutant::NoTokensReserved) {
                state.last_token = state.last_token.max(token + u64::from(tokens) - 1);
            }
            let until = match self.is(Mutant::FrozenWaiterBlocks) {
                true => Moment::NEVER,
                false => now + CONFIRM_WITHIN,
            };
            queue.entries[next].stage = Stage::Granted { token, until };
            if queue.entries[next].is_watched {
                woken.push(queue.entries[next].claim.clone());
            }
            if self.is(Mutant::WakesOnlyOne) {
                break;
            }
        }
        woken
    }

    fn fits(&self, state: &State, queue: &Queue, wanted: Mode) -> bool {
        if self.is(Mutant::DoubleGrant) && state.grants % 10 == 9 {
            return true;
        }
        let counted = |mode: Mode| match (self.mutant, mode) {
            (Some(Mutant::SharedIsExclusive), Mode::Shared) => Mode::Exclusive,
            (Some(Mutant::PermitsCountedByClaims), Mode::Permits(permits)) => {
                Permits::new(1, permits.limit()).map_or(mode, Mode::Permits)
            }
            _ => mode,
        };
        let held = queue.entries.iter().filter(|entry| entry.stage.grant().is_some());
        counted(wanted).is_compatible_with(held.map(|entry| counted(entry.mode)))
    }

    fn token(&self, state: &mut State, queue: &mut Queue, mode: Mode) -> u64 {
        queue.tokens += 1;
        state.last_token = match self.mutant {
            Some(Mutant::TokenFromIncr | Mutant::NoTokensReserved) => state.last_token + 1,
            Some(Mutant::TokenDiesWithTheLock) => return queue.tokens,
            Some(Mutant::ReservesAheadOfTime) => {
                (state.last_token + 1).max(self.clock.now().as_nanos() / 1_000_000)
            }
            Some(Mutant::SharedTokensRepeat) if mode == Mode::Shared => state.last_token.max(1),
            // The server's time, so that it rises although the data is lost; in nanoseconds, since a
            // grant here takes more of them than it reserves tokens.
            _ => (state.last_token + 1).max(self.clock.now().as_nanos()),
        };
        state.last_token
    }

    pub(crate) fn expire(&self, name: &LockName) {
        for key in self.keys(name) {
            self.change(&key, |queue, _| {
                (queue.entries.retain(|entry| entry.stage.grant().is_none()), true)
            });
        }
    }

    pub(crate) fn is_locked(&self, name: &LockName) -> bool {
        self.keys(name).iter().any(|key| {
            self.change(key, |queue, _| {
                (queue.entries.iter().any(|entry| entry.stage.grant().is_some()), false)
            })
        })
    }

    pub(crate) fn clear(&self, prefix: &str) {
        let clears_all = self.is(Mutant::ClearsEverything);
        self.state.lock().queues.retain(|key, _| !clears_all && !key.starts_with(prefix));
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        let queues = self.state.lock().queues.keys().cloned().collect();
        [queues, self.cells.keys()].concat()
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn delay(&self, by: Duration) {
        self.delay_nanos.store(by.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    pub(crate) fn heal(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.lose_next.store(false, Ordering::SeqCst);
        self.delay(Duration::ZERO);
    }

    pub(crate) fn lose_next_reply(&self) {
        self.lose_next.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lose_data(&self) {
        let mut state = self.state.lock();
        let (last_ticket, grants) = (state.last_ticket, state.grants);
        *state = State { last_ticket, grants, ..State::default() };
    }

    /// The way to the server, or the silence of a cut line.
    pub(crate) async fn send(&self) -> Result<()> {
        if !self.cut.load(Ordering::SeqCst) {
            return Ok(());
        }
        tokio::time::sleep(REQUEST_BOUND).await;
        Err(no_answer())
    }

    /// The way back.
    pub(crate) async fn reply(&self) -> Result<()> {
        let delay = Duration::from_nanos(self.delay_nanos.load(Ordering::SeqCst));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.lose_next.swap(false, Ordering::SeqCst) {
            tokio::time::sleep(REQUEST_BOUND).await;
            return Err(no_answer());
        }
        self.send().await
    }
}

pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "no answer")
}

impl Queue {
    fn expire(&mut self, now: Moment) {
        for entry in &mut self.entries {
            if matches!(entry.stage, Stage::Granted { until, .. } if until <= now) {
                entry.stage = Stage::Lapsed;
            }
        }
        self.entries.retain(|it| !matches!(it.stage, Stage::Held { until, .. } if until <= now));
    }

    pub(crate) fn position(&self, claim: &Claim) -> Option<usize> {
        self.entries.iter().position(|entry| entry.owner == *claim.owner())
    }
}
