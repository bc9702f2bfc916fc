//! From the command's start to its end: passing signals on, sharing the terminal, and ending the
//! command and its descendants before its lock ends.

use std::io;
use std::time::Duration;

use fencelock::backend::{BootClock, Clock};
use fencelock::{Guard, Liveness, Locks, LostReason, Moment};
use fencelock_cli::signals::Signals;
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::exit::Outcome;
use super::plan::{Kind, Margins, OnLost, Plan};
use super::process::child::{Child, Inherited};
use super::process::ipc::{End, Report};
use super::process::tree::{Reach, Rounds, until};
use super::signals;
use super::status::Status;
use super::terminal::Terminal;

/// Why a lock ends at the limit that the user set.
const HOLD_LIMIT: &str = "the limit set by --hold-at-most was reached";

/// A SIGTERM that comes so soon after another one is the same.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// How much later than its job this process may get the SIGTERM of a shutdown.
const SHUTDOWN: Duration = Duration::from_millis(50);

/// How long standard error may delay the signal that follows a report: less than the time between SIGKILL
/// and the lock's end.
pub(super) const REPORT_WITHIN: Duration = Duration::from_millis(50);

/// Runs the command while `guard` is held and returns how it ended, and whether a user has asked for that. An error is
/// the system's.
pub(super) async fn supervise(
    plan: &Plan,
    margins: Margins,
    locks: &Locks,
    guard: &Guard,
    signals: &mut Signals,
    inherited: &Inherited,
    status: &mut Status,
) -> io::Result<(Outcome, bool)> {
    let terminal = Terminal::controlling();
    let clock = BootClock::start()?;
    let continued = Signals::of(&[Signal::CONT])?;
    let messages = signals::messages()?;
    let hold_ends = plan.own.hold_at_most.map_or(Moment::NEVER, |limit| locks.now() + limit);
    let deadline = KillDeadline { plan, margins, locks, guard, clock, hold_ends };
    if let Some(why) = deadline.too_late().await {
        return Ok((Outcome::lost(deadline.not_started(&why)), false));
    }
    let (start_by, kill_at) = (deadline.start_by(), deadline.kill_at());
    let keep_alive = guard.keep_alive();
    let reports = plan.reports.clone();
    let shared = terminal.as_ref().is_none_or(Terminal::is_shared);
    let stop_keys = Signals::of(if shared { &[Signal::TSTP] } else { &[] })?;
    // Whoever sees the command run may signal this process.
    let child = Child::start(&plan.command, inherited, keep_alive, start_by, kill_at, reports)?;
    let mut supervisor = Supervisor {
        deadline,
        child,
        signals,
        messages,
        stop_keys,
        continued,
        terminal,
        stage: Stage::Runs,
        stopped: false,
        stop_asked: false,
        end_asked: None,
        quit_asked: None,
        not_wanted: None,
        terminated_at: None,
        reported: false,
    };
    let outcome = supervisor.until_the_end().await;
    status.not_ended(&supervisor.child.survivors());
    let quit_asked = supervisor.quit_asked.is_some();
    supervisor.child.finish().await;
    Ok((outcome, quit_asked))
}

/// The stage of the command's life.
enum Stage {
    Runs,
    /// It got SIGTERM, and gets SIGKILL at `kill_at`.
    Ends {
        why: String,
        kill_at: Instant,
    },
    /// It and its descendants get SIGKILL, in rounds.
    Killed {
        why: String,
        rounds: Rounds,
    },
}

struct Supervisor<'a> {
    deadline: KillDeadline<'a>,
    child: Child,
    signals: &'a mut Signals,
    /// Signals that only concern the command.
    messages: Signals,
    /// Ctrl-Z that reached this process rather than the command.
    stop_keys: Signals,
    /// SIGCONT. The kernel continues this process; this process must continue the command.
    continued: Signals,
    terminal: Option<Terminal>,
    stage: Stage,
    /// The command was stopped by hand, not from a terminal.
    stopped: bool,
    /// Ctrl-Z reached this process and was passed on. Continuing the command would discard it.
    stop_asked: bool,
    /// The loss has been reported to the user.
    reported: bool,
    /// SIGTERM was passed on to the command: its other processes are asked to end when it has ended, or now.
    end_asked: Option<Asked>,
    /// A signal was passed on by which a user ends a program for good.
    quit_asked: Option<Signal>,
    /// A signal that came before the command ran.
    not_wanted: Option<Signal>,
    /// When the last SIGTERM came.
    terminated_at: Option<Instant>,
}

