//! One session with a server: its statements, its health, and what it can do.

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencelock_core::{Error, Result};
use fencelock_net::{Health, Sent};
use futures_util::TryStreamExt;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row, Statement};
use tokio_util::task::AbortOnDropHandle;

use super::options::{ConnectOptions, Host};
use crate::error::{Remedy, explain, meaning_of, unreachable, words_of};
use crate::statements::Function;

/// Receives the notifications of a session, on its own task: must not block.
pub(crate) trait PushHandler: fmt::Debug + Send + Sync {
    fn on_notification(&self, channel: &str, payload: &str);

    /// Notifications may have been lost.
    fn on_gap(&self);
}

/// An established session. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) client: Client,
    pub(super) host: Host,
    /// The address that the host's name had; none of a Unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The process ID that the login told: behind a pooler not that of the server's backend.
    pub(super) backend: u32,
    /// The prepared statements; none behind a pooler, which gives each transaction to a session that
    /// may know another program's statement by the same name.
    pub(super) prepared: Option<Vec<Statement>>,
    pub(super) state: Arc<SessionState>,
    pub(super) task: AbortOnDropHandle<()>,
}

/// What the answers say of a session.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    pub(super) health: Health,
    /// A pooler was found to be between: named statements are not where they were prepared.
    pub(super) is_mixed: AtomicBool,
    /// A pooler was taken to be between, and is not.
    pub(super) is_late: AtomicBool,
    /// A commit has not waited for the synchronous standby. It is not known whose.
    pub(super) is_unreplicated: AtomicBool,
    /// Why the connection ended, if by an error.
    pub(super) end: OnceLock<String>,
}

/// An argument that is not shown: tokio-postgres logs all of them, owner tokens too.
struct Hidden<'a>(&'a (dyn ToSql + Sync));

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl ToSql for Hidden<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(ty, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The statements after which the server ends no statement and no transaction for its length, and every one whose
/// client is gone; `set` is `SET`, or `SET LOCAL` for one transaction. Not every system can check a connection, and
/// `transaction_timeout` is new in 17.
pub(super) fn patient(set: &str) -> String {
    let if_known = |setting: &str, error: &str| {
        format!("DO $$ BEGIN {set} {setting}; EXCEPTION WHEN {error} THEN NULL; END $$;")
    };
    format!(
        "{set} statement_timeout = 0; {} {}",
        if_known("transaction_timeout = 0", "undefined_object"),
        if_known("client_connection_check_interval = '1s'", "invalid_parameter_value"),
    )
}

impl Session {
    /// Whether it has a session of the server for itself, so that notifications arrive.
    pub(crate) fn is_direct(&self) -> bool {
        self.prepared.is_some()
    }

    /// Calls a function. It is sent when this is first polled, in that order, and executed even if
    /// this is dropped then.
    pub(crate) async fn call(
        &self,
        options: &ConnectOptions,
        function: Function,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        debug_assert_eq!(arguments.len(), function.types().len(), "{function:?}");
        let arguments = arguments.iter().map(|argument| Hidden(*argument));
        let asking = async {
            match &self.prepared {
                Some(prepared) => {
                    let statement = &prepared[function as usize];
                    let arguments = arguments.collect::<Vec<_>>();
                    self.client.query_raw(statement, arguments).await?.try_collect().await
                }
                None => {
                    let arguments = arguments.zip(function.types().iter().cloned());
                    let text = options.statements.text(function);
                    self.client.query_typed_raw(text, arguments).await?.try_collect().await
                }
            }
        };
        let sent = self.state.health.sent();
        let answer = timeout(options.timeouts.answer, asking).await;
        self.in_time(sent, answer)
    }

    /// Ends the connection, and with it the requests that still wait for an answer: other requests wait
    /// behind them, which the next session can answer.
    pub(super) fn end(&self) {
        self.task.abort();
    }

    /// Asks without arguments.
    pub(crate) async fn query(&self, options: &ConnectOptions, sql: &str) -> Result<Vec<Row>> {
        let sent = self.state.health.sent();
        let answer = timeout(options.timeouts.answer, self.client.query_typed(sql, &[])).await;
        self.in_time(sent, answer)
    }

    /// The answer to a request that was sent then, if it came in time.
    fn in_time<T>(
        &self,
        sent: Sent,
        answer: Result<Result<T, tokio_postgres::Error>, Elapsed>,
    ) -> Result<T> {
        match answer {
            Ok(answer) => self.state.observe(answer, &self.host),
            Err(_) => {
                self.state.health.timed_out(sent);
                Err(unreachable(format!("no answer from {} in time", self.host)))
            }
        }
    }
}

impl SessionState {
    /// Updates the health from an answer.
    pub(super) fn observe<T>(
        &self,
        answer: Result<T, tokio_postgres::Error>,
        host: &Host,
    ) -> Result<T> {
        self.health.answered();
        let answer = answer.map_err(|error| self.failed(&error, host))?;
        if self.is_unreplicated.load(Ordering::Relaxed) {
            return Err(unreachable(format!(
                "a commit at {host} is not at its synchronous standby: the wait for it was cancelled"
            )));
        }
        Ok(answer)
    }

    pub(super) fn failed(&self, error: &tokio_postgres::Error, host: &Host) -> Error {
        let meaning = meaning_of(error);
        if meaning.remedy == Remedy::Unnamed {
            self.is_mixed.store(true, Ordering::Relaxed);
        }
        if meaning.remedy != Remedy::None {
            self.health.fail();
        }
        if error.as_db_error().is_none() {
            let words = self.end.get().cloned().unwrap_or_else(|| words_of(error));
            return unreachable(format!("the connection to {host} failed ({words})"));
        }
        explain(error)
    }
}
