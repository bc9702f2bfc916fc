//! What is held while the command runs: a lock, a tick of a schedule, or a leader's term. How it is asked
//! for, and how it is given back.

use std::time::Duration;

use fencelock::{Claimed, Guard, Label, Lock, Locks, Result, Run, Term};
use tokio::time::Instant;

use super::exit::Outcome;
use super::plan::{Kind, OneTick, Plan};
use super::process::ipc::End;

/// What is held.
pub(super) enum Grant {
    Lock(Guard),
    Tick { run: Run, is_done_after_failure: bool },
    Term(Term),
}

/// The answer to a request, if it is not an error.
pub(super) enum Answer {
    Granted(Grant),
    /// The tick was run already.
    Done {
        by: String,
    },
    /// Another client runs the job.
    Running,
}

/// Asks for what the plan says. The wait limit counts from `since`.
pub(super) async fn ask(plan: &Plan, locks: &Locks, since: Instant) -> Result<Answer> {
    let lock = match &plan.own.kind {
        Kind::Tick(tick) => return claim(plan, *tick, locks, since).await,
        Kind::Election(words) => return campaign(plan, words.as_deref(), locks).await,
        // Its command inherits the lock where it can, which a hand-off would take from it.
        Kind::Exclusive => locks.lock(&plan.name).local_handoffs(1),
        Kind::Read => locks.rw_lock(&plan.name).read(),
        Kind::Write => locks.rw_lock(&plan.name).write(),
        Kind::Permits(permits) => locks.semaphore(&plan.name, permits.limit()).permits(permits.n()),
    };
    let guard = limited(lock, plan).waiting_since(since).acquire().await?;
    Ok(Answer::Granted(Grant::Lock(guard)))
}

/// The lock with the options of the plan.
fn limited(lock: Lock, plan: &Plan) -> Lock {
    let lock = lock.ttl(plan.ttl.get()).label(&plan.label);
    let lock = match plan.own.wait {
        Some(Duration::ZERO) => {
            lock.wait_at_most(Duration::ZERO).unreachable_after(plan.try_within)
        }
        Some(limit) => lock.wait_at_most(limit),
        None => lock,
    };
    match plan.own.hold_at_most {
        Some(limit) => lock.hold_at_most(limit),
        None => lock,
    }
}

async fn claim(plan: &Plan, tick: OneTick, locks: &Locks, since: Instant) -> Result<Answer> {
    let OneTick { tick, is_never_twice, is_done_after_failure } = tick;
    let once = locks.once(&plan.name).tick(tick).ttl(plan.ttl.get()).label(&plan.label);
    let once = if is_never_twice { once.never_twice() } else { once };
    let once = match plan.own.wait {
        Some(limit) => once.wait_at_most(limit).waiting_since(since),
        None => once,
    };
    let once = match plan.own.hold_at_most {
        Some(limit) => once.at_most_for(limit),
        None => once,
    };
    Ok(match once.claim().await? {
        Claimed::Run(run) => Answer::Granted(Grant::Tick { run, is_done_after_failure }),
        Claimed::Done { by } => Answer::Done { by },
        Claimed::Running => Answer::Running,
    })
}

async fn campaign(plan: &Plan, words: Option<&str>, locks: &Locks) -> Result<Answer> {
    let label = Label::of_this_process().with(&plan.label);
    let words = words.unwrap_or_else(|| label.as_str());
    let election = locks.election(&plan.name).ttl(plan.ttl.get()).label(&plan.label);
    let term = election.with_words(words).campaign().await?;
    Ok(Answer::Granted(Grant::Term(term)))
}

impl Grant {
    pub(super) fn guard(&self) -> &Guard {
        match self {
            Grant::Lock(guard) => guard,
            Grant::Tick { run, .. } => run.guard(),
            Grant::Term(term) => term.guard(),
        }
    }

