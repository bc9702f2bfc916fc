//! `fencelock leader`: who leads an election, now or as it changes.

use std::process::ExitCode;

use fencelock::{Leader, Result};
use fencelock_cli::{chain, one_line, say};
use serde::Serialize;

use super::NO;
use super::target::{LockOnStore, Target};
use crate::output::{self, Reader};

const EXIT_CODES: &str = "\
Exit codes:
  0   there is a leader; with --watch, the reader of the output is gone
  1   there is none
  64  usage error
  69  the store did not answer
  78  configuration: invalid store URL, refused by the store, a store without
      elections, or mem://";

const MORE: &str = "\
Prints the leader's term, which is its fencing token, and its words: those of `fencelock elect \
--words`, or what its program has set. A leader that has not written its words yet, just after its \
term began, is shown with its label. Without a leader it prints a dash.

--watch prints the present leader, then a line for each change, until it is ended by a signal. Changes \
in quick succession may be one line; terms never go back. While the store does not answer, one message \
on standard error says so, and nothing is printed.

--json prints lines of JSON instead: name, store (without password and parameters), term and words, \
which are null without a leader. The term is a string: it may exceed 2^53.

A leader whose machine died is shown until its lock ends: see docs/guarantees.md.";

/// Show the leader of an election
#[derive(clap::Args)]
#[command(mut_arg("url", |url| url.short('u')))]
#[command(after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Print each change, until a signal
    #[arg(long)]
    watch: bool,
    /// Print lines of JSON
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Shows the leader; the exit code.
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let lock = self.target.connect().await?;
        let line = |leader: Option<&Leader>| match self.json {
            true => json(&lock, leader),
            false => text(leader),
        };
        let code = match self.watch {
            true => watch(&lock, line).await?,
            false => {
                let leader = lock.locks.election(&lock.name).leader().await?;
                output::print(&line(leader.as_ref()))?;
                if leader.is_none() { NO } else { 0 }
            }
        };
        lock.locks.close().await?;
        Ok(ExitCode::from(code))
    }
}

async fn watch(lock: &LockOnStore, line: impl Fn(Option<&Leader>) -> String) -> Result<u8> {
    let mut observer = lock.locks.election(&lock.name).observe().await?;
    // An outage is one message, however often the store was asked meanwhile.
    let mut is_silent = false;
    loop {
        match observer.next().await {
            Ok(leader) => {
                is_silent = false;
                if output::print_on(&line(leader.as_ref()))? == Reader::Gone {
                    return Ok(0);
                }
            }
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut is_silent, true) {
                    say(&chain(&error));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The term and the words, or a dash.
fn text(leader: Option<&Leader>) -> String {
    let Some(leader) = leader else { return "-\n".to_owned() };
    let line = format!("{} {}", leader.term(), one_line(&words(leader)));
    line.trim_end().to_owned() + "\n"
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    store: &'a str,
    term: Option<String>,
    words: Option<String>,
}

fn json(lock: &LockOnStore, leader: Option<&Leader>) -> String {
    let line = Line {
        name: &lock.name,
        store: &lock.store,
        term: leader.map(|leader| leader.term().to_string()),
        words: leader.map(words),
    };
    let line = serde_json::to_string(&line);
    line.unwrap_or_else(|_| unreachable!("plain strings")) + "\n"
}

/// They are bytes of any program.
fn words(leader: &Leader) -> String {
    String::from_utf8_lossy(leader.words()).into_owned()
}

#[cfg(test)]
mod tests {
    use fencelock::connect;

    use super::*;

    async fn election(name: &str) -> LockOnStore {
        let locks = connect("mem://").await.expect("a store");
        LockOnStore { name: name.to_owned(), store: "mem://".to_owned(), locks }
    }

    #[tokio::test]
    async fn a_leader_is_a_term_and_words_on_one_line() {
        let lock = election("scheduler").await;
        assert_eq!(text(None), "-\n");
        assert_eq!(
            json(&lock, None),
            "{\"name\":\"scheduler\",\"store\":\"mem://\",\"term\":null,\"words\":null}\n"
        );
        for (words, shown) in
            [("10.0.0.7:9000", " 10.0.0.7:9000"), ("a\nb\u{1b}[2J", " a b [2J"), ("", "")]
        {
            let term = lock.locks.election("scheduler").with_words(words).campaign().await;
            let term = term.expect("it leads");
            let leader = lock.locks.election("scheduler").leader().await.expect("an answer");
            let number = term.fencing_token();
            assert_eq!(text(leader.as_ref()), format!("{number}{shown}\n"));
            let line = json(&lock, leader.as_ref());
            let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(
                (&line["term"], &line["words"]),
                (&number.to_string().into(), &words.into())
            );
            term.resign().await.expect("confirmed");
        }
    }
}
