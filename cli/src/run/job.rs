//! The story of one run: connect, wait, hold, run the command, let go, tell how it went.

use std::time::Instant;

use fencelock::{ErrorKind, Guard, Locks};

use super::environment::Environment;
use super::exit::{Outcome, chain, say};
use super::options::{Options, Patience, Plan};
use super::signals::Signals;
use super::status::Status;
use super::supervise::supervise;
use super::{terminal, waiting};

/// Runs the command under the lock. The exit code.
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
    let outcome = match job(&plan, &mut status).await {
        Ok(outcome) | Err(outcome) => outcome,
    };
    if plan.verbose || !codes.is_silent_about(&outcome) {
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
    let mut signals =
        Signals::catch().map_err(|cause| Outcome::System("cannot catch signals", cause))?;
    let connecting = fencelock::connect(plan.store.url.reveal());
    let connected = unless_interrupted(&mut signals, connecting).await?;
    let locks = connected.map_err(|error| Outcome::of_connect(&error))?;
    let outcome = under_lock(plan, &locks, &mut signals, environment, status).await;
    // What an interrupted wait has left in the queue is gone when this returns.
    if let Ok(Err(error)) = unless_interrupted(&mut signals, locks.close()).await {
        say(&chain(&error));
    }
    outcome
}

async fn under_lock(
    plan: &Plan,
    locks: &Locks,
    signals: &mut Signals,
    environment: Environment,
    status: &mut Status,
) -> Result<Outcome, Outcome> {
    let margins = plan.margins(locks.profile())?;
    let guard = acquire(plan, locks, signals, status).await?;
    let granted = Instant::now();
    let waited = status.granted(guard.fencing_token());
    if plan.verbose {
        let (name, store, token) = (&plan.name, &plan.store.shown, guard.fencing_token());
        let waited = waited.as_secs_f64();
        say(&format!("got {name:?} on {store} in {waited:.6} seconds, with fencing token {token}"));
    }
    let variables = environment.of_command(plan, guard.fencing_token());
    let supervised = supervise(plan, margins, locks, &guard, signals, &variables).await;
    let mut outcome = supervised
        .unwrap_or_else(|cause| Outcome::System("cannot start or follow the command", cause));
    if let Outcome::Ended(_) = outcome {
        let left = plan.hold_at_least.saturating_sub(granted.elapsed());
        tokio::select! {
            biased;
            // Its release says so.
            _ = guard.lost() => {}
            () = tokio::time::sleep(left) => {}
            signal = signals.next() => outcome = Outcome::Interrupted(signal),
        }
    }
    let outcome = release(guard, signals, outcome).await;
    status.let_go();
    Ok(outcome)
}

async fn acquire(
    plan: &Plan,
    locks: &Locks,
    signals: &mut Signals,
    status: &mut Status,
) -> Result<Guard, Outcome> {
    let lock = plan.lock(locks);
    let acquired = match plan.patience {
        Patience::None => unless_interrupted(signals, lock.acquire()).await?,
        Patience::AtMost(_) | Patience::Unlimited => {
            let telling = waiting::tell_while(plan, locks, lock.acquire());
            unless_interrupted(signals, telling).await?
        }
    };
    let error = match acquired {
        Ok(guard) => return Ok(guard),
        Err(error) => error,
    };
    let mut outcome = Outcome::of_acquire(&error);
    if let Outcome::Busy(message) = &mut outcome
        && let Some(holders) = waiting::look(plan, locks).await
    {
        status.held_by(&holders);
        let who = waiting::describe(&holders, true).map(|who| format!("; {who}"));
        message.push_str(&who.unwrap_or_default());
    }
    Err(outcome)
}

/// Gives the lock back. That it was lost before changes how the run ended; that the store has not
/// confirmed it does not: the command has done its work under the lock.
async fn release(guard: Guard, signals: &mut Signals, outcome: Outcome) -> Outcome {
    match unless_interrupted(signals, guard.release()).await {
        Ok(Err(error)) if error.kind() == ErrorKind::NotHeld => match outcome {
            Outcome::Ended(_) | Outcome::Interrupted(_) => Outcome::Lost(chain(&error)),
            other => other,
        },
        Ok(Err(error)) => {
            say(&chain(&error));
            outcome
        }
        Ok(Ok(())) | Err(_) => outcome,
    }
}

/// `work`, unless a signal comes first: then it is dropped.
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
