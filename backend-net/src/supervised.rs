//! One connection to a server, replaced by a new one for as long as the store lives.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::backend::{Backoff, closed, program, unreachable};
use fencelock_core::{Error, Result};
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// After this many timeouts in a row a connection is replaced.
const MAX_TIMEOUTS: u32 = 2;

/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A supervised connection. Dropping it ends the connection.
pub struct Supervised<C> {
    state: Arc<watch::Sender<State<C>>>,
    /// How long a request waits for a connection.
    patience: Duration,
    supervisor: AbortHandle,
}

/// Opens the connections, one after the other. A panic in it ends only the connection or the attempt.
pub trait Connector: Send + 'static {
    /// An established connection. It ends with its last clone.
    type Connection: Clone + Send + Sync + 'static;

    /// Opens a connection.
    fn open(&mut self) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// A connection is in use from now on. `again`: after an earlier one, and what the server pushed in
    /// between is lost.
    fn opened(&mut self, connection: &Self::Connection, again: bool);

    /// An attempt has failed; another one follows.
    fn failed(&mut self, error: &Error);

    /// Returns when the connection must be replaced.
    fn broken(&mut self, connection: &Self::Connection) -> impl Future<Output = ()> + Send;
}

/// Whether there is a connection at the moment.
enum State<C> {
    /// The first attempt to connect has not ended.
    Starting,
    /// There is none, for this reason; another attempt follows.
    Down(Error),
    Up(C),
    /// The store was closed: there will be no other.
    Closed,
}

impl<C: Clone + Send + Sync + 'static> Supervised<C> {
    /// Begins to connect, on `runtime`. A request waits for a connection for up to `patience`.
    pub fn start(
        connector: impl Connector<Connection = C>,
        patience: Duration,
        runtime: &Handle,
    ) -> Supervised<C> {
        let state = Arc::new(watch::Sender::new(State::Starting));
        let supervisor = runtime.spawn(supervise(connector, state.clone())).abort_handle();
        Supervised { state, patience, supervisor }
    }

    /// The current connection, or the reason why there is none.
    ///
    /// # Errors
    /// Of the last attempt to connect.
    pub fn current(&self) -> Result<C> {
        self.state.borrow().connection()
    }

    /// The first attempt to connect has not ended.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        matches!(&*self.state.borrow(), State::Starting)
    }

    /// The current connection; waits for it while it is being replaced, for as long as a request waits.
    ///
    /// # Errors
    /// Of the last attempt to connect.
    pub async fn active(&self) -> Result<C> {
        let now = self.current();
        match now {
            Ok(connection) => Ok(connection),
            // No wait at all: a request sent later could arrive after its claim's release.
            Err(error) if self.patience.is_zero() => Err(error),
            Err(_) => Box::pin(self.next_active()).await,
        }
    }

    async fn next_active(&self) -> Result<C> {
        match tokio::time::timeout(self.patience, self.up()).await {
            Ok(settled) => settled,
            Err(_) => self.current(),
        }
    }

    /// Waits for the first connection, or for the first failure that `is_final`.
    ///
    /// # Errors
    /// That failure.
    pub async fn first(&self, is_final: impl Fn(&Error) -> bool) -> Result<C> {
        let is_reached = |state: &State<C>| match state {
            State::Starting => false,
            State::Down(error) => is_final(error),
            State::Up(_) | State::Closed => true,
        };
        self.until(is_reached).await
    }

    /// Waits for a connection without a limit.
    ///
    /// # Errors
    /// The store was closed.
    pub async fn up(&self) -> Result<C> {
        self.until(|state| matches!(state, State::Up(_) | State::Closed)).await
    }

    async fn until(&self, is_reached: impl FnMut(&State<C>) -> bool) -> Result<C> {
        match self.state.subscribe().wait_for(is_reached).await {
            Ok(state) => state.connection(),
            // Unreachable: `self` owns the sender.
            Err(_) => Err(closed()),
        }
    }
}

impl<C> Supervised<C> {
    /// Ends the connection; all further requests fail.
    pub fn close(&self) {
        self.state.send_replace(State::Closed);
        self.supervisor.abort();
    }
}

impl<C> Drop for Supervised<C> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<C> fmt::Debug for Supervised<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.state.borrow() {
            State::Starting => "starting",
            State::Down(_) => "down",
            State::Up(_) => "up",
            State::Closed => "closed",
        };
        f.debug_struct("Supervised").field("state", &state).finish_non_exhaustive()
    }
}

impl<C: Clone> State<C> {
    fn connection(&self) -> Result<C> {
        match self {
            State::Starting => Err(unreachable("there is no connection yet")),
            State::Down(error) => Err(error.clone()),
            State::Up(connection) => Ok(connection.clone()),
            State::Closed => Err(closed()),
        }
    }
}

