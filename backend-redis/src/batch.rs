//! Steps of many callers in one call to a server, by `scripts/batch.lua`.

use std::sync::Arc;

use fencelock_core::batching::{BatchTransport, Batcher, Dispatch, Limits, SendOrderGuard};
use fencelock_core::{Error, Result};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::protocol::error::{closed, code_of, explain, protocol_error};
use crate::protocol::script::Script;
use crate::server::node::{By, Node, ScriptCall, command};
use crate::server::sharing::Sharing;

const LIMITS: Limits = Limits { direct: 16, calls: 2, per_call: 64 };

/// One server, and the calls to it.
#[derive(Debug)]
pub(crate) struct BatchingNode {
    node: Node,
    runtime: Handle,
    /// Does many steps in one call.
    script: &'static Script,
    batcher: Batcher<Waiting>,
    sharing: Sharing,
}

impl BatchTransport for BatchingNode {
    type Request = Waiting;

    fn batcher(&self) -> &Batcher<Waiting> {
        &self.batcher
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn send(self: Arc<Self>, steps: Vec<Waiting>, leaving: SendOrderGuard<Self>) {
        let (shared, apart) = self.sharing.split(steps, Waiting::lock, Instant::now());
        let mut calls = vec![Call { steps: shared, by: EvalBy::Digest }];
        calls.extend(apart.into_iter().map(Call::alone));
        let mut leaving = Some(leaving);
        loop {
            let leaving = leaving.take().unwrap_or_else(|| self.hold_order());
            calls.retain_mut(Call::is_wanted);
            if calls.is_empty() {
                return;
            }
            let commands = self.commands(&calls);
            match self.node.connection().send_all_leaving(&commands, leaving).await {
                Ok(answers) => {
                    let answered = calls.into_iter().zip(answers);
                    calls = answered.flat_map(|(call, answer)| self.settle(call, answer)).collect();
                }
                Err(error) => {
                    calls.into_iter().for_each(|call| tell_all(call.steps, &error));
                    // They have waited for the same.
                    tell_all(self.batcher.take_waiting(), &error);
                    return;
                }
            }
        }
    }
}

impl BatchingNode {
    pub(crate) fn new(node: Node, runtime: Handle, script: &'static Script) -> Arc<BatchingNode> {
        Arc::new(BatchingNode {
            node,
            runtime,
            script,
            batcher: Batcher::new(LIMITS),
            sharing: Sharing::new(),
        })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Does one step. Dropped half-way, it may or may not be done, but not later than what is asked
    /// for behind it.
    pub(crate) async fn step(self: &Arc<Self>, step: ScriptCall<'_>) -> Result<Value> {
        let waiting = || {
            let (answer, answered) = oneshot::channel();
            (Waiting::new(step, answer), answered)
        };
        match self.dispatch(waiting) {
            // In a box, so that those who wait in a crowd stay small.
            Dispatch::Direct(_permit) => {
                Box::pin(self.node.call(step)).await?.map_err(|error| explain(&error))
            }
            // Only the end of the runtime drops an answer.
            Dispatch::Batched(answer) => answer.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    /// All on the connection at once: nobody waits for another one's round trip.
    fn commands(&self, calls: &[Call]) -> Pipeline {
        let mut commands = Pipeline::with_capacity(calls.len());
        for call in calls {
            commands.add_command(match call.steps.as_slice() {
                [step] => command(step.script, call.by, step.keys, step.words()),
                steps => shared_command(self.script, steps, call.by),
            });
        }
        commands
    }

    /// Tells the steps of a call its answer; what has to be sent again.
    fn settle(&self, mut call: Call, answer: Value) -> Vec<Call> {
        let error = match answer {
            Value::ServerError(error) => RedisError::from(error),
            answer => {
                self.tell_answers(call.steps, answer);
                return Vec::new();
            }
        };
        if matches!(call.by, EvalBy::Digest) && self.node.wants_text(&error) {
            call.by = EvalBy::Text;
            return vec![call];
        }
        let explained = explain(&error);
        if call.steps.len() > 1 && !explained.is_retryable() {
            // What is denied to one must not be denied to the others.
            self.sharing.call_refused(Instant::now());
            if code_of(&error) == "CROSSSLOT" {
                self.sharing.slots_differ();
            }
            return call.steps.into_iter().map(Call::alone).collect();
        }
        if let ([step], "NOPERM") = (call.steps.as_slice(), code_of(&error)) {
            self.sharing.denied(step.lock(), Instant::now());
        }
        tell_all(call.steps, &explained);
        Vec::new()
    }

    fn tell_answers(&self, steps: Vec<Waiting>, answer: Value) {
        match answer {
            answer if steps.len() == 1 => {
                for step in steps {
                    self.sharing.allowed(step.lock());
                    step.tell(Ok(answer.clone()));
                }
            }
            Value::Array(answers) if answers.len() == steps.len() => {
                for (step, answer) in steps.into_iter().zip(answers) {
                    step.tell(answer.extract_error().map_err(|error| explain(&error)));
                }
            }
            // Nobody knows whose answers they are.
            _ => {
                self.node.connection().mark_broken("it gave an unexpected reply");
                tell_all(steps, &protocol_error("a batch"));
            }
        }
    }
}

/// Steps that go in one call.
struct Call {
    steps: Vec<Waiting>,
    by: By,
}

impl Call {
    fn alone(step: Waiting) -> Call {
        Call { steps: vec![step], by: EvalBy::Digest }
    }

    /// Whether somebody still waits for it. The steps that nobody waits for need not be asked.
    fn is_wanted(&mut self) -> bool {
        self.steps.retain(|step| !step.answer.is_closed());
        !self.steps.is_empty()
    }
}

/// A step that waits for a place, or for its answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    script: &'static Script,
    keys: usize,
    /// The keys and the values, one behind the other.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    answer: oneshot::Sender<Result<Value>>,
}

impl Waiting {
    fn new(step: ScriptCall<'_>, answer: oneshot::Sender<Result<Value>>) -> Waiting {
        let mut bytes = Vec::with_capacity(step.words().map(<[u8]>::len).sum());
        let ends = step.words().map(|word| {
            bytes.extend_from_slice(word);
            bytes.len()
        });
        let ends = ends.collect();
        Waiting { script: step.script, keys: step.keys.len(), bytes, ends, answer }
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// The lock's key.
    fn lock(&self) -> &[u8] {
        &self.bytes[..self.ends[0]]
    }

    fn tell(self, answer: Result<Value>) {
        // Nobody listens any more: its claim's release follows.
        let _ = self.answer.send(answer);
    }
}

fn tell_all(steps: Vec<Waiting>, error: &Error) {
    steps.into_iter().for_each(|step| step.tell(Err(error.clone())));
}

/// As `scripts/batch.lua` takes it.
fn shared_command(script: &'static Script, steps: &[Waiting], by: By) -> Cmd {
    let counts = |step: &Waiting| format!("{}{}", step.keys, step.ends.len() - step.keys);
    let counts: Vec<String> = steps.iter().map(counts).collect();
    let keys = steps.iter().map(|step| step.keys).sum();
    let all_keys = steps.iter().flat_map(|step| step.words().take(step.keys));
    let values = steps.iter().zip(&counts).flat_map(|(step, counts)| {
        let head = [step.script.name.as_bytes(), counts.as_bytes()];
        head.into_iter().chain(step.words().skip(step.keys))
    });
    command(script, by, keys, all_keys.chain(values))
}
