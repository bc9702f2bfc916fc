//! `fencelock break`: takes a lock from its holder.
//!
//! Only what was shown is broken: the store is asked to remove one grant by its id, which no later
//! grant has. So whatever happens between the display and the answer to the question, no other holder
//! is affected.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use fencelock::{
    Error, ErrorKind, FencingToken, Label, Participant, Profile, RenewalPlan, Result, Snapshot,
};
use fencelock_cli::{EX_USAGE, say};
use nix::unistd::{Uid, User};
use tracing::warn;

use super::target::{LockOnStore, Target};
use super::{NO, participants};
use crate::output;

/// The target of the log's lines about broken locks.
const AUDIT: &str = "fencelock::audit";

const EXIT_CODES: &str = "\
Exit codes:
  0   taken away
  1   nothing was changed: the lock is free, its holder has changed, or the answer was no
  64  usage error: no terminal and no --yes, or several holders and no --who
  69  the store did not answer; the lock may have been broken
  78  configuration: invalid store URL, refused by the store, or mem://. Where it was
      refused, see by `show` whether it was broken";

const MORE: &str = "\
Breaking a lock is a last resort: its holder may still be at work. The store notifies it at once, \
and `fencelock run` then kills its command. But a holder that is frozen learns it when it thaws, and \
one that cannot reach the store at the end of its lease or session; only a resource that checks \
fencing tokens refuses what it does until then. A client of another library is not notified.

What was shown is all that is broken. If the holder changes before the question is answered, \
nothing is changed.

A line in the log on standard error says who broke which lock, from whom, and why. No setting of \
the log hides it.";

/// Take a lock from its holder, or remove a waiter from its queue
#[derive(clap::Args)]
#[command(mut_arg("url", |url| url.short('u')))]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// The holder or waiter, by its ID in `fencelock show`; needed if there are several holders
    #[arg(long, value_name = "ID")]
    who: Option<String>,
    /// Why, for the log
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// Do not ask; needed if standard input or standard error is not a terminal
    #[arg(short, long)]
    yes: bool,
}

fn reason(text: &str) -> std::result::Result<String, &'static str> {
    let text = text.replace(char::is_control, " ").trim().to_owned();
    if text.is_empty() { Err("expected the reason, in a few words") } else { Ok(text) }
}

impl Options {
    /// Breaks the lock; the exit code.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let lock = self.target.connect().await?;
        let seen = lock.inspect().await?;
        let code = match choose(&lock, &seen, self.who.as_deref()) {
            Ok(chosen) => chosen.take(&lock, &self.reason, self.yes).await?,
            Err(refused) => refused.report(&seen)?,
        };
        lock.locks.close().await?;
        Ok(ExitCode::from(code))
    }
}

/// The one to take the lock from.
struct Chosen<'a> {
    who: &'a Participant,
    is_holder: bool,
}

/// Why none was chosen.
struct NotChosen {
    message: String,
    code: u8,
}

/// The holder or waiter with the id `who`, or else the only holder.
fn choose<'a>(
    lock: &LockOnStore,
    seen: &'a Snapshot,
    who: Option<&str>,
) -> std::result::Result<Chosen<'a>, NotChosen> {
    let refused = |message, code| Err(NotChosen { message, code });
    if let Some(id) = who {
        let find = |list: &'a [Participant]| list.iter().find(|one| one.id.as_str() == id);
        let holder = find(&seen.holders).map(|who| Chosen { who, is_holder: true });
        let found = holder.or_else(|| Some(Chosen { who: find(&seen.waiters)?, is_holder: false }));
        let missing = || format!("{lock} has no holder or waiter with the id {id:?}");
        return found.map_or_else(|| refused(missing(), NO), Ok);
    }
    match seen.holders.as_slice() {
        [] => refused(format!("{lock} is free; there is nothing to break"), NO),
        [who] => Ok(Chosen { who, is_holder: true }),
        several => refused(
            format!("{lock} has {} holders; name one of them with --who ID", several.len()),
            EX_USAGE,
        ),
    }
}

impl NotChosen {
    /// Lists those that could have been meant.
    fn report(self, seen: &Snapshot) -> Result<u8> {
        if seen.holders.len() + seen.waiters.len() > 0 {
            output::print(&participants::table(seen))?;
        }
        say(&self.message);
        Ok(self.code)
    }
}

