//! All nodes of a store, and who of them can be asked now.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::clocks::Offset;
use super::fan_out::FanOut;
use super::member::Member;
use super::monitor::VoteRequest;
use super::token;
use super::view::QuorumView;
use super::votes::majority;

/// The nodes.
#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) view: Arc<QuorumView>,
    /// How long a round waits for answers.
    pub(crate) node_timeout: Duration,
    pub(crate) runtime: Handle,
}

/// What there is to say of each node, for errors.
#[derive(Debug)]
pub(crate) struct NodeReports(Vec<NodeReport>);

/// Of one node.
#[derive(Clone, Debug)]
pub(crate) enum NodeReport {
    Said(&'static str),
    /// It has not answered within `node_timeout`.
    Late,
    Failed(Error),
}

/// Who can be asked, at one moment.
pub(crate) struct Electorate {
    pub(crate) eligible: EligibleNodes,
    pub(crate) reports: NodeReports,
    /// By how much the nodes' clocks are ahead of ours at most, in µs.
    lead: i64,
    /// Ours.
    now_us: u64,
}

impl Electorate {
    /// The token to propose.
    pub(crate) fn proposal(&self) -> u64 {
        token::proposal(self.now_us, self.lead)
    }

    /// The time that waiters are ordered by, in µs.
    pub(crate) fn arrival(&self) -> u64 {
        self.now_us.saturating_add_signed(self.lead)
    }
}

/// Whom to ask, and what with.
pub(crate) struct EligibleNodes(Vec<Option<VoteRequest>>);

impl EligibleNodes {
    pub(crate) fn asked(&self) -> impl Iterator<Item = (usize, &VoteRequest)> {
        let eligible = self.0.iter().enumerate();
        eligible.filter_map(|(node, vote_request)| Some((node, vote_request.as_ref()?)))
    }

    /// The same nodes, as bits.
    pub(crate) fn bits(&self) -> u16 {
        bits(self.asked().map(|(node, _)| node))
    }

    pub(crate) fn of(&self, node: usize) -> Option<&VoteRequest> {
        self.0[node].as_ref()
    }
}

impl Quorum {
    pub(crate) fn majority(&self) -> usize {
        majority(self.members.len())
    }

    pub(crate) fn now(&self) -> Moment {
        self.view.clock.now()
    }

    /// The nodes that can be asked at `now`; an error when they are too few.
    pub(crate) fn electorate(&self, now: Moment) -> Result<Electorate> {
        let agreement = match self.view.agreement() {
            Ok(agreement) => agreement,
            Err(offsets) => return Err(self.clocks_disagree(&offsets)),
        };
        let mut reports = NodeReports(Vec::with_capacity(self.members.len()));
        let mut eligible = Vec::with_capacity(self.members.len());
        for (member, agrees) in self.members.iter().zip(&agreement.members) {
            let vote_request = match member.vote_request() {
                Ok(_) if !agrees => Err(Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "its clock and the others' are more than clock_tolerance={:?} apart",
                        self.view.tolerance
                    ),
                )),
                vote_request => vote_request,
            };
            reports.0.push(match &vote_request {
                Ok(_) => NodeReport::NoAnswer,
                Err(error) => NodeReport::Failed(error.clone()),
            });
            eligible.push(vote_request.ok());
        }
        if eligible.iter().flatten().count() < self.majority() {
            return Err(self.no_quorum(&reports));
        }
        Ok(Electorate {
            eligible: EligibleNodes(eligible),
            reports,
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
        self.ask(0..self.members.len(), self.unanswered(), question).await
    }

    /// What is to be said of nodes that say nothing.
    pub(crate) fn unanswered(&self) -> NodeReports {
        NodeReports(vec![NodeReport::NoAnswer; self.members.len()])
    }

    /// What these nodes answer in time; an error, with `reports` for those that do not, when that is no
    /// majority.
    pub(crate) async fn ask<'a, T, F>(
        &'a self,
        nodes: impl Iterator<Item = usize>,
        mut reports: NodeReports,
        question: impl Fn(&'a Member) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let mut fan_out = FanOut::new();
        for node in nodes {
            fan_out.ask(node, Box::pin(question(&self.members[node])));
        }
        let deadline = Instant::now() + self.node_timeout;
        let mut answers = Vec::new();
        while let Ok(Some((node, answer))) = timeout_at(deadline, fan_out.next()).await {
            match answer {
                Ok(answer) => {
                    self.members[node].heard(self.now());
                    answers.push(answer);
                }
                Err(error) => reports.set(node, NodeReport::Failed(error)),
            }
        }
        // They may have fallen silent.
        fan_out.pending().for_each(|node| self.members[node].suspect(self.now()));
        match answers.len() >= self.majority() {
            true => Ok(answers),
            false => Err(self.no_quorum(&reports)),
        }
    }

    /// Too few nodes can take part: for now, or for good if that many are sure of it.
    pub(crate) fn no_quorum(&self, reports: &NodeReports) -> Error {
        let finals = reports.0.iter().filter_map(|report| match report {
            NodeReport::Failed(error) if !error.is_retryable() => Some(error),
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
        for (member, report) in self.members.iter().zip(&reports.0) {
            // Writing to a string cannot fail.
            let _ = match report {
                NodeReport::Answered(said) => write!(text, " {}: {said};", member.host),
                NodeReport::NoAnswer => {
                    let within = self.node_timeout;
                    write!(text, " {}: no answer within node_timeout={within:?};", member.host)
                }
                NodeReport::Failed(error) => write!(text, " {}: {};", member.host, error.message()),
            };
        }
        text.truncate(text.len() - 1);
        Error::new(kind, text)
    }

    fn clocks_disagree(&self, offsets: &[Option<Offset>]) -> Error {
        let seen: Vec<Result<VoteRequest>> =
            self.members.iter().map(|member| member.vote_request()).collect();
        if seen.iter().filter(|vote_request| vote_request.is_ok()).count() < self.majority() {
            // Their clocks are not the trouble.
            let reports = seen.into_iter().map(|vote_request| match vote_request {
                Ok(_) => NodeReport::Answered("ready"),
                Err(error) => NodeReport::Failed(error),
            });
            return self.no_quorum(&NodeReports(reports.collect()));
        }
        let mut text = format!(
            "the clocks of a majority are not within clock_tolerance={:?}; seconds ahead of this \
             machine's uptime:",
            self.view.tolerance
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
    pub(crate) fn unreachable(&self) -> u16 {
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

impl NodeReports {
    pub(crate) fn set(&mut self, node: usize, report: NodeReport) {
        self.0[node] = report;
    }
}
