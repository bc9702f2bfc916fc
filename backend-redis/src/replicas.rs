//! Grants that count only once some replicas have them: `replicas=N`.
//!
//! `WAIT` covers what its own connection wrote, and blocks that connection. So confirmations have
//! a connection of their own, which renewals never use, and those that wait together share one
//! `WAIT`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::oneshot;

use crate::connection::SupervisedConnection;
use crate::protocol::error::{explain, protocol_error};
use crate::server::node::{By, ScriptCall, UNKNOWN_SCRIPT};

/// How long the replicas may take, and at most half of the time that an answer may.
const REPLICAS_WITHIN: Duration = Duration::from_millis(500);

/// The connection for confirmations, and those that wait for it.
#[derive(Debug)]
pub(crate) struct Replicas {
    link: SupervisedConnection,
    wanted: u32,
    within: Duration,
    waiting: Mutex<Vec<Confirmation>>,
    /// Held by whoever sends for all that wait.
    sending: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Confirmation {
    command: Cmd,
    answer: oneshot::Sender<Result<Value>>,
}

impl Replicas {
    pub(crate) fn new(link: SupervisedConnection, wanted: u32, answer: Duration) -> Replicas {
        let (waiting, sending) = (Mutex::default(), tokio::sync::Mutex::default());
        let within = REPLICAS_WITHIN.min(answer / 2);
        Replicas { link, wanted, within, waiting, sending }
    }

    /// Does the step, and answers once enough replicas have it. Cancel safe: others may have to ask
    /// again.
    pub(crate) async fn confirm(&self, step: ScriptCall<'_>) -> Result<Value> {
        // With its text when the digest is unknown: replicas that became masters know none.
        match self.confirm_by(step, EvalBy::Digest).await? {
            Value::ServerError(error) if error.code() == UNKNOWN_SCRIPT => {
                self.confirm_by(step, EvalBy::Text).await
            }
            answer => Ok(answer),
        }?
        .extract_error()
        .map_err(|error| explain(&error))
    }

    async fn confirm_by(&self, step: ScriptCall<'_>, by: By) -> Result<Value> {
        let (answer, mut answered) = oneshot::channel();
        let confirmation = Confirmation { command: step.command(by), answer };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(confirmation);
        let sending = self.sending.lock().await;
        // Whoever sent before may have sent this one too.
        if let Ok(answer) = answered.try_recv() {
            return answer;
        }
        self.send().await;
        drop(sending);
        let unsent = "whoever sent this confirmation was cancelled";
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unreachable, unsent)))
    }

    /// Sends all that wait, and one `WAIT` behind them.
    async fn send(&self) {
        let all = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if all.is_empty() {
            return;
        }
        let mut pipeline = Pipeline::with_capacity(all.len() + 1);
        let (commands, asking): (Vec<_>, Vec<_>) =
            all.into_iter().map(|one| (one.command, one.answer)).unzip();
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.cmd("WAIT").arg(self.wanted).arg(self.within.as_millis());
        let answers = self.link.send_all(&pipeline).await.and_then(|mut answers| {
            let reached = answers.pop().unwrap_or(Value::Nil);
            self.enough(reached)?;
            Ok(answers)
        });
        match answers {
            Ok(answers) => {
                for (asking, answer) in asking.into_iter().zip(answers) {
                    // Nobody listens any more: its claim's release follows.
                    let _ = asking.send(Ok(answer));
                }
            }
            Err(error) => {
                for asking in asking {
                    let _ = asking.send(Err(error.clone()));
                }
            }
        }
    }

    fn enough(&self, reached: Value) -> Result<()> {
        match reached.extract_error() {
            Ok(Value::Int(reached)) if reached >= i64::from(self.wanted) => Ok(()),
            Ok(Value::Int(reached)) => {
                let message = format!(
                    "{reached} of the {} replicas that replicas={0} asks for had the grant within \
                     {1:?}",
                    self.wanted, self.within
                );
                Err(Error::new(ErrorKind::Unreachable, message))
            }
            Ok(_) => Err(protocol_error("WAIT")),
            Err(error) => {
                let explained = explain(&error);
                // A demoted server says so in several ways, none of them final.
                let denied = error.code() == Some("NOPERM");
                if !denied {
                    self.link.mark_broken("WAIT failed");
                }
                Err(explained.retryable(!denied))
            }
        }
    }

    pub(crate) fn close(&self) {
        self.link.close();
    }
}
