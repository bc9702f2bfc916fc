//! One run: connect, wait for the lock, run the command, release, report.

use std::time::Duration;

use fencelock::{ErrorKind, Guard, Locks};
use fencelock_cli::signals::{ENDING, Signals};
use fencelock_cli::{chain, say};
use tokio::time::{Instant, timeout, timeout_at};

use super::environment::Environment;
use super::exit::Outcome;
use super::options::{Options, Plan};
use super::status::Status;
use super::supervise::supervise;
use super::{terminal, waiting};

/// How long closing the connection may take, including the removal of a wait from the queue.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// How much of the wait limit is left for the lock, however long the connection took.
const ASK_WITHIN: Duration = Duration::from_secs(2);
/// How long a store that has just been silent is waited for again, and how long after the lock's own
/// end one is waited for.
const SILENT_WITHIN: Duration = Duration::from_secs(1);

/// Runs the command under the lock and returns the exit code.
pub(super) async fn run(options: Options) -> u8 {
    let codes = options.codes();
    let plan = match Plan::new(options) {
        Ok(plan) => plan,
        Err(outcome) => {
            outcome.message().iter().for_each(|message| say(message));
            return codes.of(&outcome);
        }
    };
    let mut status = Status::new(&plan);
    let outcome = match status.require_writable() {
        Ok(()) => job(&plan, &mut status).await.unwrap_or_else(|outcome| outcome),
        Err(outcome) => outcome,
    };
    if !outcome.was_reported() && (plan.verbose || !codes.is_silent_about(&outcome)) {
        outcome.message().iter().for_each(|message| say(message));
    }
    let code = status.ended(&outcome, codes);
    if let Some(signal) = outcome.keyboard_signal() {
        terminal::die_for_the_shell(signal);
    }
    code
}

async fn job(plan: &Plan, status: &mut Status) -> Result<Outcome, Outcome> {
    let environment = Environment::read()?;
    environment.refuse_nested(plan)?;
    plan.store.notices().for_each(|notice| plan.note(&notice));
    let mut signals =
        Signals::of(&ENDING).map_err(|cause| Outcome::System("cannot catch signals", cause))?;
    let started = Instant::now();
    let connecting = waiting::report_connecting(plan, connect(plan));
    let connected = unless_interrupted(&mut signals, connecting).await?;
    let locks = connected.map_err(|error| Outcome::of_connect(&error))?;
    plan.store.require_reach(&locks)?;
    if plan.chose_ttl {
        plan.store.notice_of_ttl(&locks).iter().for_each(|notice| plan.note(notice));
    }
    let done = under_lock(plan, &locks, started, &mut signals, environment, status).await;
    let done = done.unwrap_or_else(Done::from);
    leave(&locks, &mut signals, done.leave_by).await;
    Ok(done.outcome)
}

/// Connects. The wait limit for a busy lock also applies to a store that is not there yet.
async fn connect(plan: &Plan) -> fencelock::Result<Locks> {
    match plan.wait {
        Some(limit) => fencelock::connect_within(plan.store.url(), limit).await,
        None => fencelock::connect(plan.store.url()).await,
    }
}

/// Closes the connection, and so removes an interrupted wait from the queue. A store that was silent
/// gets less time for it, and its silence was reported already.
async fn leave(locks: &Locks, signals: &mut Signals, leave_by: Option<Instant>) {
    let until = leave_by.unwrap_or_else(|| Instant::now() + LEAVE_WITHIN);
    let closing = timeout_at(until, locks.close());
    if let (Ok(Ok(Err(error))), None) = (unless_interrupted(signals, closing).await, leave_by) {
        say(&chain(&error));
    }
}

/// How a run ended.
struct Done {
    outcome: Outcome,
    /// For a store that was silent: until when it is waited for, in all.
    leave_by: Option<Instant>,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Done {
        let silent = matches!(outcome, Outcome::Lost { .. } | Outcome::Unreachable(_));
        Done { outcome, leave_by: silent.then(|| Instant::now() + SILENT_WITHIN) }
    }
}

async fn under_lock(
    plan: &Plan,
    locks: &Locks,
    started: Instant,
    signals: &mut Signals,
    environment: Environment,
    status: &mut Status,
) -> Result<Done, Outcome> {
    let margins = plan.margins(locks.profile())?;
    let guard = acquire(plan, locks, started, signals, status).await?;
    let granted = Instant::now();
    let waited = status.granted(guard.fencing_token());
    if plan.verbose {
        let (name, store, token) = (&plan.name, &plan.store.redacted_url, guard.fencing_token());
        let waited = waited.as_secs_f64();
        say(&format!("got {name:?} on {store} in {waited:.6} seconds, with fencing token {token}"));
    }
    let variables = environment.of_command(plan, guard.fencing_token());
    let supervised = supervise(plan, margins, locks, &guard, signals, &variables, status).await;
    let mut outcome = supervised
        .unwrap_or_else(|cause| Outcome::System("cannot start or follow the command", cause));
    if let Outcome::Ended(_) = outcome {
        let left = plan.hold_at_least.saturating_sub(granted.elapsed());
        tokio::select! {
            biased;
            // The release reports it.
            _ = guard.lost() => {}
            () = tokio::time::sleep(left) => {}
            signal = signals.next() => outcome = Outcome::Interrupted(signal),
        }
    }
    let done = release(plan, guard, signals, outcome).await;
    status.released();
    Ok(done)
}

