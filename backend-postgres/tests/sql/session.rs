//! One connection, and the notifications that it gets.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Statement};

pub(crate) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A channel and a payload.
pub(crate) type Note = (String, String);

/// Used from outside the runtime.
pub(crate) struct Session {
    pub(crate) client: std::sync::Arc<Client>,
    runtime: Handle,
    notes: RefCell<UnboundedReceiver<Note>>,
    statements: RefCell<HashMap<String, Statement>>,
}

impl Session {
    pub(crate) fn new(runtime: &Handle, config: &Config) -> Session {
        let (client, mut connection) = runtime.block_on(config.connect(NoTls)).unwrap();
        let (sender, notes) = unbounded_channel();
        runtime.spawn(async move {
            let mut messages =
                futures_util::stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message {
                    let _ = sender.send((note.channel().into(), note.payload().into()));
                }
            }
        });
        let (client, runtime) = (client.into(), runtime.clone());
        Session { client, runtime, notes: notes.into(), statements: RefCell::default() }
    }

    pub(crate) fn run(&self, sql: &str) -> Result<(), String> {
        self.runtime.block_on(self.client.batch_execute(sql)).map_err(|error| text_of(&error))
    }

    pub(crate) fn prepared(&self, sql: &str) -> Result<Statement, String> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.runtime.block_on(self.client.prepare(sql));
        let statement = statement.map_err(|error| format!("{sql}: {}", text_of(&error)))?;
        self.statements.borrow_mut().insert(sql.into(), statement.clone());
        Ok(statement)
    }

    pub(crate) fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, String> {
        let statement = self.prepared(sql)?;
        let rows = self.runtime.block_on(self.client.query(&statement, params));
        rows.map_err(|error| text_of(&error))
    }

    /// Several queries, all sent before the first reply is read; the server runs one after the
    /// other.
    pub(crate) fn pipeline(&self, queries: &[(&str, Params<'_>)]) -> Result<Vec<Vec<Row>>, String> {
        let statements: Result<Vec<_>, _> =
            queries.iter().map(|(sql, _)| self.prepared(sql)).collect();
        let statements = statements?;
        let all = queries.iter().zip(&statements);
        let all = all.map(|((_, params), statement)| self.client.query(statement, params));
        let rows = self.runtime.block_on(futures_util::future::join_all(all));
        rows.into_iter().map(|rows| rows.map_err(|error| text_of(&error))).collect()
    }

    /// Sends a query that may have to wait.
    pub(crate) fn start(&self, sql: &str) -> JoinHandle<Result<(), String>> {
        let (client, sql) = (self.client.clone(), sql.to_owned());
        self.runtime
            .spawn(async move { client.batch_execute(&sql).await.map_err(|error| text_of(&error)) })
    }

    pub(crate) fn join<T: Send + 'static>(&self, task: JoinHandle<T>) -> T {
        const LIMIT: Duration = Duration::from_secs(20);
        let limited = async { tokio::time::timeout(LIMIT, task).await };
        self.runtime.block_on(limited).expect("a statement hangs").unwrap()
    }

    /// The notifications of this session's own statements: they are there once a statement has
    /// ended.
    pub(crate) fn take_notes(&self) -> Vec<Note> {
        let mut notes = self.notes.borrow_mut();
        std::iter::from_fn(|| notes.try_recv().ok()).collect()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.query("SELECT pg_backend_pid()", &[]).unwrap()[0].get(0)
    }
}

/// With the code at the beginning.
pub(crate) fn text_of(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let context = error.where_().unwrap_or_default();
            format!("{} {} {context}", error.code().code(), error.message())
        }
        None => format!("{error:?}"),
    }
}