impl Chosen<'_> {
    /// Takes the lock, or the place in its queue, unless the operator says no; the exit code.
    async fn take(&self, lock: &LockOnStore, reason: &str, yes: bool) -> Result<u8> {
        let (role, taking) = match self.is_holder {
            true => ("holder", format!("take {lock} from")),
            false => ("waiter", format!("remove from the queue of {lock}")),
        };
        let who = participants::describe(self.who);
        if !yes {
            if !can_ask() {
                say(&format!(
                    "this would {taking} {who}; --yes is needed, since there is no terminal to ask on"
                ));
                return Ok(EX_USAGE);
            }
            if !confirms(&format!("fencelock: {taking} {who}? [y/N] ")).await? {
                say("nothing was changed");
                return Ok(NO);
            }
        }
        let Participant { id, token, .. } = self.who;
        let (name, store, token) = (&lock.name, &lock.store, token.map(FencingToken::get));
        let from = self.who.label.as_ref().map_or("-", Label::as_str);
        let by = operator();
        let audited = |outcome, error: Option<String>| {
            audit(|| {
                warn!(target: AUDIT, name, store, role, from, %id, token, by, reason, error, "{outcome}");
            });
        };
        match lock.locks.evict(name, id).await {
            Ok(true) => {
                audited("broken", None);
                let notice = self.notice(lock.locks.profile());
                output::print(&format!("{}\n{notice}\n", self.done(lock, &who)))?;
                Ok(0)
            }
            Ok(false) => {
                say(&format!("{who} is gone from {lock} by now; nothing was changed"));
                Ok(NO)
            }
            Err(error) => {
                // A node of a quorum may have done it, also where it is refused.
                let is_certain =
                    error.kind() == ErrorKind::Refused && lock.locks.profile().store != "redlock";
                let outcome = if is_certain { "not broken" } else { "perhaps broken" };
                audited(outcome, Some(fencelock_cli::chain(&error)));
                Err(error)
            }
        }
    }

    /// When the one that was removed will know.
    fn notice(&self, profile: &Profile) -> String {
        if !self.is_holder {
            return "It is notified at once; it gives up, or queues again at the end.".to_owned();
        }
        // On Redis a grant of ours has a token, unless the server lost its data. On ZooKeeper each
        // node has one, also those of Curator.
        let notified = match (self.who.token, profile.renewal) {
            (Some(_), RenewalPlan::None | RenewalPlan::ThirdOfTtl) => "It is notified at once",
            _ => "It is notified at once, unless it is a client of another library",
        };
        let otherwise = match profile.renewal {
            RenewalPlan::None => "",
            RenewalPlan::ThirdOfTtl if profile.store == "postgres" => {
                "; if that is lost, or a pooler lets none through, it finds out at its next renewal: within \
                 a third of its TTL (10 s by default)"
            }
            RenewalPlan::ThirdOfTtl => {
                "; if that is lost, it finds out at its next renewal: within a third of its TTL \
                 (10 s by default)"
            }
            RenewalPlan::Every(_) => "; if its connection is broken, when it is connected again",
        };
        format!("{notified}{otherwise}.")
    }

    fn done(&self, lock: &LockOnStore, who: &str) -> String {
        match self.is_holder {
            true => format!("took {lock} from {who}"),
            false => format!("removed {who} from the queue of {lock}"),
        }
    }
}

/// Logs what `record` says to standard error, whatever the program's log shows otherwise.
fn audit(record: impl FnOnce()) {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).finish();
    tracing::subscriber::with_default(log, record);
}

/// The user who breaks the lock, with host and process id.
fn operator() -> String {
    let user = Uid::current();
    let name = User::from_uid(user).ok().flatten().map_or_else(|| user.to_string(), |it| it.name);
    // sudo's own word. An attacker who is root already could write any other line too.
    let real = match std::env::var("SUDO_USER") {
        Ok(real) if user.is_root() => format!(" (sudo by {real})"),
        _ => String::new(),
    };
    format!("{name}{real} on {}", Label::of_this_process())
}

/// Whether there is a terminal on which the question is seen and can be answered.
fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks `question`; whether the answer is yes. The connection is kept up meanwhile.
async fn confirms(question: &str) -> Result<bool> {
    let mut stderr = io::stderr();
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    let cannot =
        |cause| Error::new(ErrorKind::Refused, "cannot ask on the terminal").caused_by(cause);
    asked.map_err(cannot)?;
    let reading = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = reading.await.map_err(io::Error::other).and_then(|read| read).map_err(cannot)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use fencelock::{Mode, ParticipantId};

    use super::*;

    #[test]
    fn a_reason_is_one_line_with_words_in_it() {
        assert_eq!(reason(" the host\nburnt down ").unwrap(), "the host burnt down");
        assert!(reason(" \n").is_err());
    }

    #[tokio::test]
    async fn the_notice_follows_the_profile_of_the_store() {
        let profile = fencelock::connect("mem://").await.expect("a store").profile().clone();
        let who = Participant::new(ParticipantId::new("a1"), Mode::Exclusive);
        let ours = who.clone().token(FencingToken::new(7));
        let of = |who: &Participant, is_holder, renewal| {
            Chosen { who, is_holder }.notice(&Profile { renewal, ..profile.clone() })
        };
        assert_eq!(of(&ours, true, RenewalPlan::None), "It is notified at once.");
        assert!(of(&ours, true, RenewalPlan::ThirdOfTtl).contains("a third of its TTL"));
        assert!(
            of(&who, true, RenewalPlan::ThirdOfTtl).contains("unless it is a client of another")
        );
        let second = std::time::Duration::from_secs(1);
        let of_session = of(&ours, true, RenewalPlan::Every(second));
        assert!(of_session.contains("unless it is a client of another"), "{of_session}");
        assert!(of_session.contains("connected again"), "{of_session}");
        assert!(of(&who, false, RenewalPlan::None).contains("queues again"));
    }
}
