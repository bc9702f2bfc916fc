//! What an operator does with a set of nodes: declare it new, look at it, change it.
//!
//! Each node is asked over a connection of its own, by one who holds no locks.

use std::sync::Arc;

use fencelock_core::url::StoreUrl;
use fencelock_core::{Error, ErrorKind, Operation, Result};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, Value};

use super::config::RedlockStore;
use super::marker::{self, Marker, State};
use super::member::{read_look, write_command};
use crate::checkup::Checkup;
use crate::error::{explain, strange_answer};
use crate::route::{ANSWER_WITHIN, Caller, Host, Route};

/// A node, as it answers now.
struct Node {
    connection: MultiplexedConnection,
    run_id: String,
    /// The marker's text, if there is one.
    text: Option<String>,
    now_us: u64,
}

impl Node {
    async fn reach(host: &Host, caller: &Caller) -> Result<Node> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(ANSWER_WITHIN));
        let connecting = Route::To(host.clone()).connect(caller, &config).await;
        let mut connection = connecting.map_err(|error| explain(&error))?;
        let mut questions = Pipeline::with_capacity(3);
        questions.cmd("INFO").cmd("GET").arg(marker::KEY).cmd("TIME");
        let answers = questions.query_async::<Vec<Value>>(&mut connection).await;
        let answers = answers.map_err(|error| explain(&error))?;
        let (info, rest) = answers.split_first().ok_or_else(|| strange_answer("INFO"))?;
        let checkup = Checkup::read(info);
        checkup.require(false)?;
        let run_id = checkup.run_id().ok_or_else(|| strange_answer("INFO"))?.to_owned();
        let (text, now_us) = read_look(rest).ok_or_else(|| strange_answer("GET and TIME"))?;
        Ok(Node { connection, run_id, text, now_us })
    }

    /// Puts `new` in the place of the marker that was seen; an error if that has changed.
    async fn write(&mut self, new: &Marker) -> Result<()> {
        let swap = write_command(self.text.as_deref(), new);
        match swap.query_async::<i64>(&mut self.connection).await {
            Ok(1) => Ok(()),
            Ok(_) => Err(Error::new(
                ErrorKind::Refused,
                "its marker was changed by somebody else at the same time; look at the status",
            )),
            Err(error) => Err(explain(&error)),
        }
    }
}

async fn reach_all(store: &RedlockStore, caller: &Arc<Caller>) -> Vec<Result<Node>> {
    join_all(store.hosts().iter().map(|host| Node::reach(host, caller))).await
}

/// Declares the nodes of `url` new: none of them ever held a lock, so that none has to be kept out.
///
/// # Errors
/// - [`ErrorKind::Refused`]: a node has a marker already, so it may have held locks.
/// - As of [`connect`](fencelock_core::url::connect), for the first node with an error: all must
///   answer.
///
/// # Cancel safety
/// Dropped half-way, some nodes are declared new; doing it again then is refused, and the others
/// take part after `restart_delay`.
pub async fn init(url: &str) -> Result<()> {
    let store = parse(url)?;
    let shown: Arc<str> = store.shown().into();
    let initialised = init_store(&store).await;
    initialised.map_err(|error| error.during(Operation::Connect).with_store(&shown))
}

async fn init_store(store: &RedlockStore) -> Result<()> {
    let caller = store.caller()?;
    let mut nodes = Vec::new();
    for (host, node) in store.hosts().iter().zip(reach_all(store, &caller).await) {
        let node = node.map_err(|error| at(host, &error))?;
        if node.text.is_some() {
            let message = format!(
                "{host} has a marker already, so it may have held locks; look at it with \
                 `fencelock redlock status`. A node that lost its data takes part again by itself, \
                 after restart_delay"
            );
            return Err(Error::new(ErrorKind::Refused, message));
        }
        nodes.push((host, node));
    }
    for (host, node) in &mut nodes {
        let marker = Marker {
            run_id: node.run_id.clone(),
            state: State::Open,
            born_us: node.now_us,
            deployment: store.deployment(),
        };
        node.write(&marker).await.map_err(|error| at(host, &error))?;
    }
    Ok(())
}

fn parse(url: &str) -> Result<RedlockStore> {
    let parsed =
        StoreUrl::parse(url).and_then(|url| match super::SCHEME.names.contains(&url.scheme()) {
            true => RedlockStore::from_url(&url),
            false => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{}:// is no set of nodes; expected redlock://H1,H2,H3", url.scheme()),
            )),
        });
    parsed.map(|(store, _)| store).map_err(|error| error.during(Operation::Connect))
}

/// An error of one node.
fn at(host: &Host, error: &Error) -> Error {
    Error::new(error.kind(), format!("{host}: {}", error.message())).retryable(error.is_retryable())
}