async fn acquire(
    plan: &Plan,
    locks: &Locks,
    started: Instant,
    signals: &mut Signals,
    status: &mut Status,
) -> Result<Guard, Outcome> {
    let since = counted_from(plan.wait, started, Instant::now());
    let lock = plan.lock(locks).waiting_since(since);
    let acquired = match plan.wait {
        Some(Duration::ZERO) => unless_interrupted(signals, lock.acquire()).await?,
        _ => {
            let reporting = waiting::report_holder(plan, locks, lock.acquire());
            unless_interrupted(signals, reporting).await?
        }
    };
    let error = match acquired {
        Ok(guard) => return Ok(guard),
        Err(error) => error,
    };
    let mut outcome = Outcome::of_acquire(&error);
    if let Outcome::Busy(message) = &mut outcome
        && let Some(holders) = waiting::inspect(plan, locks).await
    {
        status.set_holders(&holders);
        if let Some(held) = waiting::describe(&holders, true) {
            *message = match message.strip_suffix(error.message()) {
                // That another client holds it is what this says.
                Some(before) if error.kind() == ErrorKind::Busy => format!("{before}{held}"),
                _ => format!("{message}; {held}"),
            };
        }
    }
    Err(outcome)
}

/// When the wait limit of a run that `started`, and is connected `now`, begins to count: at its start,
/// but late enough that a store that was connected at the last moment is still asked for the lock.
fn counted_from(wait: Option<Duration>, started: Instant, now: Instant) -> Instant {
    let is_limited = |limit: &Duration| !limit.is_zero();
    let latest =
        wait.filter(is_limited).and_then(|limit| now.checked_sub(limit.saturating_sub(ASK_WITHIN)));
    latest.map_or(started, |latest| latest.max(started))
}

/// Releases the lock. An earlier loss changes the outcome of the run; a missing confirmation of the
/// store does not: the command did its work under the lock. The lock ends with its lease in any case,
/// so the store is not waited for longer, neither for the release nor for the end of the connection
/// that follows it.
async fn release(plan: &Plan, guard: Guard, signals: &mut Signals, outcome: Outcome) -> Done {
    let bound = guard.remaining().saturating_add(SILENT_WITHIN);
    // The bound of a lock without a lease is too far away for a moment.
    let until = Instant::now().checked_add(bound);
    let released = unless_interrupted(signals, timeout(bound, guard.release())).await;
    let unconfirmed = match released {
        Ok(Ok(Ok(()))) => return Done::from(outcome),
        // The end of the connection sends it again. A signal must not make a silent store wait longer.
        Err(_) => {
            let leave_by = until.map(|until| until.min(Instant::now() + LEAVE_WITHIN));
            return Done { outcome, leave_by };
        }
        Ok(Ok(Err(error))) if error.kind() == ErrorKind::NotHeld => {
            return Done::from(match outcome {
                Outcome::Ended(_) | Outcome::Interrupted(_) => {
                    Outcome::Lost { message: chain(&error), reported: false }
                }
                other => other,
            });
        }
        Ok(Ok(Err(error))) => chain(&error),
        Ok(Err(_)) => {
            let (name, store) = (&plan.name, &plan.store.redacted_url);
            format!("release {name:?} on {store}: not confirmed before the lock ended by itself")
        }
    };
    // A loss was reported already.
    if !outcome.was_reported() {
        say(&unconfirmed);
    }
    Done { outcome, leave_by: until.or_else(|| Some(Instant::now() + SILENT_WITHIN)) }
}

/// Carries out `work`, or drops it at the first signal.
async fn unless_interrupted<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, Outcome> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(Outcome::Interrupted(signal)),
        done = work => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_leaves_the_lock_a_part_of_the_wait_limit() {
        // The limit, how long the connection took, and what the lock is left, in ms.
        for (limit, connected, left) in [
            (5_000, 0, 5_000),
            (5_000, 3_000, 2_000),
            (5_000, 4_900, 2_000),
            (5_000, 9_000, 2_000),
            (300, 100, 300),
            (300, 9_000, 300),
        ] {
            let [limit, connected, left] = [limit, connected, left].map(Duration::from_millis);
            let started = Instant::now();
            let now = started + connected;
            let since = counted_from(Some(limit), started, now);
            assert_eq!(since + limit, now + left, "{limit:?}, {connected:?}");
        }
        let started = Instant::now();
        for wait in [Some(Duration::ZERO), None, Some(Duration::MAX)] {
            assert_eq!(counted_from(wait, started, started + ASK_WITHIN), started);
        }
    }
}
