//! Monitors one node: whether it may vote, by its incarnation record, and its clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::backend::program;
use fencelock_core::sync::Mutex;
use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::Notify;

use super::pending_releases::PendingReleases;
use super::record::{
    MAX_WRITES, keeps_changing, other_set, read_commands, read_replies, record_and_clock, write,
    write_command,
};
use super::view::QuorumView;
use crate::connection::{PushHandler, SupervisedConnection};
use crate::protocol::error::explain;
use crate::redlock::rules::clocks::Offset;
use crate::redlock::rules::incarnation::{
    self, IncarnationRecord, IncarnationVerdict, RestartTracker, verdict,
};
use crate::redlock::scripts::QUORUM;
use crate::server::batch::BatchingNode;
use crate::server::server_info::ServerInfo;

/// How often a node's clock is read.
const CLOCK_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed check, and the earliest check after a suspicion.
pub(super) const RECHECK: Duration = Duration::from_millis(500);

/// What is known of one node.
#[derive(Debug)]
pub(super) struct NodeMonitor {
    index: usize,
    name: String,
    pub(super) view: Arc<QuorumView>,
    state: Mutex<NodeState>,
    pub(super) recheck: Notify,
    pub(super) pending: PendingReleases,
    /// When it last replied, in ns on the client's clock.
    pub(super) last_reply: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) eligibility: Eligibility,
    /// Of the current connection, or of the last one.
    pub(super) run_id: String,
    /// The connections to this run, except those that have certainly ended.
    pub(super) client_ids: Vec<i64>,
    pub(super) restarts: RestartTracker,
}

/// Whether a node may be asked for votes.
#[derive(Clone, Debug, Default)]
pub(super) enum Eligibility {
    /// Its incarnation record has not been read, or has changed since.
    #[default]
    Unknown,
    Eligible(VoteRequest),
    /// It has lost its data, or is new: excluded until then.
    Quarantined(Moment),
    Excluded(Error),
}

/// What a vote is requested with.
#[derive(Clone, Debug)]
pub(crate) struct VoteRequest {
    /// The incarnation record's text.
    pub(crate) record: Arc<str>,
    /// From one loss of the node's data to the next.
    pub(crate) incarnation: Arc<str>,
}

