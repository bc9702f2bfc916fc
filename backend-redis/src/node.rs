//! One server and the steps that are asked of it.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::connection::{ConnectOptions, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::error::explain;
use crate::protocol::script::Script;
use crate::server::wait_replicas::Replicas;

/// One step: a script, its keys and its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'static Script,
    /// In one slot. The first one is the lock's.
    pub(crate) keys: &'a [&'a str],
    pub(crate) values: &'a [&'a [u8]],
}

impl ScriptCall<'_> {
    /// As a command: by digest, or with the text for a server that does not know the digest.
    pub(crate) fn command(&self, by: By) -> Cmd {
        command(self.script, by, self.keys.len(), self.words())
    }

    /// The keys and the values.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.keys.iter().map(|key| key.as_bytes()).chain(self.values.iter().copied())
    }
}

/// A call of `script`, the first `keys` of `words` being keys.
pub(crate) fn command<'a>(
    script: &Script,
    by: By,
    keys: usize,
    words: impl Iterator<Item = &'a [u8]> + Clone,
) -> Cmd {
    let (name, script) = match by {
        EvalBy::Digest => ("EVALSHA", &script.digest),
        EvalBy::Text => ("EVAL", &script.text),
    };
    let (count, room) =
        words.clone().fold((0, 0), |(count, room), word| (count + 1, room + word.len()));
    let mut command = Cmd::with_capacity(3 + count, script.len() + room + 8);
    command.arg(name).arg(script).arg(keys);
    for word in words {
        command.arg(word);
    }
    command
}

/// How a script is named to a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Digest,
    Text,
}

/// What a server answers that does not know a script's digest.
pub(crate) const UNKNOWN_SCRIPT: &str = "NOSCRIPT";

/// What lies at a watched key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Something.
    Held,
    /// Nothing.
    Free,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    link: SupervisedConnection,
    replicas: Option<Replicas>,
    unknown_scripts: UnknownScripts,
}

/// What becomes of a step whose script the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownScripts {
    /// It is asked again, with the script's text.
    Sent,
    /// It fails: asked again, it would come behind what was asked for meanwhile, as its claim's
    /// release. A new connection brings the scripts.
    Missing,
}

impl Node {
    /// Begins to connect. With `replicas` above 0 grants can be confirmed by that many.
    pub(crate) fn start(
        route: &Target,
        caller: &Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Node {
        let answer = caller.timeouts.answer;
        let start = |subscription| {
            SupervisedConnection::start(route.clone(), caller.clone(), subscription, answer)
        };
        let link = start(subscription);
        let waits = || start(Subscription::default());
        let replicas = (replicas > 0).then(|| Replicas::new(waits(), replicas, answer));
        Node { link, replicas, unknown_scripts: UnknownScripts::Sent }
    }

    /// The same for one of several that do without any of them: nobody waits until it is there.
    pub(crate) fn start_one_of_many(
        route: Target,
        caller: Arc<ConnectOptions>,
        subscription: Subscription,
    ) -> Node {
        let link = SupervisedConnection::start(route, caller, subscription, Duration::ZERO);
        Node { link, replicas: None, unknown_scripts: UnknownScripts::Missing }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        &self.link
    }

    /// Does one step. The inner error is the server's own.
    pub(crate) async fn step(&self, step: ScriptCall<'_>) -> Result<Result<Value, RedisError>> {
        match self.link.send(&step.command(EvalBy::Digest)).await? {
            Err(error) if self.wants_text(&error) => {
                Box::pin(self.link.send(&step.command(EvalBy::Text))).await
            }
            answer => Ok(answer),
        }
    }

    /// Whether the script's text is to be sent after this error.
    pub(crate) fn wants_text(&self, error: &RedisError) -> bool {
        let is_unknown = error.code() == Some(UNKNOWN_SCRIPT);
        if is_unknown && self.unknown_scripts == UnknownScripts::Missing {
            self.link.mark_broken("the server has forgotten the scripts");
            return false;
        }
        is_unknown
    }

    /// The same for a slot that is moving here: the server takes it only right behind `ASKING`.
    pub(crate) async fn asking_call(&self, step: ScriptCall<'_>) -> Result<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        // With its text, since a second try would have to ask again.
        pipeline.cmd("ASKING").add_command(step.command(EvalBy::Text));
        let answers = self.link.send_all(&pipeline).await?;
        let mut last = Value::Nil;
        for answer in answers {
            last = answer.extract_error().map_err(|error| explain(&error))?;
        }
        Ok(last)
    }

    /// Asks to be told when `key` changes, and whether anything lies there now; whose it is, the
    /// scripts decide. Once: what was told has to be asked for again.
    pub(crate) async fn watch(&self, key: &str) -> Result<Watched> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("CLIENT").arg("CACHING").arg("YES").cmd("GET").arg(key);
        let answers = self.link.send_all(&pipeline).await?;
        match answers.last() {
            Some(Value::Nil) => Ok(Watched::Free),
            _ => Ok(Watched::Held),
        }
    }

    /// The replicas that a grant waits for, if any.
    pub(crate) fn replicas(&self) -> Option<&Replicas> {
        self.replicas.as_ref()
    }

    pub(crate) fn close(&self) {
        self.link.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
