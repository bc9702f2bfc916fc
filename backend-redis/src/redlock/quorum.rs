//! All nodes of a store, and who of them can be asked now.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::circle::Circle;
use super::clocks::Offset;
use super::fan::Fan;
use super::fence;
use super::member::Member;
use super::sight::Ballot;
use super::votes::majority;

/// The nodes.
#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) circle: Arc<Circle>,
    /// How long a round waits for answers.
    pub(crate) node_timeout: Duration,
    pub(crate) runtime: Handle,
}

/// What there is to say of each node, for errors.
#[derive(Debug)]
pub(crate) struct Words(Vec<Word>);

/// Of one node.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Said(&'static str),
    /// It has not answered within `node_timeout`.
    Late,
    Failed(Error),
}

/// Who can be asked, at one moment.
pub(crate) struct Slate {
    pub(crate) ballots: Ballots,
    pub(crate) words: Words,
    /// By how much the nodes' clocks are ahead of ours at most, in µs.
    lead: i64,
    /// Ours.
    now_us: u64,
}

impl Slate {
    /// The fence to propose.
    pub(crate) fn proposal(&self) -> u64 {
        fence::proposal(self.now_us, self.lead)
    }

    /// The time that waiters are ordered by, in µs.
    pub(crate) fn arrival(&self) -> u64 {
        self.now_us.saturating_add_signed(self.lead)
    }
}

/// Whom to ask, and what with.
pub(crate) struct Ballots(Vec<Option<Ballot>>);

impl Ballots {
    pub(crate) fn asked(&self) -> impl Iterator<Item = (usize, &Ballot)> {
        let ballots = self.0.iter().enumerate();
        ballots.filter_map(|(node, ballot)| Some((node, ballot.as_ref()?)))
    }

    /// The same nodes, as bits.
    pub(crate) fn bits(&self) -> u16 {
        bits(self.asked().map(|(node, _)| node))
    }

    pub(crate) fn of(&self, node: usize) -> Option<&Ballot> {
        self.0[node].as_ref()
    }
}

impl Quorum {
    pub(crate) fn majority(&self) -> usize {
        majority(self.members.len())
    }

    pub(crate) fn now(&self) -> Moment {
        self.circle.clock.now()
    }

    /// The nodes that can be asked at `now`; an error when they are too few.
    pub(crate) fn slate(&self, now: Moment) -> Result<Slate> {
        let agreement = match self.circle.agreement() {
            Ok(agreement) => agreement,
            Err(offsets) => return Err(self.no_clocks(&offsets)),
        };
        let mut words = Words(Vec::with_capacity(self.members.len()));
        let mut ballots = Vec::with_capacity(self.members.len());
        for (member, agrees) in self.members.iter().zip(&agreement.members) {
            let ballot = match member.ballot() {
                Ok(_) if !agrees => Err(Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "its clock and the others' are more than clock_tolerance={:?} apart",
                        self.circle.tolerance
                    ),
                )),
                ballot => ballot,
            };
            words.0.push(match &ballot {
                Ok(_) => Word::Late,
                Err(error) => Word::Failed(error.clone()),
            });
            ballots.push(ballot.ok());
        }
        if ballots.iter().flatten().count() < self.majority() {
            return Err(self.no_majority(&words));
        }
        Ok(Slate {
            ballots: Ballots(ballots),
            words,
            lead: agreement.lead,
            now_us: now.as_nanos() / 1000,
        })
    }

    /// What all nodes answer in time; an error when that is no majority.
    pub(crate) async fn ask_all<'a, T, F>(
        &'a self,
        question: impl Fn(&'a Member) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        self.ask(0..self.members.len(), self.silence(), question).await
    }

    /// What is to be said of nodes that say nothing.
    pub(crate) fn silence(&self) -> Words {
        Words(vec![Word::Late; self.members.len()])
    }

    /// What these nodes answer in time; an error, with `words` for those that do not, when that is no
    /// majority.
    pub(crate) async fn ask<'a, T, F>(
        &'a self,
        nodes: impl Iterator<Item = usize>,
        mut words: Words,
        question: impl Fn(&'a Member) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let mut fan = Fan::new();
        for node in nodes {
            fan.ask(node, Box::pin(question(&self.members[node])));
        }
        let deadline = Instant::now() + self.node_timeout;
        let mut answers = Vec::new();
        while let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await {
            match answer {
                Ok(answer) => {
                    self.members[node].heard(self.now());
                    answers.push(answer);
                }
                Err(error) => words.set(node, Word::Failed(error)),
            }
        }
        // They may have fallen silent.
        fan.pending().for_each(|node| self.members[node].doubt(self.now()));
        match answers.len() >= self.majority() {
            true => Ok(answers),
            false => Err(self.no_majority(&words)),
        }
    }

    /// Too few nodes can take part: for now, or for good if that many are sure of it.
    pub(crate) fn no_majority(&self, words: &Words) -> Error {
        let finals = words.0.iter().filter_map(|word| match word {
            Word::Failed(error) if !error.is_retryable() => Some(error),
            _ => None,
        });
        let finals: Vec<&Error> = finals.collect();
        let others = self.members.len() - finals.len();
        let kind = match finals.first() {
            Some(error) if others < self.majority() => error.kind(),
            _ => ErrorKind::Unreachable,
        };
        let mut text = format!(
            "{} of {} nodes must agree, and too few can:",
            self.majority(),
            self.members.len()
        );
        for (member, word) in self.members.iter().zip(&words.0) {
            // Writing to a string cannot fail.
            let _ = match word {
                Word::Said(said) => write!(text, " {}: {said};", member.host),
                Word::Late => {
                    let within = self.node_timeout;
                    write!(text, " {}: no answer within node_timeout={within:?};", member.host)
                }
                Word::Failed(error) => write!(text, " {}: {};", member.host, error.message()),
            };
        }
        text.truncate(text.len() - 1);
        Error::new(kind, text)
    }

    fn no_clocks(&self, offsets: &[Option<Offset>]) -> Error {
        let seen: Vec<Result<Ballot>> = self.members.iter().map(|member| member.ballot()).collect();
        if seen.iter().filter(|ballot| ballot.is_ok()).count() < self.majority() {
            // Their clocks are not the trouble.
            let words = seen.into_iter().map(|ballot| match ballot {
                Ok(_) => Word::Said("ready"),
                Err(error) => Word::Failed(error),
            });
            return self.no_majority(&Words(words.collect()));
        }
        let mut text = format!(
            "the clocks of a majority are not within clock_tolerance={:?}; seconds ahead of this \
             machine's uptime:",
            self.circle.tolerance
        );
        for (member, offset) in self.members.iter().zip(offsets) {
            let _ = match offset {
                Some(offset) => {
                    write!(text, " {}: {:.3};", member.host, offset.at_least as f64 / 1e6)
                }
                None => write!(text, " {}: not known;", member.host),
            };
        }
        text.truncate(text.len() - 1);
        Error::new(ErrorKind::Refused, text).retryable(true)
    }

    /// The nodes that cannot be reached now, as bits.
    pub(crate) fn away(&self) -> u16 {
        let is_away = |node: &usize| self.members[*node].connection().state().is_err();
        bits((0..self.members.len()).filter(is_away))
    }

    /// Ends connections.
    pub(crate) fn close(&self) {
        self.members.iter().for_each(|member| member.close());
    }
}

fn bits(nodes: impl Iterator<Item = usize>) -> u16 {
    nodes.fold(0, |bits, node| bits | 1 << node)
}

impl Words {
    pub(crate) fn set(&mut self, node: usize, word: Word) {
        self.0[node] = word;
    }
}
