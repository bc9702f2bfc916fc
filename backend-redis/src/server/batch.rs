//! Sends script calls of many tasks in one request to a server, by `protocol/lua/batch.lua`.

use std::fmt::Debug;
use std::sync::Arc;

use fencelock_core::batching::{
    BatchTransport, Batcher, Dispatch, Limits, Priority, SendOrderGuard,
};
use fencelock_core::{Error, Result};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::node::Node;
use super::sharing::Sharing;
use crate::protocol::call::{EvalBy, ScriptCall, command};
use crate::protocol::error::{closed, code_of, explain, protocol_error};
use crate::protocol::script::{SCRIPTS, Script};

const LIMITS: Limits = Limits { direct: 16, calls: 2, per_call: 64 };

/// Redeemed when a call is about to be written: until then its caller may take it back.
pub(crate) trait Ticket: Debug + Send + Sync {
    /// Whether it may be written. A yes stays one.
    fn redeem(&self) -> bool;
}

/// One server; concurrent calls to it share requests.
#[derive(Debug)]
pub(crate) struct BatchingNode {
    node: Arc<Node>,
    runtime: Handle,
    /// The script that executes many calls.
    script: &'static Script,
    batcher: Batcher<PendingCall>,
    sharing: Sharing,
}

impl BatchTransport for BatchingNode {
    type Request = PendingCall;

