//! The server that a store is connected to: after each reconnect it may be another one.

use fencelock_core::Result;
use fencelock_core::backend::program;
use fencelock_core::sync::Mutex;
use redis::Value;

use crate::connection::endpoint::replica;
use crate::protocol::error::unreachable;
use crate::server::server_info::ServerInfo;

/// What the server told when it was connected last.
#[derive(Debug, Default)]
pub(crate) struct LastServer {
    /// The store's name in logs.
    pub(super) shown: String,
    pub(super) is_cluster: bool,
    pub(super) info: Mutex<Option<ServerInfo>>,
}

impl LastServer {
    /// A new connection leads to the server that replied this to `INFO`. Whether it is another one than before, or
    /// another run of it: that is the same store, and is logged once, with what weakens locks there. Not told apart
    /// are the nodes of a cluster.
    ///
    /// # Errors
    /// It cannot carry locks: final at the first connection, and an outage later. A replica: an outage.
    pub(super) fn meet(&self, reply: Value) -> Result<bool> {
        let told = ServerInfo::told(reply).and_then(|now| {
            now.require(self.is_cluster)?;
            // Since it said that it is a master: promoted again in the same run, it tells other things.
            if !self.is_cluster && now.is("role", "slave") {
                return Err(replica());
            }
            Ok(now)
        });
        let mut last = self.info.lock();
        let Some(before) = &*last else {
            *last = Some(told?);
            return Ok(false);
        };
        let now = told.map_err(|error| unreachable(error.message()))?;
        let is_other = !self.is_cluster
            && (now.run_id().is_some() || now.is_denied())
            && (now.run_id(), now.is_denied()) != (before.run_id(), before.is_denied());
        if is_other {
            *last = Some(now.clone());
            drop(last);
            program::call(|| {
                tracing::info!(store = self.shown, "another server, or it was restarted");
                now.warn(&self.shown);
            });
        }
        Ok(is_other)
    }

    /// What was told at the first connection, or by the last other server.
    pub(super) fn info(&self) -> ServerInfo {
        self.info.lock().clone().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_met_at_each_connection() {
        let store = LastServer::default();
        let meet = |info: &str| store.meet(Value::BulkString(info.into()));
        let denied = || store.meet(redis::parse_redis_value(b"-NOPERM no INFO\r\n").unwrap());
        assert!(!meet("run_id:1\r\n").unwrap(), "the first");
        assert!(!meet("run_id:1\r\n").unwrap(), "the same");
        assert!(meet("run_id:2\r\naof_enabled:0\r\n").unwrap(), "another one");
        assert!(store.info().profile(false, 0).exclusion_fails_when[1].contains("append-only"));
        assert!(denied().unwrap() && !denied().unwrap(), "said once");
        assert!(meet("run_id:2\r\n").unwrap(), "what was unknown may be wrong");
        let unsuitable = meet("run_id:4\r\nrole:active-replica\r\n").unwrap_err();
        let nonsense = store.meet(Value::Okay).unwrap_err();
        assert!(unsuitable.is_retryable() && nonsense.is_retryable(), "held locks would end");
        // Demoted between two questions, and promoted again: what counts is said as a master.
        let first = LastServer::default();
        let meet = |info: &str| first.meet(Value::BulkString(info.into()));
        assert!(meet("run_id:1\r\nrole:slave\r\n").unwrap_err().is_retryable());
        assert!(!meet("run_id:1\r\nrole:master\r\nconnected_slaves:1\r\n").unwrap());
        let dangers = first.info().profile(false, 0).exclusion_fails_when;
        assert!(dangers.iter().any(|danger| danger.contains("failover")), "{dangers:?}");
        let first = LastServer::default().meet(Value::BulkString("redis_mode:cluster\r\n".into()));
        assert!(!first.unwrap_err().is_retryable());
    }
}
