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
    /// A commit waits until a standby has its record, but not until that is on the standby's disk. The functions
    /// that grant raise what waits for less.
    commits_in_memory: bool,
    /// Whether it says which history it writes, so that a primary that was replaced is passed over.
    tells_history: bool,
}

const SQL: &str = "\
    SELECT pg_catalog.current_setting('fsync') OPERATOR(pg_catalog.=) 'on', \
    pg_catalog.current_setting('full_page_writes') OPERATOR(pg_catalog.=) 'on', \
    EXISTS (SELECT FROM pg_catalog.pg_stat_replication), \
    pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) '', \
    pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'remote_write'";

impl ServerInfo {
    pub(crate) async fn of(session: &Session, options: &ConnectOptions) -> Result<ServerInfo> {
        let rows = session.query(options, SQL).await?;
        let row = rows.first().ok_or_else(|| unreachable("no answer about its settings"))?;
        Ok(ServerInfo {
            fsync: read_setting(row, 0)?,
            full_page_writes: read_setting(row, 1)?,
            has_standbys: read_setting(row, 2)?,
            has_synchronous_standby: read_setting(row, 3)?,
            commits_in_memory: read_setting(row, 4)?,
            tells_history: options.history.are_known(),
        })
    }

    /// Whether a commit that was confirmed survives the server.
    fn is_durable(&self) -> bool {
        let survives_failover =
            if self.has_synchronous_standby { !self.commits_in_memory } else { !self.has_standbys };
        self.fsync && self.full_page_writes && survives_failover
    }

    /// The conditions under which exclusion fails on this server.
    fn dangers(&self) -> Vec<&'static str> {
        let mut dangers = vec!["the server's clock jumps"];
        if self.has_standbys && !self.has_synchronous_standby {
            dangers.push("a failover loses the last commits: no standby is synchronous");
            // With one, a renewal here waits for it.
            dangers.push("a standby is promoted while this server still accepts writes");
        }
        if self.has_synchronous_standby && self.commits_in_memory {
            dangers.push(
                "a failover to a standby whose machine has failed too loses the last commits: \
                 synchronous_commit is remote_write",
            );
        }
        if self.has_synchronous_standby {
            dangers.push(
                "a standby is promoted while this server still accepts writes, which another synchronous \
                 standby confirms",
            );
        }
        dangers.extend(self.weaknesses());
        dangers
    }

    /// Those of the settings, which can be mended.
    fn weaknesses(&self) -> Vec<&'static str> {
        let mut weaknesses = Vec::new();
        if !self.fsync || !self.full_page_writes {
            weaknesses.push("the server's machine fails: fsync or full_page_writes is off");
        }
        if !self.tells_history {
            weaknesses.push(
                "a primary that was replaced still runs: the server does not tell this user its timeline (pg_control_system)",
            );
        }
        weaknesses
    }

    /// Logs warnings about settings that weaken locks.
    pub(crate) fn warn(&self, shown: &str) {
        for weakness in self.weaknesses() {
            tracing::warn!(store = shown, "two may hold one lock if {weakness}");
        }
    }

    /// The profile of a store on this server.
    pub(crate) fn profile(&self) -> Profile {
        let cells = if self.is_durable() { CellDurability::Synced } else { CellDurability::Data };
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
            cells: Some(cells),
            exclusion_fails_when: Cow::Owned(self.dangers()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dangers_depend_on_the_settings() {
        let (fsync, full_page_writes, tells_history) = (true, true, true);
        let safe = ServerInfo { fsync, full_page_writes, tells_history, ..ServerInfo::default() };
        assert_eq!(safe.dangers().len(), 1);
        let asynchronous = ServerInfo { has_standbys: true, ..safe.clone() };
        assert!(asynchronous.dangers()[1].contains("failover"));
        let synchronous = ServerInfo { has_synchronous_standby: true, ..asynchronous.clone() };
        assert_eq!(synchronous.dangers().len(), 2);
        let in_memory = ServerInfo { commits_in_memory: true, ..synchronous.clone() };
        assert!(in_memory.dangers()[1].contains("remote_write"));
        // No commit waits for a standby.
        let alone = ServerInfo { commits_in_memory: true, ..safe.clone() };
        assert_eq!(alone.dangers().len(), 1);
        for (info, is_durable) in [
            (&safe, true),
            (&alone, true),
            (&asynchronous, false),
            (&synchronous, true),
            (&in_memory, false),
        ] {
            assert_eq!(info.is_durable(), is_durable, "{info:?}");
            let says = info.dangers().join(" ").contains("still accepts writes");
            assert_eq!(says, info.has_standbys, "{info:?}");
        }
        let careless = ServerInfo { fsync: false, ..safe };
        assert!(careless.dangers()[1].contains("fsync"));
    }
}
