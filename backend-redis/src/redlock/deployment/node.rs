//! One node, over a connection that is never made again: another connection may be with another
//! run of the server.

use std::time::SystemTime;

use fencelock_core::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::time::Instant;

use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{ConnectionTask, Dialled};
use crate::protocol::error::{explain, protocol_error};
use crate::redlock::clocks::Offset;
use crate::redlock::incarnation::{Deployment, IncarnationRecord, RecordState};
use crate::redlock::monitor::{MAX_WRITES, keeps_changing, record_and_clock, write_command};
use crate::server::server_info::ServerInfo;

/// This machine's wall clock as it was when an operator's command began: what is shown is the
/// difference to it, and it must not step in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock {
    started: Instant,
    wall_us: u64,
}

impl WallClock {
    pub(super) fn start() -> WallClock {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        WallClock { started: Instant::now(), wall_us }
    }

    fn now_us(self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.wall_us.saturating_add(elapsed)
    }
}

/// A node, as it answered last.
#[derive(Debug)]
pub(super) struct NodeConnection {
    pub(super) host: HostPort,
    pub(super) connection: MultiplexedConnection,
    _task: ConnectionTask,
    pub(super) run_id: String,
    /// The record's text, if there is one.
    pub(super) text: Option<String>,
    /// Its clock.
    pub(super) now_us: u64,
    /// Its clock against this machine's wall clock.
    pub(super) offset: Offset,
}

impl NodeConnection {
    pub(super) async fn reach(
        host: &HostPort,
        options: &ConnectOptions,
        watch: WallClock,
    ) -> Result<NodeConnection> {
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
        let (text, now_us) = record_and_clock(&mut connection).await?;
        let offset = Offset::read(now_us, sent, watch.now_us());
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

    /// A record for this run of it, from its last answer on.
    pub(super) fn record(&self, state: RecordState, deployment: Deployment) -> IncarnationRecord {
        IncarnationRecord { run_id: self.run_id.clone(), state, born_us: self.now_us, deployment }
    }

    /// Reads the record and the clock again.
    async fn look(&mut self) -> Result<()> {
        (self.text, self.now_us) = record_and_clock(&mut self.connection).await?;
        Ok(())
    }

    /// Puts `new` in the place of the record that was seen last; `false` if that has changed.
    pub(super) async fn swap(&mut self, new: &IncarnationRecord) -> Result<bool> {
        let swap = write_command(self.text.as_deref(), new);
        let swapped = swap.query_async::<i64>(&mut self.connection).await;
        let is_done = swapped.map_err(|error| explain(&error))? == 1;
        if is_done {
            self.text = Some(new.to_string());
        }
        Ok(is_done)
    }

    /// Writes what `next` makes of the record as it is now, if it makes something of it; again
    /// when somebody else writes at the same time.
    pub(super) async fn rewrite(
        &mut self,
        next: impl Fn(&NodeConnection) -> Result<Option<IncarnationRecord>>,
    ) -> Result<()> {
        for _ in 0..MAX_WRITES {
            self.look().await?;
            let Some(record) = next(self)? else { return Ok(()) };
            if self.swap(&record).await? {
                return Ok(());
            }
        }
        Err(keeps_changing())
    }
}
