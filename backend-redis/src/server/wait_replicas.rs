//! Grants, and writes of cells, that count only once some replicas have them: `replicas=N`.
//!
//! `WAIT` covers the writes of its own connection, and blocks that connection. So confirmations have
//! a connection of their own, which renewals never use, and concurrent ones share one `WAIT`.

use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::sync::Mutex;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::oneshot;

use crate::connection::SupervisedConnection;
use crate::protocol::call::{EvalBy, ScriptCall, UNKNOWN_SCRIPT};
use crate::protocol::error::{explain, protocol_error, unreachable};

/// How long the replicas may take; at most half of the answer timeout.
const REPLICAS_WITHIN: Duration = Duration::from_millis(500);

/// The connection for confirmations, and the confirmations that wait for it.
#[derive(Debug)]
pub(crate) struct Replicas {
    connection: SupervisedConnection,
    wanted: u32,
    within: Duration,
    waiting: Mutex<Vec<Confirmation>>,
    /// Locked by the task that sends all waiting confirmations.
    sending: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Confirmation {
    command: Cmd,
    answer: oneshot::Sender<Result<Value>>,
}

impl Replicas {
    pub(crate) fn new(connection: SupervisedConnection, wanted: u32, answer: Duration) -> Replicas {
        let (waiting, sending) = (Mutex::default(), tokio::sync::Mutex::default());
        let within = REPLICAS_WITHIN.min(answer / 2);
        Replicas { connection, wanted, within, waiting, sending }
    }

    /// Executes the call, and returns once enough replicas have it. Cancel safe, although other
    /// confirmations may have to be repeated.
    pub(crate) async fn confirm(&self, call: ScriptCall<'_>) -> Result<Result<Value, RedisError>> {
        let mut answer = self.send(call.command(EvalBy::Digest)).await?;
        // A replica that became a master does not know the scripts.
        if matches!(&answer, Value::ServerError(error) if error.code() == UNKNOWN_SCRIPT) {
            answer = self.send(call.command(EvalBy::Text)).await?;
        }
        Ok(answer.extract_error())
    }

    async fn send(&self, command: Cmd) -> Result<Value> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().push(Confirmation { command, answer });
        let sending = self.sending.lock().await;
        // The previous sender may have sent this one too.
        if let Ok(answer) = answered.try_recv() {
            return answer;
        }
        self.send_waiting().await;
        drop(sending);
        let unsent = "the task that sent this confirmation was cancelled";
        answered.await.unwrap_or_else(|_| Err(unreachable(unsent)))
    }

    /// Sends all waiting confirmations, then one `WAIT`.
    async fn send_waiting(&self) {
        let all = std::mem::take(&mut *self.waiting.lock());
        if all.is_empty() {
            return;
        }
        let mut pipeline = Pipeline::with_capacity(all.len() + 1);
        let mut asking = Vec::with_capacity(all.len());
        for Confirmation { command, answer } in all {
            pipeline.add_command(command);
            asking.push(answer);
        }
        pipeline.cmd("WAIT").arg(self.wanted).arg(self.within.as_millis());
        let answers = self.connection.send_all(&pipeline).await.and_then(|mut answers| {
            let reached = answers.pop().unwrap_or(Value::Nil);
            self.enough(reached)?;
            Ok(answers)
        });
        let answers = match answers {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); asking.len()],
        };
        for (asking, answer) in asking.into_iter().zip(answers) {
            // An error means that it was cancelled: its claim's release follows.
            let _ = asking.send(answer);
        }
    }

    fn enough(&self, reached: Value) -> Result<()> {
        match reached.extract_error() {
            Ok(Value::Int(reached)) if reached >= i64::from(self.wanted) => Ok(()),
            Ok(Value::Int(reached)) => {
                let message = format!(
                    "{reached} of the {} replicas that replicas={0} requires had the write within \
                     {1:?}",
                    self.wanted, self.within
                );
                Err(unreachable(message))
            }
            Ok(_) => Err(protocol_error("WAIT")),
            Err(error) if error.code() == Some("NOPERM") => Err(explain(error)),
            // A demoted server reports one of several errors, none of them final.
            Err(error) => {
                self.connection.mark_broken("WAIT failed");
                Err(explain(error).retryable(true))
            }
        }
    }

    pub(crate) fn close(&self) {
        self.connection.close();
    }
}