impl NodeMonitor {
    pub(super) fn new(index: usize, name: String, view: Arc<QuorumView>) -> NodeMonitor {
        NodeMonitor {
            index,
            name,
            view,
            state: Mutex::default(),
            recheck: Notify::new(),
            pending: PendingReleases::default(),
            last_reply: AtomicU64::new(0),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock()
    }

    /// Checks the node periodically, when a connection is new, and when it is suspected.
    pub(super) async fn run(self: Arc<Self>, batches: Arc<BatchingNode>) {
        let connection = batches.node().connection();
        loop {
            if connection.started().await.is_err() {
                self.view.publish_update();
                if connection.up().await.is_err() {
                    return;
                }
            }
            self.pending.flush(&batches, self.view.clock.now()).await;
            let next = match self.check(connection).await {
                Ok(next) => next,
                Err(error) => {
                    program::call(|| {
                        tracing::debug!(%error, node = %self.name, "a node could not be checked");
                    });
                    RECHECK
                }
            };
            self.view.publish_update();
            let _ = tokio::time::timeout(next, self.recheck.notified()).await;
        }
    }

    /// Reads the record and the clock, and writes the record if that is due; when to check again.
    async fn check(&self, connection: &SupervisedConnection) -> Result<Duration> {
        connection.state()?;
        for _ in 0..MAX_WRITES {
            let (text, now_us, offset) = self.read(connection).await?;
            let run_id = self.state().run_id.clone();
            let deployment = self.view.deployment;
            let record = text.as_deref().and_then(IncarnationRecord::parse);
            let epoch = record.as_ref().map_or(0, |record| record.deployment.epoch);
            self.view.set_epoch(self.index, epoch);
            match verdict(text.as_deref(), &run_id, now_us, deployment) {
                IncarnationVerdict::Write(record) => match self.view.superseded() {
                    Some(error) => {
                        self.state().eligibility = Eligibility::Excluded(error);
                        return Ok(CLOCK_INTERVAL);
                    }
                    None => write(connection, text.as_deref(), &record).await?,
                },
                verdict => {
                    self.view.set_offset(self.index, offset);
                    let agrees = self.view.agreement().is_ok_and(|all| all.members[self.index]);
                    let incarnation = record.map(|record| record.incarnation()).unwrap_or_default();
                    let next = self.apply(verdict, &incarnation, &run_id);
                    // One slow reply must not exclude it for long.
                    return Ok(if agrees { next } else { next.min(RECHECK) });
                }
            }
        }
        Err(keeps_changing())
    }

    async fn read(
        &self,
        connection: &SupervisedConnection,
    ) -> Result<(Option<String>, u64, Offset)> {
        let clock = &self.view.clock;
        let sent = micros(clock.now());
        let replies = connection.send_all(&read_commands()).await?;
        let now = clock.now();
        let received = micros(now);
        let (text, now_us) = read_replies(replies)?;
        self.last_reply.store(now.as_nanos(), Ordering::Relaxed);
        Ok((text, now_us, Offset::read(now_us, sent, received)))
    }

    /// Applies the verdict on this incarnation of this run; when to check again.
    fn apply(&self, verdict: IncarnationVerdict, incarnation: &str, run_id: &str) -> Duration {
        let (now, delay) = (self.view.clock.now(), self.view.deployment.delay);
        let mut state = self.state();
        if state.run_id != run_id {
            // Another connection has reached another run meanwhile.
            state.eligibility = Eligibility::Unknown;
            return Duration::from_millis(1);
        }
        let (eligibility, next) = match verdict {
            IncarnationVerdict::Open(record) => {
                match state.restarts.observe(incarnation, now, delay) {
                    Duration::ZERO => {
                        let record = record.to_string().into();
                        let request = VoteRequest { record, incarnation: incarnation.into() };
                        (Eligibility::Eligible(request), CLOCK_INTERVAL)
                    }
                    rest => (Eligibility::Quarantined(now + rest), rest),
                }
            }
            IncarnationVerdict::Quarantined(rest) => {
                let rest = rest.max(state.restarts.observe(incarnation, now, delay));
                (Eligibility::Quarantined(now + rest), rest)
            }
            IncarnationVerdict::OfAnotherSet(record) => {
                let error = other_set(&record, self.view.deployment);
                (Eligibility::Excluded(error), CLOCK_INTERVAL)
            }
            IncarnationVerdict::Foreign => {
                let what = format!("{} holds the text of another program", incarnation::KEY);
                let error = Error::new(ErrorKind::Foreign, what).retryable(false);
                (Eligibility::Excluded(error), CLOCK_INTERVAL)
            }
            IncarnationVerdict::Write(_) => (Eligibility::Unknown, RECHECK),
        };
        state.eligibility = eligibility;
        next.clamp(Duration::from_millis(1), CLOCK_INTERVAL)
    }

    /// Replaces the record of an earlier run, which a restart may have kept: before any other
    /// request on this connection, since earlier votes were requested with that record's text.
    async fn invalidate_old_record(
        &self,
        connection: &mut MultiplexedConnection,
        run_id: &str,
    ) -> Result<()> {
        let (text, now_us) = record_and_clock(connection).await?;
        let is_kept = text.is_some() && self.view.superseded().is_none();
        match verdict(text.as_deref(), run_id, now_us, self.view.deployment) {
            IncarnationVerdict::Write(record) if is_kept => {
                let swap = write_command(text.as_deref(), &record);
                swap.query_async::<()>(connection).await.map_err(|error| explain(&error))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl PushHandler for NodeMonitor {
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("INFO").cmd("CLIENT").arg("ID");
        let replies = commands.query_async::<(Value, i64)>(connection).await;
        let (info, client_id) = replies.map_err(|error| explain(&error))?;
        let server_info = ServerInfo::read(&info);
        server_info.require(false)?;
        program::call(|| server_info.warn_of_eviction(&self.name));
        let mut scripts = Pipeline::new();
        for script in QUORUM.all() {
            scripts.cmd("SCRIPT").arg("LOAD").arg(&script.text).ignore();
        }
        scripts.query_async::<()>(connection).await.map_err(|error| explain(&error))?;
        let run_id = server_info.run_id().ok_or_else(|| {
            let message = "the server does not report its run_id; its ACL must allow INFO";
            Error::new(ErrorKind::Refused, message)
        })?;
        if self.view.set_run(self.index, run_id) {
            let node = &self.name;
            program::call(|| {
                tracing::warn!(
                    node,
                    "another name of the URL leads to this server too: it has one vote"
                );
            });
        }
        let predecessors = {
            let mut state = self.state();
            if state.run_id != run_id {
                state.eligibility = Eligibility::Unknown;
                state.client_ids.clear();
                run_id.clone_into(&mut state.run_id);
            }
            let predecessors = state.client_ids.clone();
            state.client_ids.push(client_id);
            predecessors
        };
        for predecessor in predecessors {
            // A frozen server may still hold its requests unread, and would run them after the
            // release that this connection sends.
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(predecessor);
            // The server reports an error for a connection that has ended.
            if let Err(error) = kill.query_async::<Value>(connection).await
                && error.code() == Some("NOPERM")
            {
                let node = &self.name;
                program::call(|| {
                    tracing::warn!(%error, node, "the ACL forbids to end old connections; see docs/redlock.md");
                });
            }
            self.state().client_ids.retain(|id| *id != predecessor);
        }
        self.invalidate_old_record(connection, run_id).await?;
        self.recheck.notify_one();
        Ok(())
    }

    fn on_message(&self, message: &[u8]) {
        self.view.waiters.on_message(self.index, message);
    }

    fn on_invalidate(&self, _key: &Value) {}

    /// Another node notifies of the same; what none notifies of, the next check finds.
    fn on_gap(&self) {}
}

fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}
