//! One of the nodes: its connection, whether it may vote, and its clock.
//!
//! A task of its own looks after each: it reads the marker and the clock when a connection is new,
//! now and then, and when somebody doubts the node. Nobody who wants a lock waits for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{BootClock, Clock, Error, ErrorKind, Moment, Result};
use futures_util::{StreamExt, stream};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::clocks::{Agreement, Offset, agreement};
use super::marker::{self, Acquaintance, Deployment, Marker, Standing, standing};
use super::waiters::Waiters;
use crate::backend::AT_ONCE;
use crate::batch::Batches;
use crate::checkup::Checkup;
use crate::error::{explain, strange_answer};
use crate::identity::{Keys, Process};
use crate::link::{Audience, Ear, Link};
use crate::node::{Node, Step};
use crate::route::{Caller, Host, Route};
use crate::script::QUORUM;

/// How often a node's clock is read.
const READ_CLOCK: Duration = Duration::from_secs(30);
/// How soon after a look that failed another follows, and after a doubt at the earliest.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Writes of one look: others may write at the same time.
const WRITES: usize = 5;

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: Host,
    pub(crate) batches: Arc<Batches>,
    sight: Arc<Sight>,
    minder: AbortHandle,
}

/// What is known of all nodes, and must be the same for all of them.
#[derive(Debug)]
pub(crate) struct Circle {
    pub(crate) deployment: Deployment,
    /// How far two clocks may be apart.
    pub(crate) tolerance: Duration,
    pub(crate) clock: Arc<BootClock>,
    pub(crate) waiters: Waiters,
    clocks: Mutex<Clocks>,
    /// Counts what has become known, for those who wait at connect.
    pub(crate) news: watch::Sender<u64>,
}

#[derive(Debug)]
struct Clocks {
    offsets: Vec<Option<Offset>>,
    agreement: Option<Arc<Agreement>>,
}

impl Circle {
    pub(crate) fn new(
        deployment: Deployment,
        tolerance: Duration,
        clock: Arc<BootClock>,
    ) -> Circle {
        let clocks = Clocks { offsets: vec![None; deployment.nodes], agreement: None };
        Circle {
            deployment,
            tolerance,
            clock,
            waiters: Waiters::at(deployment.nodes),
            clocks: Mutex::new(clocks),
            news: watch::Sender::new(0),
        }
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, node: usize, offset: Option<Offset>) {
        let tolerance = u64::try_from(self.tolerance.as_micros()).unwrap_or(u64::MAX);
        let mut clocks = self.clocks();
        clocks.offsets[node] = offset;
        clocks.agreement = agreement(&clocks.offsets, tolerance).map(Arc::new);
    }

    /// The nodes whose clocks agree; if a majority's do not, how far each is ahead of ours, in µs.
    pub(crate) fn agreement(&self) -> Result<Arc<Agreement>, Vec<Option<Offset>>> {
        let clocks = self.clocks();
        clocks.agreement.clone().ok_or_else(|| clocks.offsets.clone())
    }

    fn tell_news(&self) {
        self.news.send_modify(|count| *count += 1);
    }
}

/// What is known of one node.
#[derive(Debug)]
struct Sight {
    index: usize,
    name: String,
    circle: Arc<Circle>,
    known: Mutex<Known>,
    look: Notify,
    debts: Mutex<Vec<Debt>>,
    /// When it last answered, in ns on the store's clock.
    heard: AtomicU64,
}

#[derive(Debug)]
struct Known {
    place: Place,
    /// Of the present connection, or of the last one.
    run_id: String,
    client_id: Option<i64>,
    acquaintance: Acquaintance,
}

/// What was asked for at a node, and is to be taken back when it can be reached again.
#[derive(Debug)]
pub(crate) struct Debt {
    pub(crate) keys: Keys,
    pub(crate) identity: Arc<str>,
    pub(crate) waiter: Arc<str>,
    /// When it ends by itself.
    pub(crate) ends: Moment,
}

