//! The server's settings, read at connect, and what they mean for locks.

use std::borrow::Cow;

use fencelock_core::{
    CellDurability, Liveness, Modes, Order, Profile, Reach, RenewalPlan, Result, TokenOrder, Ttl,
};

use crate::connection::{ConnectOptions, Session};
use crate::error::{read_setting, unreachable};

/// Settings that any user may read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerInfo {
    fsync: bool,
    full_page_writes: bool,
    has_standbys: bool,
    has_synchronous_standby: bool,
}

const SQL: &str = "\
    SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', \
    EXISTS (SELECT FROM pg_stat_replication), current_setting('synchronous_standby_names') <> ''";

impl ServerInfo {
    pub(crate) async fn of(session: &Session, options: &ConnectOptions) -> Result<ServerInfo> {
        let rows = session.query(options, SQL).await?;
        let row =
            rows.first().ok_or_else(|| unreachable("no answer about the server's settings"))?;
        Ok(ServerInfo {
            fsync: read_setting(row, 0)?,
            full_page_writes: read_setting(row, 1)?,
            has_standbys: read_setting(row, 2)?,
            has_synchronous_standby: read_setting(row, 3)?,
        })
    }

    /// Whether a commit that was confirmed survives the server.
    fn is_durable(&self) -> bool {
        self.fsync && self.full_page_writes && (self.has_synchronous_standby || !self.has_standbys)
    }

    /// The conditions under which exclusion fails on this server.
    fn dangers(&self) -> Vec<&'static str> {
        let mut dangers = vec!["the server's clock jumps"];
        if self.has_standbys && !self.has_synchronous_standby {
            dangers.push("a failover loses the last commits: no standby is synchronous");
        }
        if !self.fsync || !self.full_page_writes {
            dangers.push("the server's machine fails: fsync or full_page_writes is off");
        }
        dangers
    }

    /// Logs warnings about settings that weaken locks.
    pub(crate) fn warn(&self, shown: &str) {
        if !self.fsync || !self.full_page_writes {
            tracing::warn!(
                store = shown,
                "fsync or full_page_writes is off: if its machine fails, the server loses locks, and \
                 perhaps its data"
            );
        }
    }

    /// The profile of a store on this server.
    pub(crate) fn profile(&self) -> Profile {
        Profile {
            store: "postgres",
            reach: Reach::Network,
            liveness: Liveness::Lease,
            renewal: RenewalPlan::ThirdOfTtl,
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            downgrade: true,
            tokens: TokenOrder::BeyondData,
            // No more tokens than microseconds that a grant takes: they follow the clock.
            max_local_handoffs: 64,
            cells: Some(if self.is_durable() {
                CellDurability::Synced
            } else {
                CellDurability::Data
            }),
            exclusion_fails_when: Cow::Owned(self.dangers()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dangers_depend_on_the_settings() {
        let safe = ServerInfo { fsync: true, full_page_writes: true, ..ServerInfo::default() };
        assert_eq!(safe.dangers().len(), 1);
        let asynchronous = ServerInfo { has_standbys: true, ..safe.clone() };
        assert!(asynchronous.dangers()[1].contains("failover"));
        let synchronous = ServerInfo { has_synchronous_standby: true, ..asynchronous };
        assert_eq!(synchronous.dangers().len(), 1);
        let careless = ServerInfo { fsync: false, ..safe };
        assert!(careless.dangers()[1].contains("fsync"));
    }
}