    /// Whether the end of a run with this outcome marks a tick as done.
    pub(super) fn marks(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Grant::Tick { is_done_after_failure, .. }, Outcome::Ended(end)) => {
                *is_done_after_failure || *end == End::Exited(0)
            }
            _ => false,
        }
    }

    /// Gives it back, and marks the tick of a schedule if `marks`.
    pub(super) async fn end(self, marks: bool) -> Result<()> {
        match self {
            Grant::Lock(guard) => guard.release().await,
            Grant::Tick { run, .. } if marks => run.done().await,
            Grant::Tick { run, .. } => run.failed().await,
            Grant::Term(term) => term.resign().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::run::Reports;

    #[derive(Parser)]
    enum Command {
        Once(Box<crate::run::OnceOptions>),
        Elect(Box<crate::run::ElectOptions>),
    }

    /// With a tick that lasts longer than any test.
    const ONCE: [&str; 3] = ["once", "--per", "365d"];

    fn plan(command: &[&str], options: &[&str]) -> Plan {
        let fixed =
            [&["fencelock"], command, &["--url", "mem://", "--label", "me", "job"]].concat();
        let plan = match Command::parse_from(fixed.iter().chain(options).chain(&["--", "true"])) {
            Command::Once(options) => options.plan(Reports::default()),
            Command::Elect(options) => options.plan(Reports::default()),
        };
        plan.unwrap_or_else(|outcome| panic!("{outcome:?}"))
    }

    /// What the answer to a request is called here.
    async fn asked(plan: &Plan, locks: &Locks) -> (&'static str, Option<Grant>) {
        match ask(plan, locks, Instant::now()).await.expect("an answer") {
            Answer::Granted(grant) => ("granted", Some(grant)),
            Answer::Done { by } if by.ends_with("me") => ("done", None),
            Answer::Done { by } => panic!("done by {by}"),
            Answer::Running => ("running", None),
        }
    }

    #[tokio::test]
    async fn a_tick_is_done_when_its_command_has_succeeded() {
        for (options, end, then) in [
            (&[][..], End::Exited(0), "done"),
            (&[], End::Exited(1), "granted"),
            (&[], End::Killed(9), "granted"),
            (&["--failed-is-done"], End::Exited(1), "done"),
            (&["--failed-is-done"], End::Killed(9), "done"),
            (&["--never-twice"], End::Exited(1), "done"),
        ] {
            let locks = fencelock::connect("mem://").await.expect("a store of its own");
            let plan = plan(&ONCE, options);
            let (answer, grant) = asked(&plan, &locks).await;
            assert_eq!(answer, "granted", "{options:?}");
            let meanwhile = if options == ["--never-twice"] { "done" } else { "running" };
            assert_eq!(asked(&plan, &locks).await.0, meanwhile, "{options:?}");
            let grant = grant.expect("granted");
            let marks = grant.marks(&Outcome::Ended(end));
            grant.end(marks).await.expect("confirmed");
            assert_eq!(asked(&plan, &locks).await.0, then, "{options:?}");
        }
    }

    #[tokio::test]
    async fn only_the_end_of_a_command_marks_a_tick() {
        let locks = fencelock::connect("mem://").await.expect("a store");
        let plan = plan(&ONCE, &["--failed-is-done"]);
        let (_, grant) = asked(&plan, &locks).await;
        let grant = grant.expect("granted");
        let missing = std::io::ErrorKind::NotFound.into();
        for outcome in [
            Outcome::lost("taken away".to_owned()),
            Outcome::CannotExecute("job".to_owned(), missing),
            Outcome::Unwatched,
        ] {
            assert!(!grant.marks(&outcome), "{outcome:?}");
        }
        assert!(grant.marks(&Outcome::Ended(End::Exited(1))));
    }

    #[tokio::test]
    async fn a_leader_shows_its_words_or_its_label() {
        let locks = fencelock::connect("mem://").await.expect("a store");
        let label = Label::of_this_process().with("me");
        for (options, words) in [(&["--words", "one:9000"][..], "one:9000"), (&[], label.as_str())]
        {
            let (answer, grant) = asked(&plan(&["elect"], options), &locks).await;
            let grant = grant.expect(answer);
            let leader =
                locks.election("job").leader().await.expect("an answer").expect("it leads");
            assert_eq!(leader.words(), words.as_bytes());
            assert_eq!(leader.term(), grant.guard().fencing_token());
            assert!(!grant.marks(&Outcome::Ended(End::Exited(0))));
            grant.end(false).await.expect("confirmed");
        }
    }
}
