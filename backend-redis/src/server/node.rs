//! One server and the steps that are asked of it.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use redis::{Pipeline, RedisError, Value};

use super::wait_replicas::Replicas;
use crate::connection::{ConnectOptions, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::call::{EvalBy, ScriptCall, UNKNOWN_SCRIPT};
use crate::protocol::error::explain;

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
    connection: SupervisedConnection,
    replicas: Option<Replicas>,
    unknown_scripts: UnknownScripts,
}

/// What becomes of a call whose script the server does not know.
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
        target: &Target,
        options: &Arc<ConnectOptions>,
        subscription: Subscription,
        replicas: u32,
    ) -> Node {
        let answer = options.timeouts.answer;
        let start = |subscription| {
            SupervisedConnection::start(target.clone(), options.clone(), subscription, answer)
        };
        let connection = start(subscription);
        let waits = || start(Subscription::default());
        let replicas = (replicas > 0).then(|| Replicas::new(waits(), replicas, answer));
        Node { connection, replicas, unknown_scripts: UnknownScripts::Sent }
    }

    /// The same for one of several that do without any of them: nobody waits until it is there.
    pub(crate) fn start_one_of_many(
        target: Target,
        options: Arc<ConnectOptions>,
        subscription: Subscription,
    ) -> Node {
        let connection = SupervisedConnection::start(target, options, subscription, Duration::ZERO);
        Node { connection, replicas: None, unknown_scripts: UnknownScripts::Missing }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        &self.connection
    }

    /// Does one call. The inner error is the server's own.
    pub(crate) async fn call(&self, call: ScriptCall<'_>) -> Result<Result<Value, RedisError>> {
        match self.connection.send(&call.command(EvalBy::Digest)).await? {
            Err(error) if self.wants_text(&error) => {
                Box::pin(self.connection.send(&call.command(EvalBy::Text))).await
            }
            answer => Ok(answer),
        }
    }

    /// Whether the script's text is to be sent after this error.
    pub(crate) fn wants_text(&self, error: &RedisError) -> bool {
        let is_unknown = error.code() == Some(UNKNOWN_SCRIPT);
        if is_unknown && self.unknown_scripts == UnknownScripts::Missing {
            self.connection.mark_broken("the server has forgotten the scripts");
            return false;
        }
        is_unknown
    }

    /// The same for a slot that is moving here: the server takes it only right behind `ASKING`.
    pub(crate) async fn asking_call(&self, call: ScriptCall<'_>) -> Result<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        // With its text, since a second try would have to ask again.
        pipeline.cmd("ASKING").add_command(call.command(EvalBy::Text));
        let answers = self.connection.send_all(&pipeline).await?;
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
        let answers = self.connection.send_all(&pipeline).await?;
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
        self.connection.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
