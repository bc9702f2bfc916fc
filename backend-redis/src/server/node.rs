//! One server and its script calls.

use std::sync::Arc;

use fencelock_core::Result;
use redis::{Pipeline, RedisError, Value};

use super::wait_replicas::Replicas;
use crate::connection::{ConnectOptions, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::call::{EvalBy, ScriptCall, UNKNOWN_SCRIPT};
use crate::protocol::error::explain;

/// One server, with its connections.
#[derive(Debug)]
pub(crate) struct Node {
    connection: SupervisedConnection,
    replicas: Option<Replicas>,
    unknown_scripts: UnknownScripts,
}

/// How a call is handled whose script the server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownScripts {
    /// It is sent again, with the script's text.
    Sent,
    /// It fails: sent again, it would arrive after later requests, such as its claim's release. A
    /// new connection loads the scripts.
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

    /// Begins to connect to one of several nodes, any of which is dispensable: requests do not wait
    /// for the connection.
    #[cfg(feature = "redlock")]
    pub(crate) fn start_one_of_many(
        target: Target,
        options: Arc<ConnectOptions>,
        subscription: Subscription,
    ) -> Node {
        let connection =
            SupervisedConnection::start(target, options, subscription, std::time::Duration::ZERO);
        Node { connection, replicas: None, unknown_scripts: UnknownScripts::Missing }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        &self.connection
    }

    /// Executes one call. The inner error is the server's.
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

    /// Executes one call on a slot that is moving here: accepted only directly after `ASKING`.
    pub(crate) async fn asking_call(&self, call: ScriptCall<'_>) -> Result<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        // With the script's text: a second attempt would need another `ASKING`.
        pipeline.cmd("ASKING").add_command(call.command(EvalBy::Text));
        let answers = self.connection.send_all(&pipeline).await?;
        answers
            .into_iter()
            .try_fold(Value::Nil, |_, answer| answer.extract_error())
            .map_err(explain)
    }

    /// Has the server push one notification when `key` changes, and reads whether it exists now.
    /// Whose value it is, the scripts decide. Each notification needs another call.
    pub(crate) async fn watch(&self, key: &str) -> Result<bool> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("CLIENT").arg("CACHING").arg("YES").cmd("GET").arg(key);
        let answers = self.connection.send_all(&pipeline).await?;
        Ok(!matches!(answers.last(), Some(Value::Nil)))
    }

    /// Executes a call that confirms a grant, and waits until the replicas have it.
    pub(crate) async fn confirm(&self, call: ScriptCall<'_>) -> Result<Value> {
        match &self.replicas {
            Some(replicas) => replicas.confirm(call).await,
            None => self.call(call).await?.map_err(explain),
        }
    }

    pub(crate) fn close(&self) {
        self.connection.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
