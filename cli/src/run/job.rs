//! One run: connect, wait for the lock, run the command, release, report.
//!
//! What is held may be a lock, a tick of a schedule or a leader's term, which [`grant`](super::grant)
//! tells apart. A leader that has lost its term does all but the first again.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use fencelock::{ErrorKind, Locks};
use fencelock_cli::signals::{ENDING, Signals};
use fencelock_cli::{chain, say};
use rustix::process::Signal;
use tokio::time::{Instant, timeout, timeout_at};

use super::environment::Environment;
use super::exit::{Codes, Outcome};
use super::grant::{Answer, Grant, ask};
use super::plan::{Kind, OneTick, Plan};
use super::status::Status;
use super::supervise::{REPORT_WITHIN, supervise};
use super::{WRITTEN_WITHIN, signals, terminal, waiting};

/// How long closing the connection may take, including the removal of a wait from the queue.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long after the wait limit a store that was silent until then is waited for again, and how long at least.
const LEAVE_AFTER_LIMIT: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(50)];
/// How long a store that has just been silent is waited for again, and how long after the lock's own
/// end one is waited for.
const SILENT_WITHIN: Duration = Duration::from_secs(1);
/// How long at most the end waits until the status is written. Its messages follow.
const STATUS_WITHIN: Duration = Duration::from_secs(2);
/// How long after a loss a leader campaigns again: others may be in line.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Runs the command under the lock and returns the exit code.
pub(super) async fn run(codes: Codes, plan: Result<Plan, Outcome>) -> u8 {
    let plan = match plan {
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
    let is_silent = plan.quiet || !plan.verbose && codes.are_silent();
    if !(outcome.was_reported() || is_silent && outcome.is_a_skip()) {
        outcome.message().into_iter().for_each(|message| plan.reports.say(message));
    }
    let code = status.ended(&outcome, codes, STATUS_WITHIN);
    if let Some(signal) = outcome.keyboard_signal() {
        plan.reports.flush_within(WRITTEN_WITHIN);
        terminal::die_for_the_shell(signal);
    }
    code
}

async fn job(plan: &Plan, status: &mut Status) -> Result<Outcome, Outcome> {
    let mut signals =
        Signals::of(&ENDING).map_err(|cause| Outcome::System("cannot catch signals", cause))?;
    // Before any is unblocked: one for the command must not end a wait.
    let _messages =
        signals::messages().map_err(|cause| Outcome::System("cannot catch signals", cause))?;
    let environment = Environment::read()?;
    environment.refuse_nested(plan)?;
    plan.store.config.warnings.iter().for_each(|it| plan.note(&format!("warning: {it}")));
    plan.store.config.notice_of_default().iter().for_each(|notice| plan.hint(notice));
    let started = Instant::now();
    let connecting = waiting::report_connecting(plan, connect(plan));
    let connected = unless_interrupted(plan, &mut signals, connecting).await?;
    let locks = connected.map_err(|error| Outcome::of_connect(&error))?;
    plan.store.require_reach(&locks)?;
    if plan.chose_ttl {
        plan.store.notice_of_ttl(&locks).iter().for_each(|notice| plan.hint(notice));
    }
    let done = match plan.own.kind {
        Kind::Election(_) => lead(plan, &locks, &mut signals, &environment, status).await,
        _ => under_lock(plan, &locks, started, &mut signals, &environment, status).await,
    };
    let done = done.unwrap_or_else(|outcome| Done::from(outcome).before(plan.own.wait, started));
    leave(plan, &locks, &mut signals, done.leave_by).await;
    Ok(done.outcome)
}

/// Connects. The wait limit for a busy lock also applies to a store that is not there yet.
async fn connect(plan: &Plan) -> fencelock::Result<Locks> {
    match plan.own.wait {
        Some(limit) => fencelock::connect_within(plan.store.url(), limit).await,
        None => fencelock::connect(plan.store.url()).await,
    }
}

/// Closes the connection, and so removes an interrupted wait from the queue. A store that was silent
/// gets less time for it, and its silence was reported already.
async fn leave(plan: &Plan, locks: &Locks, signals: &mut Signals, leave_by: Option<Instant>) {
    let until = leave_by.unwrap_or_else(|| Instant::now() + LEAVE_WITHIN);
    let closing = timeout_at(until, locks.close());
    if let (Ok(Ok(Err(error))), None) = (unless_interrupted(plan, signals, closing).await, leave_by)
    {
        plan.reports.say(chain(&error));
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

impl Done {
    /// A run that has `started` ends soon after its `wait` limit.
    fn before(mut self, wait: Option<Duration>, started: Instant) -> Done {
        let [after, least] = LEAVE_AFTER_LIMIT;
        let limit =
            wait.filter(|limit| !limit.is_zero()).and_then(|limit| started.checked_add(limit));
        if let (Some(limit), Some(leave_by)) = (limit, &mut self.leave_by) {
            *leave_by = (*leave_by).min((limit + after).max(Instant::now() + least));
        }
        self
    }
}

/// Runs the command in each term of this candidate, until it ends by itself.
async fn lead(
    plan: &Plan,
    locks: &Locks,
    signals: &mut Signals,
    environment: &Environment,
    status: &mut Status,
) -> Result<Done, Outcome> {
    let mut last = None;
    loop {
        let now = Instant::now();
        let done = under_lock(plan, locks, now, signals, environment, status).await;
        let done = done.unwrap_or_else(Done::from);
        let was_reported = match done.outcome {
            Outcome::Lost { quit_asked: false, reported, .. } => reported,
            // The store may be back soon; a candidate waits as long as that takes.
            Outcome::Unreachable(_) => false,
            _ => return Ok(done),
        };
        let message = done.outcome.message();
        if !was_reported && message != last {
            message.iter().for_each(|message| plan.reports.say(message));
        }
        last = message;
        if was_reported {
            plan.note(&format!("campaigning again for {:?}", plan.name));
        }
        status.waits_again();
        unless_interrupted(plan, signals, tokio::time::sleep(AGAIN_AFTER)).await?;
    }
}

async fn under_lock(
    plan: &Plan,
    locks: &Locks,
    started: Instant,
    signals: &mut Signals,
    environment: &Environment,
    status: &mut Status,
) -> Result<Done, Outcome> {
    let margins = plan.margins(locks.profile())?;
    let grant = acquire(plan, locks, started, signals, status).await?;
    let (granted, guard) = (Instant::now(), grant.guard());
    let waited = status.granted(guard.fencing_token());
    if plan.verbose {
        let (name, store, token) = (&plan.name, &plan.store.redacted_url, guard.fencing_token());
        let waited = waited.as_secs_f64();
        let got = format!("got {name:?} on {store} in {waited:.6} seconds");
        plan.reports.say(format!("{got}, with fencing token {token}"));
    }
    // Before the command's own output.
    status.flush_within(REPORT_WITHIN);
    plan.reports.flush_within(REPORT_WITHIN);
    let inherited = environment.of_command(plan, guard.fencing_token());
    let supervised = supervise(plan, margins, locks, guard, signals, &inherited, status).await;
    let (mut outcome, quit_asked) = supervised.unwrap_or_else(|cause| {
        (Outcome::System("cannot start or follow the command", cause), false)
    });
    let left = plan.own.hold_at_least.saturating_sub(granted.elapsed());
    if matches!(outcome, Outcome::Ended(_)) && !quit_asked && !left.is_zero() {
        tokio::select! {
            biased;
            // The release reports it.
            _ = guard.lost() => {}
            () = tokio::time::sleep(left) => {}
            signal = signals.next() => outcome = Outcome::Interrupted(signal),
        }
    }
    let done = release(plan, grant, signals, outcome).await;
    status.released();
    Ok(done)
}

async fn acquire(
    plan: &Plan,
    locks: &Locks,
    started: Instant,
    signals: &mut Signals,
    status: &mut Status,
) -> Result<Grant, Outcome> {
    // Boxed: it is most of the future.
    let asking = Box::pin(ask(plan, locks, started));
    let answer = match plan.waits() {
        false => unless_interrupted(plan, signals, asking).await?,
        true => {
            let reporting = waiting::report_holder(plan, locks, asking);
            unless_interrupted(plan, signals, reporting).await?
        }
    };
    let this = || format!("{:?} on {}", plan.name, plan.store.redacted_url);
    match answer {
        Ok(Answer::Granted(grant)) => Ok(grant),
        Ok(Answer::Done { by }) => {
            let by = if by.is_empty() { String::new() } else { format!(" by {by}") };
            let was = match plan.own.kind {
                Kind::Tick(OneTick { is_never_twice: true, .. }) => "begun",
                _ => "run",
            };
            Err(Outcome::Done(format!("{}: this tick was {was} already{by}", this())))
        }
        Ok(Answer::Running) => {
            let before = format!("{}: busy: ", this());
            let message = busy(plan, locks, status, before, "another client runs it").await;
            Err(Outcome::Busy(message))
        }
        Err(error) => Err(match Outcome::of_acquire(&error) {
            Outcome::Busy(message) => Outcome::Busy(match error.kind() {
                // That another client holds it is what the holders say.
                ErrorKind::Busy => {
                    let before = message.strip_suffix(error.message()).unwrap_or(&message);
                    busy(plan, locks, status, before.to_owned(), error.message()).await
                }
                _ => busy(plan, locks, status, format!("{message}; "), "").await,
            }),
            Outcome::Unreachable(message)
                if plan.own.wait == Some(Duration::ZERO)
                    && !matches!(plan.own.kind, Kind::Tick(_)) =>
            {
                let within = plan.try_within;
                let message =
                    format!("{message}; -n gives it {within:?} at most, -w SECONDS longer");
                Outcome::Unreachable(message)
            }
            outcome => outcome,
        }),
    }
}

/// The message of a lock that is not free: who holds it after `before`, or else `otherwise`.
async fn busy(
    plan: &Plan,
    locks: &Locks,
    status: &mut Status,
    before: String,
    otherwise: &str,
) -> String {
    let holders = waiting::inspect(plan, locks, waiting::INSPECT_WITHIN[1]).await;
    holders.iter().for_each(|holders| status.set_holders(holders));
    let held = holders.and_then(|holders| waiting::describe(&holders, true));
    match held {
        Some(held) => before + &held,
        None if otherwise.is_empty() => before.trim_end_matches("; ").to_owned(),
        None => before + otherwise,
    }
}

/// Releases what is held. An earlier loss changes the outcome of the run; a missing confirmation of the
/// store does not: the command did its work under the lock. The lock ends with its lease in any case,
/// so the store is not waited for longer, neither for the release nor for the end of the connection
/// that follows it.
///
/// A tick of which it is unknown whether it is done may be run again, so that does change the outcome.
async fn release(plan: &Plan, grant: Grant, signals: &mut Signals, outcome: Outcome) -> Done {
    let bound = grant.guard().remaining().saturating_add(SILENT_WITHIN);
    // The bound of a lock without a lease is too far away for a moment.
    let until = Instant::now().checked_add(bound);
    let marks = grant.marks(&outcome);
    let is_term = matches!(grant, Grant::Term(_));
    let ending = timeout(bound, grant.end(marks));
    let released = match marks {
        // The work is done, and a signal must not have it done again. The store's own bound ends this.
        true => Ok(ending.await),
        false => unless_interrupted(plan, signals, ending).await,
    };
    let unconfirmed = match released {
        Ok(Ok(Ok(()))) => return Done::from(outcome),
        // The end of the connection sends it again. A signal must not make a silent store wait longer.
        Err(interrupted) => {
            let outcome = match (outcome, interrupted) {
                (Outcome::Lost { message, reported, quit_asked }, Outcome::Interrupted(signal)) => {
                    let quit_asked = quit_asked || signal != Signal::HUP;
                    Outcome::Lost { message, reported, quit_asked }
                }
                (outcome, _) => outcome,
            };
            let leave_by = until.map(|until| until.min(Instant::now() + LEAVE_WITHIN));
            return Done { outcome, leave_by };
        }
        Ok(Ok(Err(error))) if marks => return Done::from(Outcome::of_acquire(&error)),
        // A leader's command that has ended by itself is not started again.
        Ok(Ok(Err(error))) if error.kind() == ErrorKind::NotHeld && !is_term => {
            return Done::from(match outcome {
                Outcome::Ended(_) | Outcome::Interrupted(_) => Outcome::lost(chain(&error)),
                other => other,
            });
        }
        Ok(Ok(Err(error))) => chain(&error),
        Ok(Err(_)) => {
            let (name, store) = (&plan.name, &plan.store.redacted_url);
            let (what, again) = match marks {
                true => ("mark the tick as done and release", "; it may be run again"),
                false => ("release", ""),
            };
            format!(
                "{what} {name:?} on {store}: not confirmed before the lock ended by itself{again}"
            )
        }
    };
    if marks {
        return Done::from(Outcome::Unreachable(unconfirmed));
    }
    // A loss was reported already.
    if !outcome.was_reported() {
        plan.reports.say(unconfirmed);
    }
    Done { outcome, leave_by: until.or_else(|| Some(Instant::now() + SILENT_WITHIN)) }
}

/// Carries out `work`, or drops it at the first signal.
async fn unless_interrupted<T>(
    plan: &Plan,
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Result<T, Outcome> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                // A service's "read the configuration again" (ExecReload=), without a terminal that has gone away.
                let is_reload = signal == Signal::HUP && !io::stdin().is_terminal();
                if !is_reload || !matches!(plan.own.kind, Kind::Election(_)) {
                    return Err(Outcome::Interrupted(signal));
                }
            }
            done = &mut work => return Ok(done),
        }
    }
}
