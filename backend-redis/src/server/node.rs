//! One server and its script calls.

use std::sync::Arc;

use fencelock_core::Result;
use redis::{Cmd, Pipeline, RedisError, Value};

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

/// A request about one key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    Call(ScriptCall<'a>),
    /// A call whose write counts once the replicas have it; waits for them.
    Confirm(ScriptCall<'a>),
    /// The value at a key.
    Read(&'a str),
    /// The value at a key, and one push when it changes. An error where the ACL denies that.
    Watch(&'a str),
}

/// A request that can be sent about a slot that is moving: confirmations have a connection of their own,
/// and `CLIENT CACHING` cannot come between `ASKING` and its command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AskingRequest<'a> {
    Call(ScriptCall<'a>),
    Read(&'a str),
}

impl<'a> Request<'a> {
    pub(crate) fn key(&self) -> &'a str {
        match self {
            Request::Call(call) | Request::Confirm(call) => call.keys[0],
            Request::Read(key) | Request::Watch(key) => key,
        }
    }
}

fn get(key: &str) -> Cmd {
    let mut get = redis::cmd("GET");
    get.arg(key);
    get
}

/// The last of several answers, or the first error.
fn all_of(answers: Vec<Value>) -> Result<Value, RedisError> {
    answers.into_iter().try_fold(Value::Nil, |_, answer| answer.extract_error())
}

impl Node {
    /// Begins to connect. With `replicas` above 0 writes can be confirmed by that many.
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

    /// Sends one request. The inner error is the server's.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Result<Value, RedisError>> {
        match (request, &self.replicas) {
            (Request::Confirm(call), Some(replicas)) => replicas.confirm(call).await,
            (Request::Call(call) | Request::Confirm(call), _) => self.call(call).await,
            (Request::Read(key), _) => self.connection.send(&get(key)).await,
            (Request::Watch(key), _) => self.watch(key).await,
        }
    }

    /// Sends one request about a slot that is moving here: accepted only directly after `ASKING`.
    pub(crate) async fn send_asking(&self, request: AskingRequest<'_>) -> Result<Value> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(match request {
            // With the script's text: a second attempt would need another `ASKING`.
            AskingRequest::Call(call) => call.command(EvalBy::Text),
            AskingRequest::Read(key) => get(key),
        });
        let answers = self.connection.send_all(&pipeline).await?;
        all_of(answers).map_err(explain)
    }

    async fn watch(&self, key: &str) -> Result<Result<Value, RedisError>> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("CLIENT").arg("CACHING").arg("YES").add_command(get(key));
        Ok(all_of(self.connection.send_all(&pipeline).await?))
    }

    pub(crate) fn close(&self) {
        self.connection.close();
        if let Some(replicas) = &self.replicas {
            replicas.close();
        }
    }
}
