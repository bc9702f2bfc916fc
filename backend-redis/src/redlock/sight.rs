//! What is known of one node: whether it may vote, by its marker, and its clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;

use super::circle::Circle;
use super::clocks::Offset;
use super::debts::Debts;
use super::marker::{self, Acquaintance, Deployment, Marker, Standing, standing};
use crate::server::server_info::ServerInfo;
use crate::protocol::error::{explain, protocol_error};
use crate::connection::{PushHandler, SupervisedConnection};
use crate::protocol::script::QUORUM;

/// How often a node's clock is read.
const READ_CLOCK: Duration = Duration::from_secs(30);
/// How soon after a look that failed another follows, and after a doubt at the earliest.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Writes of one look: others may write at the same time.
pub(super) const WRITES: usize = 5;

/// What is known of one node.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) circle: Arc<Circle>,
    pub(super) known: Mutex<Known>,
    pub(super) look: Notify,
    pub(super) debts: Debts,
    /// When it last answered, in ns on the store's clock.
    pub(super) heard: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Known {
    pub(super) place: Place,
    /// Of the present connection, or of the last one.
    pub(super) run_id: String,
    /// Of this run's connections, but those that are certain to be gone.
    pub(super) client_ids: Vec<i64>,
    pub(super) acquaintance: Acquaintance,
}

/// Whether a node may be asked for votes.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Its marker has not been read, or has changed since.
    Unseen,
    Votes(Ballot),
    /// It has lost its data, or is new: until then.
    Young(Moment),
    Out(Error),
}

/// What a vote is asked for with.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    /// The marker's text.
    pub(crate) marker: Arc<str>,
    /// One life of the node with its data.
    pub(crate) life: Arc<str>,
}