    fn batcher(&self) -> &Batcher<PendingCall> {
        &self.batcher
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn send(self: Arc<Self>, calls: Vec<PendingCall>, leaving: SendOrderGuard<Self>) {
        let (shared, separate) = self.sharing.split(calls, PendingCall::lock, Instant::now());
        let mut batches = vec![Batch { calls: shared, by: EvalBy::Digest }];
        batches.extend(separate.into_iter().map(Batch::alone));
        let mut leaving = Some(leaving);
        loop {
            let leaving = leaving.take().unwrap_or_else(|| self.hold_order());
            batches.retain_mut(|batch| self.is_wanted(batch));
            if batches.is_empty() {
                return;
            }
            let commands = self.commands(&batches);
            match self.node.connection().send_all_leaving(&commands, leaving).await {
                Ok(answers) => {
                    let answered = batches.into_iter().zip(answers);
                    batches =
                        answered.flat_map(|(batch, answer)| self.settle(batch, answer)).collect();
                }
                Err(error) => {
                    batches.into_iter().for_each(|batch| fail_all(batch.calls, &error));
                    // They have waited for the same connection.
                    fail_all(self.batcher.take_waiting(), &error);
                    return;
                }
            }
        }
    }
}

impl BatchingNode {
    pub(crate) fn new(node: Node, runtime: Handle, script: &'static Script) -> Arc<BatchingNode> {
        let (batcher, sharing) = (Batcher::new(LIMITS), Sharing::new());
        Arc::new(BatchingNode { node: Arc::new(node), runtime, script, batcher, sharing })
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Executes one call, unless its ticket is refused. If it is dropped half-way, the call may or may not be executed,
    /// but never after a later one.
    pub(crate) async fn call(
        self: &Arc<Self>,
        call: ScriptCall<'_>,
        priority: Priority,
        mut ticket: Option<Arc<dyn Ticket>>,
    ) -> Result<Value> {
        let waiting = || {
            let (answer, answered) = oneshot::channel();
            (PendingCall::new(call, ticket.take(), answer), answered)
        };
        match self.dispatch(priority, waiting) {
            Dispatch::Direct(_) if ticket.as_ref().is_some_and(|it| !it.redeem()) => Err(closed()),
            // Boxed, so that the futures of batched calls stay small.
            Dispatch::Direct(_permit) => Box::pin(self.node.call(call)).await?.map_err(explain),
            // Dropped only with a refused ticket, and by the end of the runtime.
            Dispatch::Batched(answer) => answer.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    /// Removes calls that were cancelled; whether any is left.
    fn is_wanted(&self, batch: &mut Batch) -> bool {
        let is_closing = self.batcher.has_stopped_attempts();
        batch.calls.retain(|call| {
            let is_over = is_closing && std::ptr::eq(call.script, &SCRIPTS.attempt);
            let is_valid = || call.ticket.as_ref().is_none_or(|ticket| ticket.redeem());
            !is_over && !call.answer.is_closed() && is_valid()
        });
        !batch.calls.is_empty()
    }

    /// The commands of all batches, written at once: none waits for another one's round trip.
    fn commands(&self, batches: &[Batch]) -> Pipeline {
        let mut commands = Pipeline::with_capacity(batches.len());
        for batch in batches {
            commands.add_command(match batch.calls.as_slice() {
                [call] => command(call.script, batch.by, call.keys, call.words()),
                calls => shared_command(self.script, calls, batch.by),
            });
        }
        commands
    }

    /// Delivers a reply to the calls of its batch; returns what has to be sent again.
    fn settle(&self, mut batch: Batch, answer: Value) -> Vec<Batch> {
        let Value::ServerError(error) = answer else {
            self.deliver_replies(batch.calls, answer);
            return Vec::new();
        };
        let error = RedisError::from(error);
        if matches!(batch.by, EvalBy::Digest) && self.node.wants_text(&error) {
            batch.by = EvalBy::Text;
            return vec![batch];
        }
        let explained = explain(&error);
        if batch.calls.len() > 1 && !explained.is_retryable() {
            // A refusal that is due to one call must not fail the others.
            self.sharing.request_refused(Instant::now());
            if code_of(&error) == "CROSSSLOT" {
                self.sharing.slots_differ();
            }
            return batch.calls.into_iter().map(Batch::alone).collect();
        }
        if let ([call], "NOPERM") = (batch.calls.as_slice(), code_of(&error)) {
            self.sharing.denied(call.lock(), Instant::now());
        }
        fail_all(batch.calls, &explained);
        Vec::new()
    }

    fn deliver_replies(&self, calls: Vec<PendingCall>, answer: Value) {
        let answers = match answer {
            answer if calls.len() == 1 => vec![answer],
            Value::Array(answers) if answers.len() == calls.len() => answers,
            // The replies cannot be attributed to the calls.
            _ => {
                self.node.connection().mark_broken("it gave an unexpected reply");
                return fail_all(calls, &protocol_error("a batch"));
            }
        };
        if let [call] = calls.as_slice() {
            self.sharing.allowed(call.lock());
        }
        for (call, answer) in calls.into_iter().zip(answers) {
            call.deliver(answer.extract_error().map_err(explain));
        }
    }
}

/// Calls that go in one request.
struct Batch {
    calls: Vec<PendingCall>,
    by: EvalBy,
}

impl Batch {
    fn alone(call: PendingCall) -> Batch {
        Batch { calls: vec![call], by: EvalBy::Digest }
    }
}

/// A call that waits to be sent, or for its reply.
#[derive(Debug)]
pub(crate) struct PendingCall {
    script: &'static Script,
    keys: usize,
    /// The keys and the values, concatenated.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    ticket: Option<Arc<dyn Ticket>>,
    answer: oneshot::Sender<Result<Value>>,
}

impl PendingCall {
    fn new(
        call: ScriptCall<'_>,
        ticket: Option<Arc<dyn Ticket>>,
        answer: oneshot::Sender<Result<Value>>,
    ) -> PendingCall {
        let mut bytes = Vec::with_capacity(call.words().map(<[u8]>::len).sum());
        let append = |word| {
            bytes.extend_from_slice(word);
            bytes.len()
        };
        let ends = call.words().map(append).collect();
        PendingCall { script: call.script, keys: call.keys.len(), bytes, ends, ticket, answer }
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// The lock's key.
    fn lock(&self) -> &[u8] {
        &self.bytes[..self.ends[0]]
    }

    fn deliver(self, answer: Result<Value>) {
        // An error means that the call was cancelled: its claim's release follows.
        let _ = self.answer.send(answer);
    }
}

fn fail_all(calls: Vec<PendingCall>, error: &Error) {
    calls.into_iter().for_each(|call| call.deliver(Err(error.clone())));
}

/// The arguments of `protocol/lua/batch.lua`.
fn shared_command(script: &'static Script, calls: &[PendingCall], by: EvalBy) -> Cmd {
    let counts = |call: &PendingCall| format!("{}{}", call.keys, call.ends.len() - call.keys);
    let counts: Vec<String> = calls.iter().map(counts).collect();
    let keys = calls.iter().map(|call| call.keys).sum();
    let all_keys = calls.iter().flat_map(|call| call.words().take(call.keys));
    let values = calls.iter().zip(&counts).flat_map(|(call, counts)| {
        let head = [call.script.name.as_bytes(), counts.as_bytes()];
        head.into_iter().chain(call.words().skip(call.keys))
    });
    command(script, by, keys, all_keys.chain(values))
}
