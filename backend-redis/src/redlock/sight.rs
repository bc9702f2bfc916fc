//! What is known of one node: whether it may vote, by its record, and its clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;

use super::clocks::Offset;
use super::debts::PendingReleases;
use super::incarnation::{
    self, Deployment, IncarnationRecord, IncarnationVerdict, RestartTracker, verdict,
};
use super::view::QuorumView;
use crate::connection::{PushHandler, SupervisedConnection};
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::script::QUORUM;
use crate::server::server_info::ServerInfo;

/// How often a node's clock is read.
const CLOCK_INTERVAL: Duration = Duration::from_secs(30);
/// How soon after a look that failed another follows, and after a doubt at the earliest.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Writes of one look: others may write at the same time.
pub(super) const MAX_WRITES: usize = 5;

/// What is known of one node.
#[derive(Debug)]
pub(super) struct NodeMonitor {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) view: Arc<QuorumView>,
    pub(super) known: Mutex<NodeState>,
    pub(super) look: Notify,
    pub(super) debts: PendingReleases,
    /// When it last answered, in ns on the store's clock.
    pub(super) heard: AtomicU64,
}

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) place: Eligibility,
    /// Of the present connection, or of the last one.
    pub(super) run_id: String,
    /// Of this run's connections, but those that are certain to be gone.
    pub(super) client_ids: Vec<i64>,
    pub(super) restarts: RestartTracker,
}

/// Whether a node may be asked for votes.
#[derive(Clone, Debug)]
pub(super) enum Eligibility {
    /// Its record has not been read, or has changed since.
    Unseen,
    Votes(VoteRequest),
    /// It has lost its data, or is new: until then.
    Young(Moment),
    Out(Error),
}

/// What a vote is asked for with.
#[derive(Clone, Debug)]
pub(crate) struct VoteRequest {
    /// The record's text.
    pub(crate) record: Arc<str>,
    /// One incarnation of the node with its data.
    pub(crate) incarnation: Arc<str>,
}

impl NodeMonitor {
    /// Takes away the record of an earlier run, which a restart may have kept: before anything else
    /// is asked over this connection, since the record's text is what earlier votes were asked with.
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

    pub(super) fn known(&self) -> MutexGuard<'_, NodeState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads record and clock, writes what is to be written; when to look again.
    pub(super) async fn look(&self, connection: &SupervisedConnection) -> Result<Duration> {
        connection.state()?;
        for _ in 0..MAX_WRITES {
            let (text, now_us, offset) = self.ask(connection).await?;
            let run_id = self.known().run_id.clone();
            let deployment = self.view.deployment;
            let record = text.as_deref().and_then(IncarnationRecord::parse);
            let epoch = record.as_ref().map_or(0, |record| record.deployment.epoch);
            self.view.shows(self.index, epoch);
            match verdict(text.as_deref(), &run_id, now_us, deployment) {
                IncarnationVerdict::Write(record) => match self.view.superseded() {
                    Some(error) => {
                        self.known().place = Eligibility::Excluded(error);
                        return Ok(CLOCK_INTERVAL);
                    }
                    None => write(connection, text.as_deref(), &record).await?,
                },
                verdict => {
                    self.view.read(self.index, offset);
                    let agrees = self.view.agreement().is_ok_and(|all| all.members[self.index]);
                    let incarnation = record.map(|record| record.incarnation()).unwrap_or_default();
                    let next = self.conclude(verdict, &incarnation, &run_id);
                    // One slow answer must not keep it out for long.
                    return Ok(if agrees { next } else { next.min(LOOK_AGAIN) });
                }
            }
        }
        Err(keeps_changing())
    }

    async fn ask(
        &self,
        connection: &SupervisedConnection,
    ) -> Result<(Option<String>, u64, Offset)> {
        let clock = &self.view.clock;
        let sent = micros(clock.now());
        let answers = connection.send_all(&questions()).await?;
        let now = clock.now();
        let received = micros(now);
        let (text, now_us) = read_answers(answers)?;
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        Ok((text, now_us, Offset::read(now_us, sent, received)))
    }

    /// What the node's verdict in this incarnation of this run means for this client; when to look again.
    fn conclude(&self, verdict: IncarnationVerdict, incarnation: &str, run_id: &str) -> Duration {
        let (now, delay) = (self.view.clock.now(), self.view.deployment.delay);
        let mut known = self.known();
        if known.run_id != run_id {
            // Another connection has met another run meanwhile.
            known.place = Eligibility::Unknown;
            return Duration::from_millis(1);
        }
        let (place, next) = match verdict {
            IncarnationVerdict::Open(record) => {
                match known.restarts.meet(incarnation, now, delay) {
                    Duration::ZERO => {
                        let record = record.to_string().into();
                        (
                            Eligibility::Eligible(VoteRequest {
                                record,
                                incarnation: incarnation.into(),
                            }),
                            CLOCK_INTERVAL,
                        )
                    }
                    rest => (Eligibility::Quarantined(now + rest), rest),
                }
            }
            IncarnationVerdict::Quarantined(rest) => {
                let rest = rest.max(known.restarts.meet(incarnation, now, delay));
                (Eligibility::Quarantined(now + rest), rest)
            }
            IncarnationVerdict::OfAnotherSet(record) => {
                let error = other_set(&record, self.view.deployment);
                (Eligibility::Excluded(error), CLOCK_INTERVAL)
            }
            IncarnationVerdict::Foreign => {
                let what = format!("{} holds the text of another program", incarnation::KEY);
                (
                    Eligibility::Excluded(Error::new(ErrorKind::Foreign, what).retryable(false)),
                    CLOCK_INTERVAL,
                )
            }
            IncarnationVerdict::Write(_) => (Eligibility::Unknown, LOOK_AGAIN),
        };
        known.place = place;
        next.clamp(Duration::from_millis(1), CLOCK_INTERVAL)
    }
}

