//! Steps of many callers in one call to a server, by `scripts/batch.lua`.

use std::sync::Arc;

use fencelock_core::crowd::{Carrier, Crowd, Leaving, Limits, Way};
use fencelock_core::{Error, Result};
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{closed, explain};
use crate::node::{By, Node, Step};
use crate::script::Script;

const LIMITS: Limits = Limits { alone: 16, calls: 2, most: 64 };

/// One server, and the calls to it.
#[derive(Debug)]
pub(crate) struct Batches {
    node: Node,
    runtime: Handle,
    /// Does many steps in one call.
    script: &'static Script,
    crowd: Crowd<Waiting>,
}

impl Carrier for Batches {
    type Step = Waiting;

    fn crowd(&self) -> &Crowd<Waiting> {
        &self.crowd
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn carry(self: Arc<Self>, steps: Vec<Waiting>, leaving: Leaving<Self>) {
        let link = self.node.link();
        let mut steps = wanted(steps);
        let mut answer = link.send_batch(&command(self.script, &steps, By::Digest), leaving).await;
        if matches!(&answer, Ok(Err(error)) if self.node.wants_text(error)) {
            let leaving = self.leaving();
            steps = wanted(steps);
            answer = link.send_batch(&command(self.script, &steps, By::Text), leaving).await;
        }
        match answer {
            Ok(Ok(answers)) => {
                for (step, answer) in steps.into_iter().zip(answers) {
                    step.tell(answer.extract_error().map_err(|error| explain(&error)));
                }
            }
            Ok(Err(error)) => match explain(&error) {
                error if error.is_retryable() => tell_all(steps, &error),
                // What an ACL denies to one must not be denied to the others.
                _ => self.one_by_one(steps).await,
            },
            Err(error) => {
                tell_all(steps, &error);
                // They have waited for the same.
                tell_all(self.crowd.take_waiting(), &error);
            }
        }
    }
}

impl Batches {
    pub(crate) fn new(node: Node, runtime: Handle, script: &'static Script) -> Arc<Batches> {
        Arc::new(Batches { node, runtime, script, crowd: Crowd::new(LIMITS) })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Does one step. Dropped half-way, it may or may not be done, but not later than what is asked
    /// for behind it.
    pub(crate) async fn step(self: &Arc<Self>, step: Step<'_>) -> Result<Value> {
        let waiting = || {
            let (answer, answered) = oneshot::channel();
            (Waiting::new(step, answer), answered)
        };
        match self.enter(waiting) {
            // In a box, so that those who wait in a crowd stay small.
            Way::Alone(_place) => {
                Box::pin(self.node.step(step)).await?.map_err(|error| explain(&error))
            }
            // Only the end of the runtime drops an answer.
            Way::Together(answer) => answer.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    async fn one_by_one(self: &Arc<Self>, steps: Vec<Waiting>) {
        let _leaving = self.leaving();
        let mut steps = wanted(steps).into_iter();
        while let Some(waiting) = steps.next() {
            let words = waiting.words();
            let (keys, values) = words.split_at(waiting.keys);
            match self.node.step(Step { script: waiting.script, keys, values }).await {
                Ok(answer) => waiting.tell(answer.map_err(|error| explain(&error))),
                // The connection is gone, or silent: the others need not find that out in turn.
                Err(error) => {
                    waiting.tell(Err(error.clone()));
                    return tell_all(steps.collect(), &error);
                }
            }
        }
    }
}

/// A step that waits for a place, or for its answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    script: &'static Script,
    keys: usize,
    /// The keys and the values, one behind the other.
    text: String,
    ends: Vec<usize>,
    answer: oneshot::Sender<Result<Value>>,
}

impl Waiting {
    fn new(step: Step<'_>, answer: oneshot::Sender<Result<Value>>) -> Waiting {
        let words = || step.keys.iter().chain(step.values);
        let mut text = String::with_capacity(words().map(|word| word.len()).sum());
        let ends = words().map(|word| {
            text.push_str(word);
            text.len()
        });
        let ends = ends.collect();
        Waiting { script: step.script, keys: step.keys.len(), text, ends, answer }
    }

    fn words(&self) -> Vec<&str> {
        let mut start = 0;
        let word = |end: &usize| &self.text[std::mem::replace(&mut start, *end)..*end];
        self.ends.iter().map(word).collect()
    }

    fn tell(self, answer: Result<Value>) {
        // Nobody listens any more: its claim's release follows.
        let _ = self.answer.send(answer);
    }
}

/// Those that somebody still waits for: the others need not be asked.
fn wanted(mut steps: Vec<Waiting>) -> Vec<Waiting> {
    steps.retain(|step| !step.answer.is_closed());
    steps
}

fn tell_all(steps: Vec<Waiting>, error: &Error) {
    steps.into_iter().for_each(|step| step.tell(Err(error.clone())));
}

/// As `scripts/batch.lua` takes it.
fn command(script: &'static Script, steps: &[Waiting], by: By) -> Cmd {
    let counts = |step: &Waiting| format!("{}{}", step.keys, step.ends.len() - step.keys);
    let counts: Vec<String> = steps.iter().map(counts).collect();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (step, counts) in steps.iter().zip(&counts) {
        let words = step.words();
        let (its_keys, its_values) = words.split_at(step.keys);
        keys.extend_from_slice(its_keys);
        values.extend([step.script.name, counts.as_str()]);
        values.extend_from_slice(its_values);
    }
    Step { script, keys: &keys, values: &values }.command(by)
}