/// Whether a node may be asked for votes.
#[derive(Clone, Debug)]
enum Place {
    /// Its marker has not been read, or has changed since.
    Unseen,
    Votes(Ballot),
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

impl Member {
    /// Begins to connect to node `index`.
    pub(crate) fn start(
        index: usize,
        host: Host,
        caller: &Arc<Caller>,
        process: Process,
        circle: Arc<Circle>,
    ) -> Member {
        let known = Known {
            place: Place::Unseen,
            run_id: String::new(),
            client_id: None,
            acquaintance: Acquaintance::default(),
        };
        let sight = Arc::new(Sight {
            index,
            name: host.to_string(),
            circle,
            known: Mutex::new(known),
            look: Notify::new(),
            debts: Mutex::default(),
            heard: AtomicU64::new(0),
        });
        let audience = Audience { channel: Some(process), ear: Some(sight.clone()) };
        let node = Node::start_one_of_many(Route::To(host.clone()), caller.clone(), audience);
        let batches = Batches::new(node, caller.runtime.clone(), &QUORUM.batch);
        let minding = mind(sight.clone(), batches.clone());
        let minder = caller.runtime.spawn(minding).abort_handle();
        Member { host, batches, sight, minder }
    }

    pub(crate) fn link(&self) -> &Link {
        self.batches.node().link()
    }

    /// What to ask it for a vote with; an error says why it is not asked.
    pub(crate) fn ballot(&self) -> Result<Ballot> {
        self.link().state()?;
        match &self.sight.known().place {
            Place::Unseen => Err(Error::new(ErrorKind::Unreachable, "its marker is not known yet")),
            Place::Votes(ballot) => Ok(ballot.clone()),
            Place::Out(error) => Err(error.clone()),
        }
    }

    /// Why it never takes part as things are: it is of another set of nodes.
    pub(crate) fn never(&self) -> Option<Error> {
        match &self.sight.known().place {
            Place::Out(error) if !error.is_retryable() => Some(error.clone()),
            _ => None,
        }
    }

    /// Whether it is about to say if it may vote.
    pub(crate) fn is_being_met(&self) -> bool {
        match self.link().state() {
            Ok(()) => matches!(self.sight.known().place, Place::Unseen),
            Err(_) => self.link().is_starting(),
        }
    }