#[async_trait]
impl PushHandler for NodeMonitor {
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("INFO").cmd("CLIENT").arg("ID");
        let answers = questions.query_async::<(Value, i64)>(connection).await;
        let (info, client_id) = answers.map_err(|error| explain(&error))?;
        let server_info = ServerInfo::read(&info);
        server_info.require(false)?;
        server_info.warn_of_eviction(&self.name);
        let mut scripts = Pipeline::new();
        for script in QUORUM.all() {
            scripts.cmd("SCRIPT").arg("LOAD").arg(&script.text).ignore();
        }
        scripts.query_async::<()>(connection).await.map_err(|error| explain(&error))?;
        let run_id = server_info.run_id().ok_or_else(|| {
            let message = "the server does not tell its run_id; its ACL must allow INFO";
            Error::new(ErrorKind::Refused, message)
        })?;
        let predecessors = {
            let mut known = self.known();
            if known.run_id != run_id {
                known.place = Eligibility::Unknown;
                known.client_ids.clear();
                run_id.clone_into(&mut known.run_id);
            }
            let predecessors = known.client_ids.clone();
            known.client_ids.push(client_id);
            predecessors
        };
        for predecessor in predecessors {
            // What it sent may lie in a server that stands still, and would be done after the
            // release that comes over this one.
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(predecessor);
            // Of one that is gone the server knows nothing, and says so.
            if let Err(error) = kill.query_async::<Value>(connection).await
                && error.code() == Some("NOPERM")
            {
                let node = &self.name;
                tracing::warn!(%error, node, "old connections cannot be ended; see docs/redlock.md");
            }
            self.known().client_ids.retain(|id| *id != predecessor);
        }
        self.invalidate_old_record(connection, run_id).await?;
        self.look.notify_one();
        Ok(())
    }

    fn on_message(&self, message: &[u8]) {
        self.view.waiters.on_message(self.index, message);
    }

    fn on_invalidate(&self, _key: &Value) {}

    /// Another node tells the same; what none tells is found by the next look.
    fn on_gap(&self) {}
}

fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}

/// Asks for the record and the clock.
fn questions() -> Pipeline {
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("GET").arg(incarnation::KEY).cmd("TIME");
    questions
}

/// The record's text, if there is one, and the node's clock, in µs.
pub(super) async fn record_and_clock(
    connection: &mut MultiplexedConnection,
) -> Result<(Option<String>, u64)> {
    let questions = questions();
    let answers = connection.send_packed_commands(&questions, 0, questions.len()).await;
    read_answers(answers.map_err(|error| explain(&error))?)
}

fn read_answers(answers: Vec<Value>) -> Result<(Option<String>, u64)> {
    let answers: Result<Vec<Value>, _> = answers.into_iter().map(Value::extract_error).collect();
    let answers = answers.map_err(|error| explain(&error))?;
    read(&answers).ok_or_else(|| protocol_error("GET and TIME"))
}

pub(crate) fn read(answers: &[Value]) -> Option<(Option<String>, u64)> {
    let [text, Value::Array(time)] = answers else { return None };
    let text = match text {
        Value::Nil => None,
        // What is no UTF-8 is no record either.
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => return None,
    };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = time.as_slice() else {
        return None;
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    Some((text, number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)?))
}

/// Puts `new` in the place of `old`, if that is still there.
pub(crate) fn write_command(old: Option<&str>, new: &IncarnationRecord) -> Cmd {
    const SWAP: &str = "-- Changes the record only if it is still the one that was seen.
        if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
        -- A birth that was seen long ago, by one who stood still since, is not now.
        if ARGV[3] ~= '' and redis.call('TIME')[1] - ARGV[3] > 1 then return 0 end
        redis.call('SET', KEYS[1], ARGV[2])
        return 1";
    let born = match new.state {
        incarnation::RecordState::Born => (new.born_us / 1_000_000).to_string(),
        incarnation::RecordState::Open | incarnation::RecordState::Closed => String::new(),
    };
    let mut swap = redis::cmd("EVAL");
    swap.arg(SWAP).arg(1).arg(incarnation::KEY).arg(old.unwrap_or_default()).arg(new.to_string());
    swap.arg(born);
    swap
}

async fn write(
    connection: &SupervisedConnection,
    old: Option<&str>,
    new: &IncarnationRecord,
) -> Result<()> {
    let answer = connection.send(&write_command(old, new)).await?;
    answer.map(drop).map_err(|error| explain(&error))
}

pub(super) fn keeps_changing() -> Error {
    Error::new(ErrorKind::Unreachable, "its record keeps changing")
}

pub(super) fn quarantined(rest: Duration) -> Error {
    // Whole seconds, and not one too few.
    let seconds = rest.as_millis().div_ceil(1000);
    let message = format!(
        "it has lost its data or is new, and takes part in {seconds} s; nodes that never held a \
         lock are declared new by `fencelock redlock init`"
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// What to say of a node that other clients use otherwise.
pub(crate) fn other_set(record: &IncarnationRecord, ours: Deployment) -> Error {
    let Deployment { nodes, epoch, delay } = record.deployment;
    let theirs =
        format!("{nodes} nodes, set_epoch={epoch}, restart_delay={}s", delay.as_secs_f64());
    let message = match record.state {
        incarnation::RecordState::Closed => {
            format!("its set of nodes was changed: it is closed ({theirs})")
        }
        _ => format!(
            "it belongs to a set of {theirs}; the URL says {} nodes, set_epoch={}, \
             restart_delay={}s",
            ours.nodes,
            ours.epoch,
            ours.delay.as_secs_f64()
        ),
    };
    Error::new(ErrorKind::Refused, message)
}