/// Who has got the user's SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The command; its other processes get it at this time.
    Command {
        rest_at: Instant,
    },
    All,
}

impl Supervisor<'_> {
    async fn until_the_end(&mut self) -> Outcome {
        let mut interval = tokio::time::interval(self.deadline.interval());
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let margins = self.deadline.margins;
            let on_lost = self.deadline.plan.own.on_lost;
            let kill_at = match &self.stage {
                Stage::Runs => None,
                Stage::Ends { kill_at, .. } => Some(*kill_at),
                Stage::Killed { rounds, .. } => Some(rounds.next()),
            };
            let runs = self.child.group().is_some();
            let killed = matches!(self.stage, Stage::Killed { .. });
            let terminates = on_lost == OnLost::Term && kill_at.is_none();
            let rest_at = match self.end_asked {
                Some(Asked::Command { rest_at }) if kill_at.is_none() => Some(rest_at),
                _ => None,
            };
            tokio::select! {
                biased;
                report = self.child.report() => {
                    if let Some(outcome) = self.handle(report).await {
                        return outcome;
                    }
                }
                signal = self.signals.next() => self.pass_on(signal),
                signal = self.messages.next(), if runs => self.child.message(signal),
                _ = self.stop_keys.next(), if runs => {
                    self.stop_asked = true;
                    self.child.signal(Signal::TSTP);
                }
                _ = self.continued.next(), if runs => self.continue_command(),
                () = self.deadline.guard.expiring(margins.kill), if !killed && on_lost != OnLost::Continue => {
                    self.kill().await;
                }
                () = self.deadline.guard.expiring(margins.grace), if terminates => {
                    self.terminate().await;
                }
                () = until(kill_at), if kill_at.is_some() => self.kill().await,
                () = until(rest_at), if rest_at.is_some() => self.ask_the_rest(Reach::Rest),
                reason = self.deadline.guard.lost(), if !self.reported && on_lost == OnLost::Continue => {
                    self.report_loss(&reason.to_string(), "the command continues");
                }
                _ = interval.tick() => {
                    self.child.note_strangers();
                    if self.deadline.is_a_lease() {
                        // It may be slow to start, while the lock is renewed. Without a lease its order never changes:
                        // repeated, it would fill the channel of a stopped watchdog before the one to start nothing.
                        let may_start = !self.reported && self.not_wanted.is_none();
                        if !runs && may_start && self.deadline.guard.is_held() {
                            self.child.start_before(self.deadline.start_by());
                        }
                        self.child.kill_at(self.deadline.kill_at());
                    }
                }
            }
        }
    }

    /// Handles a report of the watchdog. Returns the outcome if it is the end.
    async fn handle(&mut self, report: Option<Report>) -> Option<Outcome> {
        match report {
            Some(Report::Started { .. }) => {
                self.lend_terminal();
                match self.stage {
                    // It has begun after the loss, by a watchdog that had read its orders before.
                    Stage::Runs if self.reported => self.kill().await,
                    Stage::Runs => {
                        if let Some(signal) = self.not_wanted {
                            self.terminated_at = None;
                            self.pass_on(signal);
                        }
                    }
                    Stage::Ends { .. } => self.child.ask_to_end(Signal::TERM, Reach::All),
                    Stage::Killed { .. } => self.kill().await,
                }
                None
            }
            Some(Report::TooLate) if self.not_wanted.is_some() => {
                self.not_wanted.map(Outcome::Interrupted)
            }
            Some(Report::TooLate) => {
                let message = self.deadline.not_started(&self.deadline.why().await);
                let (reported, quit_asked) = (self.reported, self.quit_asked.is_some());
                Some(Outcome::Lost { message, reported, quit_asked })
            }
            Some(Report::CannotExecute { errno }) => {
                let cause = io::Error::from_raw_os_error(errno);
                let lacking = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
                if lacking.iter().any(|lacks| lacks.raw_os_error() == errno) {
                    return Some(Outcome::System("cannot start the command", cause));
                }
                let command = self.deadline.plan.command.first().map(std::ffi::OsString::as_os_str);
                let command = command.unwrap_or_default().to_string_lossy().into_owned();
                Some(Outcome::CannotExecute(command, cause))
            }
            Some(Report::Stopped { signal }) => {
                self.stopped(signal).await;
                None
            }
            Some(Report::OutOfTime) => {
                let why = self.deadline.why().await;
                self.report_loss(&why, "the command was killed");
                self.kill().await;
                None
            }
            Some(Report::Ended(end)) => Some(self.ended(end).await),
            None => {
                self.child.kill_all(Reach::All, || true).await;
                self.release_terminal();
                let (reported, quit_asked) = (self.reported, self.quit_asked.is_some());
                Some(match &self.stage {
                    Stage::Killed { why, .. } => {
                        Outcome::Lost { message: self.deadline.lost(why), reported, quit_asked }
                    }
                    _ => Outcome::Unwatched,
                })
            }
        }
    }

    /// SIGTERM is for the command, which knows in which order its processes end: a worker of a pool that got it
    /// too would drop its task, and a child to which it is forwarded would get it twice. The rest gets it when
    /// the command has ended, and after the grace: a shell's trap waits for the program that it runs.
    /// The keyboard's signals, and a hang-up, are for all, but not for daemons.
    fn pass_on(&mut self, signal: Signal) {
        if self.is_the_same(signal) {
            return;
        }
        self.note_quit(signal);
        if self.child.group().is_none() {
            self.child.start_before(Moment::from_nanos(0));
            let reached = self.child.signal_all(signal, Reach::All);
            // Stopped ones could not even die.
            self.child.signal_all(Signal::CONT, Reach::All);
            match reached {
                0 => {
                    self.not_wanted = Some(signal);
                    self.deadline.plan.note("interrupted before the command has started");
                }
                // It has begun, and that is not known yet; or it is before its `exec`, for which a dead file system can
                // make it wait.
                _ if signal == Signal::TERM => self.end_asked = Some(Asked::All),
                _ => {}
            }
            return;
        }
        if signal != Signal::TERM {
            return self.child.ask_to_end(signal, Reach::Session);
        }
        let rest_at = Instant::now() + self.deadline.margins.grace;
        self.end_asked.get_or_insert(Asked::Command { rest_at });
        self.child.ask_to_end(signal, Reach::Command);
    }

    /// Whether it is a SIGTERM that came already: `timeout` sends it to its child, and then to the group of that.
    fn is_the_same(&mut self, signal: Signal) -> bool {
        if signal != Signal::TERM {
            return false;
        }
        let now = Instant::now();
        let is_the_same = self.terminated_at.is_some_and(|last| now < last + SAME_SIGNAL);
        if !is_the_same {
            self.terminated_at = Some(now);
        }
        is_the_same
    }

    /// SIGHUP often means to read the configuration again.
    fn note_quit(&mut self, signal: Signal) {
        if signal != Signal::HUP {
            self.quit_asked = Some(signal);
        }
    }

    /// Passes a SIGTERM on to the processes within `reach` that have not got it.
    fn ask_the_rest(&mut self, reach: Reach) {
        if self.end_asked.replace(Asked::All) != Some(Asked::All) {
            self.child.ask_to_end(Signal::TERM, reach);
        }
    }

    /// Called when this process was continued, or put into the foreground.
    fn continue_command(&mut self) {
        self.lend_terminal();
        if std::mem::take(&mut self.stopped) {
            self.child.signal(Signal::CONT);
        }
    }

    /// The command was stopped. If from a terminal, our job stops too, so that the shell gets its turn.
    /// If by hand, it is continued by hand, and the lock is kept.
    async fn stopped(&mut self, signal: i32) {
        let is = |one: Signal| one.as_raw() == signal;
        let wants_terminal = is(Signal::TTIN) || is(Signal::TTOU);
        let stop_asked = std::mem::take(&mut self.stop_asked);
        let (terminal, group) = match (&mut self.terminal, self.child.group()) {
            (Some(terminal), Some(group))
                if wants_terminal || is(Signal::TSTP) || terminal.is_lent() =>
            {
                (terminal, group)
            }
            _ => {
                self.stopped = true;
                return;
            }
        };
        if wants_terminal {
            terminal.wanted();
            if !stop_asked && terminal.lend(group) {
                // It asked before it had the terminal; now it has.
                self.child.signal(Signal::CONT);
                return;
            }
        }
        self.child.kill_at(self.deadline.kill_at());
        let lent = terminal.take_back();
        terminal.stop_our_job(stop_asked && !lent);
        // Here this process was continued, perhaps much later. SIGCONT is read at once.
        let was_stopped = timeout(Duration::from_millis(100), self.continued.next()).await.is_ok();
        // So is the signal that stopped our job, which is not for the command again.
        self.stop_keys.discard_pending().await;
        if wants_terminal && !was_stopped {
            // No shell could ever give it the terminal. The kernel does this to such a job.
            self.child.signal(Signal::HUP);
        }
        self.resume().await;
    }

    /// Continues the command, unless its lock was lost while it could not be renewed.
    async fn resume(&mut self) {
        let guard = self.deadline.guard;
        if self.deadline.plan.own.on_lost != OnLost::Continue {
            self.deadline.let_it_renew().await;
            if !guard.is_held() {
                return self.kill().await;
            }
        }
        self.lend_terminal();
        if self.deadline.plan.own.on_lost == OnLost::Term
            && guard.remaining() <= self.deadline.margins.grace
        {
            return self.terminate().await;
        }
        self.child.signal(Signal::CONT);
    }

    async fn terminate(&mut self) {
        let margins = self.deadline.margins;
        let why = self.deadline.why().await;
        let kill_at = Instant::now() + margins.grace.saturating_sub(margins.kill);
        self.report_loss(&why, "the command gets SIGTERM");
        self.stage = Stage::Ends { why, kill_at };
        self.child.ask_to_end(Signal::TERM, Reach::All);
    }

    async fn kill(&mut self) {
        let (why, mut rounds) = match std::mem::replace(&mut self.stage, Stage::Runs) {
            Stage::Runs => (self.deadline.why().await, Rounds::begin()),
            Stage::Ends { why, .. } => (why, Rounds::begin()),
            Stage::Killed { why, rounds } => (why, rounds),
        };
        self.report_loss(&why, "the command gets SIGKILL");
        rounds.reached(self.child.signal_all(Signal::KILL, Reach::All));
        if rounds.is_over() {
            self.child.kill_stopped_watchdog();
        }
        self.stage = Stage::Killed { why, rounds };
    }

    /// Reports the loss and what follows, once, before the command is signalled, so that the log does
    /// not end with the command's own last output.
    fn report_loss(&mut self, why: &str, then: &str) {
        if !std::mem::replace(&mut self.reported, true) {
            let then = match self.child.group() {
                Some(_) => then,
                None => {
                    self.child.start_before(Moment::from_nanos(0));
                    "the command is not started"
                }
            };
            let reports = &self.deadline.plan.reports;
            reports.say(format!("{}; {then}", self.deadline.lost(why)));
            reports.flush_within(REPORT_WITHIN);
        }
    }

    /// The command has ended. Processes that it left in the background continue, as with flock, unless
    /// the lock ended first, or the command did not end by itself.
    async fn ended(&mut self, end: End) -> Outcome {
        // Later ones came after its end, and say nothing of it. A shutdown signals all processes one after the other, and
        // many end with 0 then.
        let may_be_cut_short = end == End::Exited(0)
            && matches!(self.deadline.plan.own.kind, Kind::Tick(tick) if tick.may_be_repeated());
        let wait = if may_be_cut_short { SHUTDOWN } else { Duration::ZERO };
        while let Ok(signal) = timeout(wait, self.signals.next()).await {
            self.note_quit(signal);
            if signal == Signal::TERM {
                self.end_asked.get_or_insert(Asked::Command { rest_at: Instant::now() });
            }
        }
        let had_terminal = self.release_terminal();
        let goes_on = self.deadline.plan.own.on_lost == OnLost::Continue;
        let why = match std::mem::replace(&mut self.stage, Stage::Runs) {
            Stage::Runs
                if self.deadline.guard.is_held()
                    || goes_on && (self.end_asked.is_some() || matches!(end, End::Killed(_))) =>
            {
                match end {
                    _ if self.end_asked.is_some() => self.end_the_rest(Reach::All).await,
                    End::Killed(_) => self.end_the_rest(Reach::Session).await,
                    // flock's lock would last until these have ended: a daemon is started anew by each tick.
                    End::Exited(_) if self.deadline.plan.verbose && self.child.has_left_any() => {
                        let left = "processes that the command has left continue without the lock";
                        self.deadline.plan.note(left);
                    }
                    End::Exited(_) => {}
                }
                let outcome = self.outcome(end);
                if let (true, Some(signal)) = (had_terminal, outcome.keyboard_signal()) {
                    // Ctrl-C is for the whole job; only the command's group has got it.
                    let _ = rustix::process::kill_current_process_group(signal);
                }
                if self.deadline.guard.is_held() {
                    return outcome;
                }
                self.deadline.why().await
            }
            Stage::Runs => self.deadline.why().await,
            Stage::Ends { why, kill_at } => {
                self.gone_until(kill_at, Reach::All).await;
                why
            }
            Stage::Killed { why, .. } => why,
        };
        if !goes_on {
            // The lock's end has often passed. It must not end this: processes that the first reading
            // of `/proc` missed would continue for ever, and killed ones take a while to die.
            self.child.kill_all(Reach::All, || true).await;
        }
        Outcome::Lost {
            message: self.deadline.lost(&why),
            reported: self.reported,
            quit_asked: self.quit_asked.is_some(),
        }
    }

    /// The outcome of a command that ended while the lock was held. Many programs exit with 0 after a signal,
    /// half-way through their work: for a tick of a schedule that is not success.
    fn outcome(&self, end: End) -> Outcome {
        let plan = self.deadline.plan;
        match (self.quit_asked, &plan.own.kind) {
            (Some(signal), Kind::Tick(tick)) if end == End::Exited(0) && tick.may_be_repeated() => {
                let number = signal.as_raw();
                let ended = format!("the command has exited with 0, but after signal {number}");
                plan.note(&format!("{:?}: {ended}; this tick is not done", plan.name));
                Outcome::Interrupted(signal)
            }
            _ => Outcome::Ended(end),
        }
    }

    /// Ends the processes that the command left within `reach`, while the lock is held: by SIGTERM
    /// first, unless they have got that already.
    async fn end_the_rest(&mut self, reach: Reach) {
        let margins = self.deadline.margins;
        self.ask_the_rest(reach);
        let kill_at = Instant::now() + margins.grace.saturating_sub(margins.kill);
        self.gone_until(kill_at, reach).await;
        let goes_on = self.deadline.plan.own.on_lost == OnLost::Continue;
        self.child.kill_all(reach, || goes_on || self.deadline.guard.is_held()).await;
    }

    /// Waits until nothing within `reach` runs, but no longer than until `kill_at`, the lock's end unless it does not
    /// matter, or another signal from the user that is no hang-up.
    async fn gone_until(&mut self, kill_at: Instant, reach: Reach) {
        let goes_on = self.deadline.plan.own.on_lost == OnLost::Continue;
        loop {
            tokio::select! {
                biased;
                () = self.deadline.guard.expiring(self.deadline.margins.kill), if !goes_on => return,
                () = until(Some(kill_at)) => return,
                signal = self.signals.next() => {
                    self.note_quit(signal);
                    if signal != Signal::HUP && !self.is_the_same(signal) {
                        return;
                    }
                }
                () = self.child.gone(reach) => return,
            }
        }
    }

    fn lend_terminal(&mut self) {
        if let (Some(terminal), Some(group)) = (&mut self.terminal, self.child.group()) {
            terminal.lend(group);
        }
    }

    fn release_terminal(&mut self) -> bool {
        self.terminal.as_mut().is_some_and(Terminal::take_back)
    }
}