    /// It answered.
    pub(crate) fn heard(&self, now: Moment) {
        self.sight.heard.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Others have answered, and it has not: has it fallen silent?
    pub(crate) fn doubt(&self, now: Moment) {
        let heard = Moment::from_nanos(self.sight.heard.load(Ordering::Relaxed));
        if now.since(heard) > LOOK_AGAIN {
            // Not again for each of a crowd.
            self.heard(now);
            self.sight.look.notify_one();
        }
    }

    /// It says that it is not the node that was known: it has lost its data, or was replaced.
    pub(crate) fn is_not_known(&self) {
        self.sight.known().place = Place::Unseen;
        self.sight.look.notify_one();
    }

    /// Takes over what is to be freed there once there is a connection again.
    pub(crate) fn owe(&self, debt: Debt) {
        self.sight.debts().push(debt);
        // It may have come back meanwhile.
        self.sight.look.notify_one();
    }

    pub(crate) fn close(&self) {
        self.minder.abort();
        self.batches.node().close();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// Looks at a node again and again.
async fn mind(sight: Arc<Sight>, batches: Arc<Batches>) {
    let link = batches.node().link();
    loop {
        if link.started().await.is_err() {
            sight.circle.tell_news();
            if link.up().await.is_err() {
                return;
            }
        }
        sight.pay(&batches).await;
        let next = match sight.look(link).await {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(%error, "a node could not be looked at");
                LOOK_AGAIN
            }
        };
        sight.circle.tell_news();
        // Woken by a new connection, or by doubts.
        let _ = tokio::time::timeout(next, sight.look.notified()).await;
    }
}

impl Sight {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn debts(&self) -> MutexGuard<'_, Vec<Debt>> {
        self.debts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what could not be freed when it was time to.
    async fn pay(&self, batches: &Arc<Batches>) {
        let debts = std::mem::take(&mut *self.debts());
        let paying = stream::iter(debts).map(async |debt| {
            if self.circle.clock.now() < debt.ends
                && let Debt { keys, identity, waiter, .. } = &debt
                && free(batches, keys, identity, waiter, By::Itself).await.is_err()
            {
                self.debts().push(debt);
            }
        });
        paying.buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// Reads marker and clock, writes what is to be written; when to look again.
    async fn look(&self, link: &Link) -> Result<Duration> {
        link.state()?;
        for _ in 0..WRITES {
            let (text, now_us, offset) = self.ask(link).await?;
            let run_id = self.known().run_id.clone();
            let deployment = self.circle.deployment;
            match standing(text.as_deref(), &run_id, now_us, deployment) {
                Standing::Write(marker) => write(link, text.as_deref(), &marker).await?,
                standing => {
                    self.circle.read(self.index, Some(offset));
                    return Ok(self.conclude(standing));
                }
            }
        }
        Err(Error::new(ErrorKind::Unreachable, "its marker keeps changing"))
    }

    async fn ask(&self, link: &Link) -> Result<(Option<String>, u64, Offset)> {
        let clock = &self.circle.clock;
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("GET").arg(marker::KEY).cmd("TIME");
        let sent = micros(clock.now());
        let answers = link.send_all(&questions).await?;
        let now = clock.now();
        let received = micros(now);
        let answers = answers.into_iter().map(Value::extract_error);
        let answers: Result<Vec<Value>, _> = answers.collect();
        let answers = answers.map_err(|error| explain(&error))?;
        let (text, now_us) = read_look(&answers).ok_or_else(|| strange_answer("GET and TIME"))?;
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        Ok((text, now_us, Offset::read(now_us, sent, received)))
    }

    /// What the node's standing means for this client; when to look again.
    fn conclude(&self, standing: Standing) -> Duration {
        let mut known = self.known();
        let delay = self.circle.deployment.delay;
        let (place, next) = match standing {
            Standing::Open(marker) => {
                let life = marker.life();
                let rest = known.acquaintance.meet(&life, self.circle.clock.now(), delay);
                match rest {
                    Duration::ZERO => {
                        let marker = marker.to_string().into();
                        (Place::Votes(Ballot { marker, life: life.into() }), READ_CLOCK)
                    }
                    rest => (Place::Out(young(rest)), rest),
                }
            }
            Standing::Young(rest) => (Place::Out(young(rest)), rest),
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
impl Ear for Sight {
    async fn meet(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("INFO").cmd("CLIENT").arg("ID");
        let answers = questions.query_async::<(Value, Value)>(connection).await;
        let (info, client_id) = answers.map_err(|error| explain(&error))?;
        let checkup = Checkup::read(&info);
        checkup.require(false)?;
        checkup.warn_of_eviction(&self.name);
        let mut scripts = Pipeline::new();
        for script in QUORUM.all() {
            scripts.cmd("SCRIPT").arg("LOAD").arg(&script.text).ignore();
        }
        scripts.query_async::<()>(connection).await.map_err(|error| explain(&error))?;
        let run_id = checkup.run_id().ok_or_else(|| {
            let message = "the server does not tell its run_id; its ACL must allow INFO";
            Error::new(ErrorKind::Refused, message)
        })?;
        let predecessor = {
            let mut known = self.known();
            let is_the_same = known.run_id == run_id;
            if !is_the_same {
                known.place = Place::Unseen;
                run_id.clone_into(&mut known.run_id);
            }
            let client_id = match client_id {
                Value::Int(id) => Some(id),
                _ => None,
            };
            std::mem::replace(&mut known.client_id, client_id).filter(|_| is_the_same)
        };
        if let Some(predecessor) = predecessor {
            // What it sent may lie in a server that stands still, and would be done after the
            // release that comes over this one.
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(predecessor);
            if let Err(error) = kill.query_async::<Value>(connection).await {
                tracing::debug!(%error, "the old connection could not be ended");
            }
        }
        self.look.notify_one();
        Ok(())
    }

    fn told(&self, message: &[u8]) {
        self.circle.waiters.told(self.index, message);
    }

    fn changed(&self, _key: &Value) {}

    /// Another node tells the same; what none tells is found by the next look.
    fn missed(&self) {}
}

/// By whose will a round is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Itself,
    /// A person's; its claim is told.
    Order,
}

/// Takes a round, and its waiter, out of a node; whether it was there.
pub(crate) async fn free(
    batches: &Arc<Batches>,
    keys: &Keys,
    identity: &str,
    waiter: &str,
    by: By,
) -> Result<bool> {
    let values = [identity, waiter, "", "tell"];
    let values = match by {
        By::Itself => &values[..3],
        By::Order => &values[..],
    };
    let step = Step { script: &QUORUM.free, keys: &keys.all(), values };
    Ok(batches.step(step).await? == Value::Int(1))
}

fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}

pub(crate) fn read_look(answers: &[Value]) -> Option<(Option<String>, u64)> {
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
        redis.call('SET', KEYS[1], ARGV[2])
        return 1";
    let mut swap = redis::cmd("EVAL");
    swap.arg(SWAP).arg(1).arg(marker::KEY).arg(old.unwrap_or_default()).arg(new.to_string());
    swap
}

async fn write(link: &Link, old: Option<&str>, new: &Marker) -> Result<()> {
    let answer = link.send(&write_command(old, new)).await?;
    answer.map(drop).map_err(|error| explain(&error))
}

fn young(rest: Duration) -> Error {
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