impl Sight {
    /// Takes away the marker of an earlier run, which a restart may have kept: before anything else
    /// is asked over this connection, since the marker's text is what earlier votes were asked with.
    async fn disown(&self, connection: &mut MultiplexedConnection, run_id: &str) -> Result<()> {
        let (text, now_us) = marker_and_clock(connection).await?;
        let is_kept = text.is_some() && self.circle.replaced().is_none();
        match standing(text.as_deref(), run_id, now_us, self.circle.deployment) {
            Standing::Write(marker) if is_kept => {
                let swap = write_command(text.as_deref(), &marker);
                swap.query_async::<()>(connection).await.map_err(|error| explain(&error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads marker and clock, writes what is to be written; when to look again.
    pub(super) async fn look(&self, connection: &SupervisedConnection) -> Result<Duration> {
        connection.state()?;
        for _ in 0..WRITES {
            let (text, now_us, offset) = self.ask(connection).await?;
            let run_id = self.known().run_id.clone();
            let deployment = self.circle.deployment;
            let marker = text.as_deref().and_then(Marker::parse);
            let epoch = marker.as_ref().map_or(0, |marker| marker.deployment.epoch);
            self.circle.shows(self.index, epoch);
            match standing(text.as_deref(), &run_id, now_us, deployment) {
                Standing::Write(marker) => match self.circle.replaced() {
                    Some(error) => {
                        self.known().place = Place::Out(error);
                        return Ok(READ_CLOCK);
                    }
                    None => write(connection, text.as_deref(), &marker).await?,
                },
                standing => {
                    self.circle.read(self.index, offset);
                    let agrees = self.circle.agreement().is_ok_and(|all| all.members[self.index]);
                    let life = marker.map(|marker| marker.life()).unwrap_or_default();
                    let next = self.conclude(standing, &life, &run_id);
                    // One slow answer must not keep it out for long.
                    return Ok(if agrees { next } else { next.min(LOOK_AGAIN) });
                }
            }
        }
        Err(keeps_changing())
    }

    async fn ask(&self, connection: &SupervisedConnection) -> Result<(Option<String>, u64, Offset)> {
        let clock = &self.circle.clock;
        let sent = micros(clock.now());
        let answers = connection.send_all(&questions()).await?;
        let now = clock.now();
        let received = micros(now);
        let (text, now_us) = read_answers(answers)?;
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        Ok((text, now_us, Offset::read(now_us, sent, received)))
    }

    /// What the node's standing in this life of this run means for this client; when to look again.
    fn conclude(&self, standing: Standing, life: &str, run_id: &str) -> Duration {
        let (now, delay) = (self.circle.clock.now(), self.circle.deployment.delay);
        let mut known = self.known();
        if known.run_id != run_id {
            // Another connection has met another run meanwhile.
            known.place = Place::Unseen;
            return Duration::from_millis(1);
        }
        let (place, next) = match standing {
            Standing::Open(marker) => match known.acquaintance.meet(life, now, delay) {
                Duration::ZERO => {
                    let marker = marker.to_string().into();
                    (Place::Votes(Ballot { marker, life: life.into() }), READ_CLOCK)
                }
                rest => (Place::Young(now.after(rest)), rest),
            },
            Standing::Young(rest) => {
                let rest = rest.max(known.acquaintance.meet(life, now, delay));
                (Place::Young(now.after(rest)), rest)
            }
            Standing::OfAnotherSet(marker) => {
                let error = other_set(&marker, self.circle.deployment);
                (Place::Out(error), READ_CLOCK)
            }
            Standing::Foreign => {
                let what = format!("{} holds the text of another program", marker::KEY);
                (Place::Out(Error::new(ErrorKind::Foreign, what).retryable(false)), READ_CLOCK)
            }
            Standing::Write(_) => (Place::Unseen, LOOK_AGAIN),
        };
        known.place = place;
        next.clamp(Duration::from_millis(1), READ_CLOCK)
    }
}

#[async_trait]
impl PushHandler for Sight {
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
                known.place = Place::Unseen;
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
        self.disown(connection, run_id).await?;
        self.look.notify_one();
        Ok(())
    }

    fn on_message(&self, message: &[u8]) {
        self.circle.waiters.told(self.index, message);
    }

    fn on_invalidate(&self, _key: &Value) {}

    /// Another node tells the same; what none tells is found by the next look.
    fn on_gap(&self) {}
}

fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}

/// Asks for the marker and the clock.
fn questions() -> Pipeline {
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("GET").arg(marker::KEY).cmd("TIME");
    questions
}

/// The marker's text, if there is one, and the node's clock, in µs.
pub(super) async fn marker_and_clock(
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
        // What is no UTF-8 is no marker either.
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
pub(crate) fn write_command(old: Option<&str>, new: &Marker) -> Cmd {
    const SWAP: &str = "-- Changes the marker only if it is still the one that was seen.
        if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
        -- A birth that was seen long ago, by one who stood still since, is not now.
        if ARGV[3] ~= '' and redis.call('TIME')[1] - ARGV[3] > 1 then return 0 end
        redis.call('SET', KEYS[1], ARGV[2])
        return 1";
    let born = match new.state {
        marker::State::Born => (new.born_us / 1_000_000).to_string(),
        marker::State::Open | marker::State::Closed => String::new(),
    };
    let mut swap = redis::cmd("EVAL");
    swap.arg(SWAP).arg(1).arg(marker::KEY).arg(old.unwrap_or_default()).arg(new.to_string());
    swap.arg(born);
    swap
}

async fn write(connection: &SupervisedConnection, old: Option<&str>, new: &Marker) -> Result<()> {
    let answer = connection.send(&write_command(old, new)).await?;
    answer.map(drop).map_err(|error| explain(&error))
}

pub(super) fn keeps_changing() -> Error {
    Error::new(ErrorKind::Unreachable, "its marker keeps changing")
}

pub(super) fn young(rest: Duration) -> Error {
    // Whole seconds, and not one too few.
    let seconds = rest.as_millis().div_ceil(1000);
    let message = format!(
        "it has lost its data or is new, and takes part in {seconds} s; nodes that never held a \
         lock are declared new by `fencelock redlock init`"
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// What to say of a node that other clients use otherwise.
pub(crate) fn other_set(marker: &Marker, ours: Deployment) -> Error {
    let Deployment { nodes, epoch, delay } = marker.deployment;
    let theirs =
        format!("{nodes} nodes, set_epoch={epoch}, restart_delay={}s", delay.as_secs_f64());
    let message = match marker.state {
        marker::State::Closed => format!("its set of nodes was changed: it is closed ({theirs})"),
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
