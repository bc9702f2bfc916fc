//! All nodes of the set, and which of them can be asked now.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::fan_out::FanOut;
use super::member::Member;
use super::monitor::VoteRequest;
use super::view::QuorumView;
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::clocks::Offset;
use crate::redlock::rules::token;
use crate::redlock::rules::votes::majority;

#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) view: Arc<QuorumView>,
    /// How long a round waits for replies.
    pub(crate) node_timeout: Duration,
    pub(crate) runtime: Handle,
}

/// What each node replied or why it did not, for errors.
#[derive(Debug)]
pub(crate) struct NodeReports(Vec<NodeReport>);

#[derive(Clone, Debug)]
pub(crate) enum NodeReport {
    Answered(&'static str),
    /// No reply within `node_timeout`.
    NoAnswer,
    Failed(Error),
}

/// The nodes that can be asked at one moment.
pub(crate) struct Electorate {
    pub(crate) eligible: EligibleNodes,
    pub(crate) reports: NodeReports,
    /// By how much the nodes' clocks are ahead of ours at most, in µs.
    lead: i64,
    /// Our clock.
    now_us: u64,
}

impl Electorate {
    /// The fencing token to propose.
    pub(crate) fn proposal(&self) -> u64 {
        token::proposal(self.now_us, self.lead)
    }

    /// The time that waiters are ordered by, in µs.
    pub(crate) fn arrival(&self) -> u64 {
        self.now_us.saturating_add_signed(self.lead)
    }
}

/// The nodes to ask, and what with; `None` for those that are not asked.
pub(crate) struct EligibleNodes(Vec<Option<VoteRequest>>);

impl EligibleNodes {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &VoteRequest)> {
        let requests = self.0.iter().enumerate();
        requests.filter_map(|(node, request)| Some((node, request.as_ref()?)))
    }

    pub(crate) fn nodes(&self) -> NodeSet {
        NodeSet::of(self.iter().map(|(node, _)| node))
    }

    pub(crate) fn get(&self, node: usize) -> Option<&VoteRequest> {
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
            let request = match member.vote_request() {
                Ok(_) if !agrees => Err(Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "its clock and the others' are more than clock_tolerance={:?} apart",
                        self.view.tolerance
                    ),
                )),
                request => request,
            };
            reports.0.push(match &request {
                Ok(_) => NodeReport::NoAnswer,
                Err(error) => NodeReport::Failed(error.clone()),
            });
            eligible.push(request.ok());
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

    /// What all nodes reply in time; an error when that is less than a majority.
    pub(crate) async fn ask_all<'a, T, F>(
        &'a self,
        request: impl Fn(&'a Member) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        self.ask(0..self.members.len(), self.unanswered(), request).await
    }

    /// The reports before any reply.
    pub(crate) fn unanswered(&self) -> NodeReports {
        NodeReports(vec![NodeReport::NoAnswer; self.members.len()])
    }

    /// What these nodes reply in time; an error when that is less than a majority, with `reports`
    /// for the nodes that do not.
    pub(crate) async fn ask<'a, T, F>(
        &'a self,
        nodes: impl Iterator<Item = usize>,
        mut reports: NodeReports,
        request: impl Fn(&'a Member) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let mut fan_out = FanOut::new();
        for node in nodes {
            fan_out.ask(node, Box::pin(request(&self.members[node])));
        }
        let deadline = Instant::now() + self.node_timeout;
        let mut replies = Vec::new();
        while let Ok(Some((node, reply))) = timeout_at(deadline, fan_out.next()).await {
            match reply {
                Ok(reply) => {
                    self.members[node].record_reply(self.now());
                    replies.push(reply);
                }
                Err(error) => reports.set(node, NodeReport::Failed(error)),
            }
        }
        fan_out.pending().for_each(|node| self.members[node].suspect(self.now()));
        if replies.len() >= self.majority() { Ok(replies) } else { Err(self.no_quorum(&reports)) }
    }

    /// The error for too few nodes: retryable, unless that many have failed for good.
    pub(crate) fn no_quorum(&self, reports: &NodeReports) -> Error {
        let final_errors = reports.0.iter().filter_map(|report| match report {
            NodeReport::Failed(error) if !error.is_retryable() => Some(error),
            _ => None,
        });
        let final_errors: Vec<&Error> = final_errors.collect();
        let others = self.members.len() - final_errors.len();
        let kind = match final_errors.first() {
            Some(error) if others < self.majority() => error.kind(),
            _ => ErrorKind::Unreachable,
        };
        let mut text =
            format!("no quorum ({} of {} nodes required):", self.majority(), self.members.len());
        for (member, report) in self.members.iter().zip(&reports.0) {
            // Writing to a string cannot fail.
            let _ = match report {
                NodeReport::Answered(reply) => write!(text, " {}: {reply};", member.host),
                NodeReport::NoAnswer => {
                    let within = self.node_timeout;
                    write!(text, " {}: no answer within node_timeout={within:?};", member.host)
                }
                NodeReport::Failed(error) => {
                    write!(text, " {}: {};", member.host, error.message())
                }
            };
        }
        text.truncate(text.len() - 1);
        Error::new(kind, text)
    }

    fn clocks_disagree(&self, offsets: &[Option<Offset>]) -> Error {
        let requests = self.members.iter().map(|member| member.vote_request());
        let requests: Vec<Result<VoteRequest>> = requests.collect();
        if requests.iter().filter(|request| request.is_ok()).count() < self.majority() {
            // Their clocks are not the cause.
            let reports = requests.into_iter().map(|request| match request {
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
                None => write!(text, " {}: unknown;", member.host),
            };
        }
        text.truncate(text.len() - 1);
        Error::new(ErrorKind::Refused, text).retryable(true)
    }

    /// The nodes without a connection.
    pub(crate) fn unreachable(&self) -> NodeSet {
        let is_unreachable = |node: &usize| self.members[*node].connection().state().is_err();
        NodeSet::of((0..self.members.len()).filter(is_unreachable))
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.members.iter().for_each(|member| member.close());
    }
}

impl NodeReports {
    pub(crate) fn set(&mut self, node: usize, report: NodeReport) {
        self.0[node] = report;
    }
}
