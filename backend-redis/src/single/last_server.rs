//! The server that a store is connected to: after each reconnect it may be another one.

use fencelock_core::backend::program;
use fencelock_core::sync::Mutex;
use fencelock_core::{Error, Profile, Result};
use redis::Value;

use crate::protocol::error::unreachable;
use crate::server::server_info::ServerInfo;

/// What the server told when it was connected last.
#[derive(Debug, Default)]
pub(crate) struct LastServer {
    /// The store's name in logs.
    shown: String,
    is_cluster: bool,
    info: Mutex<Option<ServerInfo>>,
}

impl LastServer {
    pub(super) fn new(shown: String, is_cluster: bool) -> LastServer {
        LastServer { shown, is_cluster, info: Mutex::default() }
    }

    /// A new connection leads to the server that replied this to `INFO`. Another one than before is the same store:
    /// that, and what weakens locks there, is logged once. Whether it is another; the nodes of a cluster always are.
    ///
    /// # Errors
    /// It cannot carry locks: final at the first connection, and an outage later.
    pub(super) fn meet(&self, reply: Value) -> Result<bool> {
        let mut last = self.info.lock();
        // That INFO is denied is said once.
        let is_first = last.is_none();
        let told = ServerInfo::told(reply, &self.shown, is_first);
        let suitable = told.and_then(|now| now.require(self.is_cluster).map(|()| now));
        let or_later = |error: Error| if is_first { error } else { unreachable(error.message()) };
        let now = suitable.map_err(or_later)?;
        let run_before = last.as_ref().and_then(ServerInfo::run_id);
        let is_other = !self.is_cluster
            && run_before.is_some_and(|before| now.run_id().is_some_and(|run| run != before));
        *last = Some(now.clone());
        drop(last);
        program::call(|| {
            if is_other {
                let store = &self.shown;
                tracing::info!(store, "another server answers now, or it was restarted");
            }
            if is_first || is_other {
                now.warn(&self.shown);
            }
        });
        Ok(is_other)
    }

    /// The profile of a store on this server.
    pub(super) fn profile(&self, failover: bool, replicas: u32) -> Profile {
        self.info.lock().clone().unwrap_or_default().profile(failover, replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_met_at_each_connection() {
        let store = LastServer::default();
        let meet = |info: &str| store.meet(Value::BulkString(info.into()));
        let dangers = || store.profile(false, 0).exclusion_fails_when.join("; ");
        assert!(!meet("run_id:1\r\naof_enabled:1\r\n").unwrap());
        assert!(!meet("run_id:1\r\naof_enabled:1\r\n").unwrap());
        assert!(!dangers().contains("it keeps no append-only file"));
        assert!(meet("run_id:2\r\naof_enabled:0\r\n").unwrap(), "another one");
        assert!(dangers().contains("it keeps no append-only file"));
        let unsuitable = meet("run_id:3\r\nrole:active-replica\r\n").unwrap_err();
        let nonsense = store.meet(Value::Okay).unwrap_err();
        assert!(unsuitable.is_retryable() && nonsense.is_retryable(), "held locks would end");
        let first = LastServer::default().meet(Value::BulkString("redis_mode:cluster\r\n".into()));
        assert!(!first.unwrap_err().is_retryable());
    }
}