/// The lock's end, and the times by which the command must have ended.
struct KillDeadline<'a> {
    plan: &'a Plan,
    margins: Margins,
    locks: &'a Locks,
    guard: &'a Guard,
    clock: BootClock,
    /// Possibly a little late: the grant came before this was computed.
    hold_ends: Moment,
}

impl KillDeadline<'_> {
    fn is_a_lease(&self) -> bool {
        self.locks.profile().liveness != Liveness::Process
    }

    /// How often the watchdog gets the lock's new end, well within a renewal's period, and the children
    /// that are not the command's are listed.
    fn interval(&self) -> Duration {
        (self.margins.promise / 10).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// When the watchdog must kill the command, on the watchdog's clock.
    fn kill_at(&self) -> Moment {
        let until = self.guard.valid_until();
        if until == Moment::NEVER || self.plan.own.on_lost == OnLost::Continue {
            return Moment::NEVER;
        }
        let now = self.clock.now();
        now + until.duration_since(self.locks.now()) - self.margins.kill
    }

    /// Until when the command may be started, on the watchdog's clock: later it would run without the
    /// lock, or be killed at once.
    fn start_by(&self) -> Moment {
        match (self.guard.valid_until(), self.plan.own.on_lost) {
            (Moment::NEVER, _) => Moment::NEVER,
            (until, OnLost::Continue) => self.clock.now() + until.duration_since(self.locks.now()),
            _ => self.kill_at() - self.margin().saturating_sub(self.margins.kill),
        }
    }

    /// How long before the lock's end the command begins to be ended.
    fn margin(&self) -> Duration {
        match self.plan.own.on_lost {
            OnLost::Continue => Duration::ZERO,
            OnLost::Term => self.margins.grace,
            OnLost::Kill => self.margins.kill,
        }
    }

    /// Why the command must not be started any more, if so: this process may have been stopped or starved
    /// since the grant.
    async fn too_late(&self) -> Option<String> {
        self.let_it_renew().await;
        let is_late = !self.guard.is_held() || self.guard.remaining() <= self.margin();
        if is_late { Some(self.why().await) } else { None }
    }

    fn not_started(&self, why: &str) -> String {
        format!("{}; the command was not started", self.lost(why))
    }

    /// After a stop the renewals are overdue, and come as soon as this process runs again.
    async fn let_it_renew(&self) {
        for _ in 0..50 {
            if !self.guard.is_held() || self.guard.remaining() > self.margins.grace {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Why the lock ends, or has ended.
    async fn why(&self) -> String {
        tokio::select! {
            biased;
            reason = self.guard.lost() => match reason {
                LostReason::HoldLimit => HOLD_LIMIT.to_owned(),
                reason => reason.to_string(),
            },
            () = std::future::ready(()) => {
                let nearly = self.hold_ends - self.margins.kill;
                match self.guard.valid_until() >= nearly && self.hold_ends != Moment::NEVER {
                    true => HOLD_LIMIT,
                    false => "no renewal was confirmed in time",
                }
                .to_owned()
            }
        }
    }

    fn lost(&self, why: &str) -> String {
        format!("lock lost: {:?} on {}: {why}", self.plan.name, self.plan.store.redacted_url)
    }
}
