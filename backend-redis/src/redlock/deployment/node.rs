//! One node, over a connection that is never made again: another connection may be with another
//! run of the server.

use std::time::SystemTime;

use fencelock_core::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::time::Instant;

use crate::server::server_info::ServerInfo;
use crate::connection::{ConnectionTask, Dialled};
use crate::protocol::error::{explain, protocol_error};
use crate::redlock::clocks::Offset;
use crate::redlock::marker::{Deployment, Marker, State};
use crate::redlock::sight::{WRITES, keeps_changing, marker_and_clock, write_command};
use crate::connection::{ConnectOptions, HostPort, Target};

/// This machine's wall clock as it was when an operator's command began: what is shown is the
/// difference to it, and it must not step in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    started: Instant,
    wall_us: u64,
}

impl Watch {
    pub(super) fn start() -> Watch {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Watch { started: Instant::now(), wall_us }
    }

    fn now_us(self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.wall_us.saturating_add(elapsed)
    }
}

/// A node, as it answered last.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: HostPort,
    pub(super) connection: MultiplexedConnection,
    _task: ConnectionTask,
    pub(super) run_id: String,
    /// The marker's text, if there is one.
    pub(super) text: Option<String>,
    /// Its clock.
    pub(super) now_us: u64,
    /// Its clock against this machine's wall clock.
    pub(super) offset: Offset,
}

impl Node {
    pub(super) async fn reach(host: &HostPort, options: &ConnectOptions, watch: Watch) -> Result<Node> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(Some(options.timeouts.answer));
        let dialled = Target::To(host.clone()).connect(options, &config).await?;
        let Dialled { mut connection, task, .. } = dialled;
        let info = redis::cmd("INFO").query_async::<Value>(&mut connection).await;
        let server_info = ServerInfo::read(&info.map_err(|error| explain(&error))?);
        server_info.require(false)?;
        let run_id = server_info.run_id().ok_or_else(|| protocol_error("INFO"))?.to_owned();
        let sent = watch.now_us();
        let (text, now_us) = marker_and_clock(&mut connection).await?;
        let offset = Offset::read(now_us, sent, watch.now_us());
        Ok(Node { host: host.clone(), connection, _task: task, run_id, text, now_us, offset })
    }

    /// A marker for this run of it, from its last answer on.
    pub(super) fn marker(&self, state: State, deployment: Deployment) -> Marker {
        Marker { run_id: self.run_id.clone(), state, born_us: self.now_us, deployment }
    }

    /// Reads the marker and the clock again.
    async fn look(&mut self) -> Result<()> {
        (self.text, self.now_us) = marker_and_clock(&mut self.connection).await?;
        Ok(())
    }

    /// Puts `new` in the place of the marker that was seen last; `false` if that has changed.
    pub(super) async fn swap(&mut self, new: &Marker) -> Result<bool> {
        let swap = write_command(self.text.as_deref(), new);
        let swapped = swap.query_async::<i64>(&mut self.connection).await;
        let is_done = swapped.map_err(|error| explain(&error))? == 1;
        if is_done {
            self.text = Some(new.to_string());
        }
        Ok(is_done)
    }

    /// Writes what `next` makes of the marker as it is now, if it makes something of it; again
    /// when somebody else writes at the same time.
    pub(super) async fn rewrite(
        &mut self,
        next: impl Fn(&Node) -> Result<Option<Marker>>,
    ) -> Result<()> {
        for _ in 0..WRITES {
            self.look().await?;
            let Some(marker) = next(self)? else { return Ok(()) };
            if self.swap(&marker).await? {
                return Ok(());
            }
        }
        Err(keeps_changing())
    }
}
