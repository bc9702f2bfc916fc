//! The nodes that a URL names, each over a connection that is never replaced: another connection
//! might reach another run of the server.

use std::sync::Arc;
use std::time::SystemTime;

use fencelock_core::url::StoreUrl;
use fencelock_core::{Error, ErrorKind, Operation, Result, Settings};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::membership::Membership;
use crate::connection::endpoint::replica;
use crate::connection::{ConnectOptions, Dialled, HostPort, Target};
use crate::protocol::error::{explain, protocol_error};
use crate::redlock::config::{RedlockStore, SCHEME};
use crate::redlock::node::record::{MAX_WRITES, keeps_changing, record_and_clock, write_command};
use crate::redlock::node::{about, one_server};
use crate::redlock::rules::clocks::{Offset, micros};
use crate::redlock::rules::incarnation::{Deployment, IncarnationRecord, RecordState};
use crate::server::server_info::ServerInfo;

/// The set that `url` names.
pub(super) fn parse(url: &str) -> Result<(RedlockStore, Settings)> {
    let parsed = StoreUrl::parse(url).and_then(|url| {
        if SCHEME.names.contains(&url.scheme()) {
            return RedlockStore::from_url(&url);
        }
        let message =
            format!("{}:// is not a set of nodes; expected redlock://H1,H2,H3", url.scheme());
        Err(Error::new(ErrorKind::InvalidArgument, message))
    });
    parsed.map_err(|error| error.during(Operation::Connect))
}

/// Adds the set's name to an error, without the password.
pub(super) fn explain_at(store: &RedlockStore) -> impl Fn(Error) -> Error {
    let shown: Arc<str> = store.redacted_url().into();
    move |error| error.during(Operation::Connect).with_store(&shown)
}

/// Connects to every node, in the order of the URL.
pub(super) async fn reach_all(
    store: &RedlockStore,
    options: &Arc<ConnectOptions>,
    clock: WallClock,
) -> Vec<(HostPort, Result<NodeConnection>)> {
    let connecting = store
        .hosts()
        .iter()
        .map(|host| async { (host.clone(), NodeConnection::reach(host, options, clock).await) });
    join_all(connecting).await
}

/// The connections, if all nodes replied and none is named twice: a server has one vote.
pub(super) fn require_all(
    reached: Vec<(HostPort, Result<NodeConnection>)>,
) -> Result<Vec<NodeConnection>> {
    let nodes = reached.into_iter().map(|(host, node)| node.map_err(|error| at(&host, &error)));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    refuse_twins(&nodes)?;
    Ok(nodes)
}

/// Refuses two names for one server.
pub(super) fn refuse_twins(nodes: &[NodeConnection]) -> Result<()> {
    let twins = nodes.iter().enumerate().find_map(|(index, node)| {
        Some((nodes[..index].iter().find(|twin| twin.run_id == node.run_id)?, node))
    });
    twins.map_or(Ok(()), |(twin, node)| Err(one_server(&twin.host, &node.host)))
}

/// Adds the node's name to an error.
pub(super) fn at(host: &HostPort, error: &Error) -> Error {
    Error::new(error.kind(), about(host, error.message())).retryable(error.is_retryable())
}

/// This machine's wall clock, read once when an operator's command starts: the nodes' clocks are
/// shown relative to it, and it must not step in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock {
    started: Instant,
    wall_us: u64,
}

impl WallClock {
    pub(super) fn start() -> WallClock {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        WallClock { started: Instant::now(), wall_us: micros(wall) }
    }

    fn now_us(self) -> u64 {
        self.wall_us.saturating_add(micros(self.started.elapsed()))
    }
}

/// A node, with what it last replied.
#[derive(Debug)]
pub(super) struct NodeConnection {
    pub(super) host: HostPort,
    pub(super) connection: MultiplexedConnection,
    _task: AbortOnDropHandle<()>,
    pub(super) run_id: String,
    /// The incarnation record's text, if there is one.
    pub(super) text: Option<String>,
    /// The node's clock.
    pub(super) now_us: u64,
    /// The node's clock relative to this machine's wall clock.
    pub(super) offset: Offset,
}

impl NodeConnection {
    pub(super) async fn reach(
        host: &HostPort,
        options: &ConnectOptions,
        clock: WallClock,
    ) -> Result<NodeConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(options.timeouts.answer));
        let Dialled { mut connection, task, .. } =
            Target::To(host.clone()).connect(options, &config).await?;
        let info = redis::cmd("INFO").query_async::<Value>(&mut connection).await;
        let server_info = ServerInfo::read(&info.map_err(|error| explain(&error))?);
        server_info.require(false)?;
        if server_info.is("role", "slave") {
            return Err(replica());
        }
        let run_id = server_info.run_id().ok_or_else(|| protocol_error("INFO"))?.to_owned();
        let sent = clock.now_us();
        let (text, now_us) = record_and_clock(&mut connection).await?;
        let offset = Offset::read(now_us, sent, clock.now_us());
        Ok(NodeConnection {
            host: host.clone(),
            connection,
            _task: task,
            run_id,
            text,
            now_us,
            offset,
        })
    }

    pub(super) fn membership(&self, ours: Deployment) -> Membership {
        Membership::of(self.text.as_deref(), &self.run_id, self.now_us, ours)
    }

    /// A record for this run of the node, born at its last reply.
    pub(super) fn record(&self, state: RecordState, deployment: Deployment) -> IncarnationRecord {
        IncarnationRecord { run_id: self.run_id.clone(), state, born_us: self.now_us, deployment }
    }

    /// Replaces the record that was last read by `new`; `false` if it has changed.
    pub(super) async fn swap(&mut self, new: &IncarnationRecord) -> Result<bool> {
        let swap = write_command(self.text.as_deref(), new);
        let swapped = swap.query_async::<i64>(&mut self.connection).await;
        let is_done = swapped.map_err(|error| explain(&error))? == 1;
        if is_done {
            self.text = Some(new.to_string());
        }
        Ok(is_done)
    }

    /// Writes the record that `next` returns for the current one, if it returns one; again when
    /// another client writes at the same time.
    pub(super) async fn rewrite(
        &mut self,
        next: impl Fn(&NodeConnection) -> Result<Option<IncarnationRecord>>,
    ) -> Result<()> {
        for _ in 0..MAX_WRITES {
            (self.text, self.now_us) = record_and_clock(&mut self.connection).await?;
            let Some(record) = next(self)? else { return Ok(()) };
            if self.swap(&record).await? {
                return Ok(());
            }
        }
        Err(keeps_changing())
    }
}
