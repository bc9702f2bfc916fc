//! All nodes of the set, and which of them can be asked now.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::fan_out::FanOut;
use super::member::Member;
use super::monitor::VoteRequest;
use super::view::QuorumView;
use crate::connection::HostPort;
use crate::redlock::node::{about, one_server};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::clocks::Offset;
use crate::redlock::rules::token;
use crate::redlock::rules::votes::{Vote, majority};
use crate::server::batch::Ticket;

#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) view: Arc<QuorumView>,
    /// How long a round waits for replies.
    pub(crate) node_timeout: Duration,
    pub(crate) runtime: Handle,
}

/// What a node replied or why it did not, for errors.
#[derive(Clone, Debug)]
pub(crate) enum NodeReport {
    Answered(&'static str),
    /// No reply within `node_timeout`.
    NoAnswer,
    Failed(Error),
}

impl NodeReport {
    /// Records why the node did not vote.
    pub(crate) fn failed(&mut self, error: Error) -> Vote {
        *self = NodeReport::Failed(error);
        Vote::Absent
    }
}

/// The nodes that can be asked at one moment.
pub(crate) struct Electorate {
    pub(crate) eligible: EligibleNodes,
    pub(crate) reports: Vec<NodeReport>,
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

    /// By what the token of a shared grant names `node`, from 1: its place in the order of the names, for clients may
    /// list them in another one.
    pub(crate) fn number(&self, node: usize) -> usize {
        let host = &self.members[node].host;
        1 + self.members.iter().filter(|other| other.host < *host).count()
    }

