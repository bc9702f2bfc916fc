//! A server as a replica: whom it follows, and how far it has come.

use std::io;
use std::net::SocketAddr;

use super::{SERVER, TestRedis};
use crate::servers::eventually::{PATIENCE, eventually, not_yet};
use crate::servers::{ServerError, failed};

impl TestRedis {
    /// Succeeds if this is a replica of the server at the port and has taken over its data.
    pub(super) async fn follows(&self, master: u16) -> io::Result<()> {
        let port = self.replication("master_port").await?;
        let link = self.replication("master_link_status").await?;
        if port == master.to_string() && link == "up" {
            return Ok(());
        }
        Err(not_yet(format!("{} does not follow the master at port {master}", self.addr())))
    }

    /// Makes this a replica of the server at that address, which may be a proxy's, and waits until it
    /// has taken over its data.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn follow(&self, master: SocketAddr) -> Result<(), ServerError> {
        let (host, port) = (master.ip().to_string(), master.port());
        let asked = self.command(&["REPLICAOF", &host, &port.to_string()]).await;
        asked.map_err(failed(SERVER, "making a replica of"))?;
        eventually(SERVER, "a replica's first copy", PATIENCE, || self.follows(port)).await
    }

    /// Waits until the replicas have what was written to this server so far.
    ///
    /// # Errors
    /// When that does not happen.
    pub async fn has_told(&self, replicas: &[&TestRedis]) -> Result<(), ServerError> {
        let written = self.offset("master_repl_offset").await.map_err(failed(SERVER, "asking"))?;
        eventually(SERVER, "the writes at a replica", PATIENCE, || async {
            for replica in replicas {
                if replica.offset("slave_repl_offset").await? < written {
                    return Err(not_yet(format!("{} is behind", replica.addr())));
                }
            }
            Ok(())
        })
        .await
    }

    async fn offset(&self, field: &str) -> io::Result<u64> {
        let offset = self.replication(field).await?;
        offset.parse().map_err(|_| not_yet(format!("{} has no {field}", self.addr())))
    }

    /// One field of what INFO says of replication; empty if it has none of the name.
    async fn replication(&self, field: &str) -> io::Result<String> {
        let info = self.command(&["INFO", "replication"]).await?;
        let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        let found = fields.find(|(name, _)| *name == field);
        Ok(found.map(|(_, value)| value.into()).unwrap_or_default())
    }
}