/// Reconnects for ever, with a growing, jittered pause, so that many clients do not return in the
/// same instant. A refusal that no retry helps is not asked about again at once: servers count wrong logins.
async fn supervise<T: Connector>(
    mut connector: T,
    state: Arc<watch::Sender<State<T::Connection>>>,
) {
    let start = || Backoff::new(Duration::from_millis(10), LONGEST_PAUSE);
    let (mut backoff, seed) = (start(), rand::random::<u64>());
    let mut was_up = false;
    loop {
        let started = Instant::now();
        let panicked = || Err(unreachable("the code that connects has panicked"));
        match caught(connector.open()).await.unwrap_or_else(panicked) {
            Ok(connection) => {
                set(&state, State::Up(connection.clone()));
                program::call(|| connector.opened(&connection, was_up));
                was_up = true;
                // After a panic nothing watches the connection any more, as if it were broken.
                let _ = caught(connector.broken(&connection)).await;
                set(&state, State::Down(unreachable("the connection was lost")));
                // No pause only after a connection that lasted: others may break again at once.
                if started.elapsed() > LONGEST_PAUSE {
                    backoff = start();
                    continue;
                }
            }
            Err(error) => {
                program::call(|| connector.failed(&error));
                // Settings that worked before may be in the middle of a change: a new password that
                // the server has and this process does not yet, or a failover and back.
                let error = if was_up { error.retryable(true) } else { error };
                if !error.is_retryable() {
                    backoff = Backoff::new(LONGEST_PAUSE, LONGEST_PAUSE);
                }
                set(&state, State::Down(error));
            }
        }
        tokio::time::sleep(backoff.next(seed)).await;
    }
}

/// The output of `work`, or `None` when it panics: it may call the program's subscriber.
async fn caught<T>(work: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(work).catch_unwind().await.ok()
}

/// Sets the state, unless it is `Closed`, which is final even while the supervisor still runs.
fn set<C>(state: &watch::Sender<State<C>>, now: State<C>) {
    state.send_if_modified(|state| {
        let is_open = !matches!(state, State::Closed);
        if is_open {
            *state = now;
        }
        is_open
    });
}

/// What the answers say of a connection.
#[derive(Debug, Default)]
pub struct Health {
    broken: Notify,
    /// The number of answers so far.
    answers: AtomicU32,
    /// Requests that timed out in the silence since the last answer.
    timeouts: AtomicU32,
}

/// When a request was sent: after so many answers.
#[derive(Clone, Copy, Debug)]
pub struct Sent(u32);

impl Health {
    /// A request is sent.
    #[must_use]
    pub fn sent(&self) -> Sent {
        Sent(self.answers.load(Ordering::Relaxed))
    }

    /// An answer came.
    pub fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.timeouts.store(0, Ordering::Relaxed);
    }

    /// A request that was sent then has had no answer in time. The second one in a row breaks the
    /// connection, if it was silent for all of their time: a server that answers other requests meanwhile
    /// is slow, and a new connection to it would not be faster.
    pub fn timed_out(&self, sent: Sent) {
        if self.answers.load(Ordering::Relaxed) != sent.0 {
            return;
        }
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_TIMEOUTS {
            self.fail();
        }
    }

    /// The connection must be replaced.
    pub fn fail(&self) {
        self.broken.notify_one();
    }

    /// Returns when the connection must be replaced.
    pub async fn broken(&self) {
        self.broken.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::ErrorKind;
    use tokio::sync::mpsc;

    use super::*;

    /// Panics in each of its functions, in turn.
    struct Panicking {
        attempts: u32,
        opened: mpsc::UnboundedSender<u32>,
    }

    impl Connector for Panicking {
        type Connection = u32;

        async fn open(&mut self) -> Result<u32> {
            self.attempts += 1;
            match self.attempts {
                1 => panic!("open"),
                2 => Err(Error::new(ErrorKind::Refused, "not yet")),
                n => Ok(n),
            }
        }

        fn opened(&mut self, connection: &u32, _: bool) {
            self.opened.send(*connection).expect("the test listens");
            assert_ne!(*connection, 3, "opened");
        }

        fn failed(&mut self, error: &Error) {
            panic!("failed: {error}");
        }

        async fn broken(&mut self, connection: &u32) {
            match connection {
                3 => {}
                4 => panic!("broken"),
                _ => std::future::pending().await,
            }
        }
    }

    #[test]
    fn only_silence_breaks_a_connection() {
        let is_broken = |health: &Health| health.broken().now_or_never().is_some();
        let health = Health::default();
        // A queue of requests, of which the server answers the first ones.
        let queue = [(); 5].map(|()| health.sent());
        health.answered();
        queue.into_iter().for_each(|sent| health.timed_out(sent));
        assert!(!is_broken(&health));
        let silent = [(); 2].map(|()| health.sent());
        health.timed_out(silent[0]);
        assert!(!is_broken(&health));
        health.timed_out(silent[1]);
        assert!(is_broken(&health));
        // An answer ends the silence.
        let health = Health::default();
        health.timed_out(health.sent());
        health.answered();
        health.timed_out(health.sent());
        assert!(!is_broken(&health));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_no_later_connection() {
        let (opened, mut connections) = mpsc::unbounded_channel();
        let (connector, began) = (Panicking { attempts: 0, opened }, Instant::now());
        let supervised = Supervised::start(connector, Duration::ZERO, &Handle::current());
        for expected in 3..=5 {
            assert_eq!(connections.recv().await, Some(expected));
        }
        assert_eq!(supervised.current().unwrap(), 5);
        assert!(began.elapsed() > LONGEST_PAUSE / 2, "who was refused has asked again at once");
    }
}