    /// The nodes that can be asked at `now`; an error when they are too few. Those with something of earlier rounds of
    /// the claim are `left_out`: they would reject it for that.
    pub(crate) fn electorate(
        &self,
        now: Moment,
        left_out: impl Fn(usize) -> Option<Error>,
    ) -> Result<Electorate> {
        let agreement = match self.view.agreement() {
            Ok(agreement) => agreement,
            Err(offsets) => return Err(self.clocks_disagree(&offsets)),
        };
        let mut reports = Vec::with_capacity(self.members.len());
        let mut eligible = Vec::with_capacity(self.members.len());
        let requests = self.vote_requests().into_iter().zip(&agreement.members);
        for (node, (request, agrees)) in requests.enumerate() {
            let request = match request {
                Ok(_) if !agrees => Err(Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "its clock and the others' are more than clock_tolerance={:?} apart",
                        self.view.tolerance
                    ),
                )),
                request => request.and_then(|it| left_out(node).map_or(Ok(it), Err)),
            };
            reports.push(match &request {
                Ok(_) => NodeReport::NoAnswer,
                Err(error) => NodeReport::Failed(error.clone()),
            });
            eligible.push(request.ok());
        }
        if eligible.iter().flatten().count() < self.majority() {
            // They are not asked.
            let unasked = reports.iter_mut().filter(|it| matches!(it, NodeReport::NoAnswer));
            unasked.for_each(|report| *report = NodeReport::Answered("ready"));
            return Err(self.no_quorum(&reports));
        }
        Ok(Electorate {
            eligible: EligibleNodes(eligible),
            reports,
            lead: agreement.lead,
            now_us: now.as_nanos() / 1000,
        })
    }

    /// What each node's vote is requested with; an error says why it is not asked. A server to which several names
    /// lead, since the last connection perhaps, is asked by the first of them: it has one vote.
    fn vote_requests(&self) -> Vec<Result<VoteRequest>> {
        let requests = self.members.iter().map(|member| member.vote_request());
        let mut requests: Vec<Result<VoteRequest>> = requests.collect();
        for node in (1..requests.len()).rev() {
            if let Some(first) = first_name(&requests, node) {
                // By the next connection the name may lead elsewhere.
                requests[node] = Err(self.one_server(first, node).retryable(true));
            }
        }
        requests
    }

    /// Refuses names of one server, also of one that may not vote yet.
    pub(crate) fn require_servers(&self) -> Result<()> {
        let mut twins = self.twins().into_iter();
        twins.next().map_or(Ok(()), |(first, node)| Err(self.one_server(first, node)))
    }

    /// The first name and each further one of a server, of those that are connected.
    fn twins(&self) -> Vec<(usize, usize)> {
        let runs = self.view.runs();
        let is_up = |node: usize| self.members[node].connection().state().is_ok();
        let of = |node: usize| (!runs[node].is_empty() && is_up(node)).then(|| &runs[node]);
        let first_of =
            |node| (0..node).find(|first| of(*first).is_some_and(|run| Some(run) == of(node)));
        (1..runs.len()).filter_map(|node| Some((first_of(node)?, node))).collect()
    }

    fn one_server(&self, first: usize, node: usize) -> Error {
        one_server(&self.members[first].host, &self.members[node].host)
    }

    /// The reports before any reply. A server is asked by one name: its reply counts once.
    pub(crate) fn unanswered(&self) -> Vec<NodeReport> {
        let mut reports = vec![NodeReport::NoAnswer; self.members.len()];
        for (first, node) in self.twins() {
            reports[node] = NodeReport::Failed(self.one_server(first, node).retryable(true));
        }
        reports
    }

    /// What the nodes without a report reply in time, `patience` times as long while that is less than a majority:
    /// then it is an error.
    pub(crate) async fn ask<'a, T, F>(
        &'a self,
        mut reports: Vec<NodeReport>,
        patience: u32,
        request: impl Fn(&'a Member, Arc<dyn Ticket>) -> F,
    ) -> Result<Vec<T>>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let mut fan_out = FanOut::new(self.majority());
        for (node, member) in self.members.iter().enumerate() {
            if let NodeReport::NoAnswer = reports[node] {
                fan_out.ask(node, |ticket| request(member, ticket));
            }
        }
        let (asked, mut replies) = (Instant::now(), Vec::new());
        loop {
            let open = replies.len()..replies.len() + fan_out.pending().count();
            let limit = self.node_timeout
                * if open.contains(&(self.majority() - 1)) { patience } else { 1 };
            let Some((node, reply)) = fan_out.next_within(asked, limit).await else { break };
            match reply {
                Ok(reply) => {
                    self.members[node].record_reply(self.now());
                    reports[node] = NodeReport::Answered("it has answered");
                    replies.push(reply);
                }
                Err(error) => reports[node] = NodeReport::Failed(error),
            }
        }
        self.suspect_silent(&fan_out);
        if replies.len() >= self.majority() { Ok(replies) } else { Err(self.no_quorum(&reports)) }
    }

    /// Suspects the nodes that did not reply while others did.
    pub(crate) fn suspect_silent<T>(&self, requests: &FanOut<'_, T>) {
        requests.silent().iter().for_each(|node| self.members[node].suspect(self.now()));
    }

    /// The error for too few nodes: retryable, unless that many have failed for good.
    pub(crate) fn no_quorum(&self, reports: &[NodeReport]) -> Error {
        let final_errors = reports.iter().filter_map(|report| match report {
            NodeReport::Failed(error) if !error.is_retryable() => Some(error),
            _ => None,
        });
        let final_errors: Vec<&Error> = final_errors.collect();
        let others = self.members.len() - final_errors.len();
        let kind = match final_errors.first() {
            Some(error) if others < self.majority() => error.kind(),
            _ => ErrorKind::Unreachable,
        };
        let texts = reports.iter().map(|report| match report {
            NodeReport::Answered(reply) => (*reply).to_owned(),
            NodeReport::NoAnswer => {
                format!("no answer within node_timeout={:?}", self.node_timeout)
            }
            NodeReport::Failed(error) => error.message().to_string(),
        });
        let nodes = self.members.len();
        let text = format!("no quorum ({} of {nodes} nodes required)", self.majority());
        Error::new(kind, by_node(&text, self.hosts().zip(texts)))
    }

    fn clocks_disagree(&self, offsets: &[Option<Offset>]) -> Error {
        let requests = self.vote_requests();
        if requests.iter().filter(|request| request.is_ok()).count() < self.majority() {
            // Their clocks are not the cause.
            let reports = requests.into_iter().map(|request| match request {
                Ok(_) => NodeReport::Answered("ready"),
                Err(error) => NodeReport::Failed(error),
            });
            return self.no_quorum(&reports.collect::<Vec<_>>());
        }
        let text = format!(
            "the clocks of a majority are not within clock_tolerance={:?}; seconds ahead of this \
             machine's uptime",
            self.view.tolerance
        );
        let clocks = offsets.iter().map(|offset| match offset {
            Some(offset) => format!("{:.3}", offset.at_least as f64 / 1e6),
            None => "unknown".to_owned(),
        });
        Error::new(ErrorKind::Refused, by_node(&text, self.hosts().zip(clocks))).retryable(true)
    }

    fn hosts(&self) -> impl Iterator<Item = &HostPort> {
        self.members.iter().map(|member| &member.host)
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

/// The first node with the server of `node`, by its incarnation record, which has the ID of the server's run.
fn first_name(requests: &[Result<VoteRequest>], node: usize) -> Option<usize> {
    let record = &requests[node].as_ref().ok()?.record;
    let is_its = |other: &Result<VoteRequest>| other.as_ref().is_ok_and(|it| it.record == *record);
    requests[..node].iter().position(is_its)
}

/// The text of an error, with what it says of each node.
pub(crate) fn by_node(
    text: &str,
    nodes: impl Iterator<Item = (impl fmt::Display, impl fmt::Display)>,
) -> String {
    let nodes: Vec<String> = nodes.map(|(host, what)| about(&host, &what.to_string())).collect();
    format!("{text}: {}", nodes.join("; "))
}
